"""From a config.json to an Arch: picks the family, reads it, and says what nobody read."""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.builder import Builder, Custom, Family, Nested
from gambrel.model.families import belongs, find, known
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.precision import Overrides, Precision, read_precision
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gambrel.model.arch import Arch


@frozen
class Reading:
    """A config as read: the model, its dtypes, and what the user should know about the reading.

    model_type: the family. notes: choices that the config left open. unread: keys that no reader knows.
    """

    arch: Arch
    precision: Precision
    model_type: str
    notes: tuple[str, ...]
    unread: tuple[str, ...]


def read_config(config: Mapping[str, Any], overrides: Overrides | None = None, like: str = "") -> Reading:
    """Read a config.json as a model. Raises ConfigError naming the key, its value and what is accepted.

    like: read it as this known model type instead of its own; the reading says so.
    """
    if not isinstance(config, dict):
        raise ConfigError("a config.json holds one object")
    if like:
        reading = read_config(_as(config, like), overrides)
        told = (
            f"read as a {like} model because --like says so, not as {config.get('model_type')!r}: yours to answer for"
        )
        return replace(reading, notes=(told, *reading.notes))
    top = Fields(config)
    model_type, entry = _entry(top)
    precision = read_precision(top, overrides or Overrides())
    if isinstance(entry, Nested):
        key = next((key for key in entry.keys if key in config), None)
        if key is not None:
            return _read_nested(top, entry, key, model_type, precision)
        entry = _family(entry.text)
    if isinstance(entry, Custom):
        arch, notes = entry.read(top, precision)
        return Reading(arch, precision, model_type, (*precision.notes, *notes), tuple(top.unread()))
    fields = Fields(config, entry.names, entry.defaults)
    fields.used |= top.used
    builder = Builder(entry, fields, precision)
    arch = builder.arch()
    return Reading(arch, precision, model_type, (*precision.notes, *builder.notes), tuple(fields.unread()))


def _read_nested(top: Fields, nested: Nested, key: str, model_type: str, precision: Precision) -> Reading:
    """A text model inside a multimodal config: its family, its own dtype where the top names none, its towers."""
    inner = top.nested(key)
    name = inner.text("model_type", nested.text)
    family = _family(name)
    if not (top.has("dtype") or top.has("torch_dtype")):
        precision = read_precision(Fields({**top.data, **_dtype(inner)}), precision.overrides)
    fields = Fields(inner.data, family.names, family.defaults, f"{key}.")
    fields.used |= inner.used | {"dtype", "torch_dtype"}
    tied = fields.flag("tie_word_embeddings", nested.tied)
    if top.has("tie_word_embeddings"):
        tied = top.flag("tie_word_embeddings")
    builder = Builder(family, fields, precision, tied)
    arch = builder.arch(nested.towers(top, builder))
    unread = tuple(top.unread() + fields.unread())
    return Reading(arch, precision, model_type, (*precision.notes, *builder.notes), unread)


def _family(model_type: str) -> Family:
    """A decoder that may stand inside a multimodal config."""
    family = find(model_type)
    if not isinstance(family, Family):
        raise ConfigError(
            f"the text model's model_type is {model_type!r}, no decoder that gambrel knows{_close(model_type)}"
        )
    return family


def _dtype(inner: Fields) -> dict[str, Any]:
    return {key: inner.data[key] for key in ("dtype", "torch_dtype") if inner.data.get(key) is not None}


def _as(config: Mapping[str, Any], like: str) -> dict[str, Any]:
    """The config with another model type, and without the class name that would contradict it."""
    if find(like) is None:
        raise ConfigError(
            f"--like {like}: not a type that gambrel knows{_close(like)}; `gambrel models --types` lists them"
        )
    return {**{key: value for key, value in config.items() if key != "architectures"}, "model_type": like}


def _close(model_type: str) -> str:
    """Known types with a like name, and how many there are in all."""
    from difflib import get_close_matches

    types = known()
    close = get_close_matches(model_type, types, 5, 0.5)
    return f" ({', '.join(close)}; {len(types)} are known)" if close else f" ({len(types)} are known)"


def _entry(top: Fields) -> tuple[str, Family | Nested | Custom]:
    """The family's row, checked against `architectures`; never guessed from a name."""
    names = [name for name in top.items("architectures") if isinstance(name, str)]
    model_type = top.text("model_type", "")
    if not model_type:
        hint = "".join(f'; architectures says {name}: if so, add "model_type"' for name in names[:1])
        raise ConfigError(f"missing key model_type{hint}; `gambrel models --types` lists those that gambrel knows")
    for name in names:
        types = belongs(name)
        if types and model_type not in types:
            raise ConfigError(
                f"contradictory config: architectures is {name}, which is a {' or '.join(types)} model, "
                f"but model_type is {model_type}"
            )
    entry = find(model_type)
    if entry is None:
        raise ConfigError(
            f"model_type is {model_type!r}, which gambrel does not know. Two ways on: --trace, where transformers has "
            f"it, or --like TYPE, where you know that it is built like a known type{_close(model_type)}"
        )
    return model_type, entry
