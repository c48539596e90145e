"""From a config.json to an Arch: picks the family, reads it, and says what nobody read."""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.builder import Builder, Custom, Family, Nested, Result
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
    if isinstance(entry, Custom):
        read = entry.read(top, precision)
    elif isinstance(entry, Nested):
        read = _read_nested(top, entry, precision)
    else:
        read = _read_family(top, entry, precision)
    precision = read.precision or precision
    unread = tuple(sorted({*top.unread(), *read.unread}))
    return Reading(read.arch, precision, model_type, (*precision.notes, *read.notes), unread)


def _read_family(top: Fields, family: Family, precision: Precision, towers: Any = None) -> Result:
    """A decoder whose keys stand at the top, and the towers of a multimodal one where it has a vision_config."""
    fields = Fields(top.data, family.names, family.defaults)
    fields.used = top.used  # what the builder knows, the caller knows
    builder = _builder(family, fields, precision)
    arch = builder.arch(towers(fields, builder) if towers and top.has("vision_config") else ())
    return Result(arch, tuple(builder.notes), builder.unread())


def _read_nested(top: Fields, nested: Nested, precision: Precision) -> Result:
    """A text model inside a multimodal config: its family, its own dtypes where the top names none, its towers."""
    key = next((key for key in nested.keys if key in top.data), None)
    if key is None and nested.flat:
        return _read_family(top, _family(nested.text), precision, nested.towers)
    inner = top.nested(key or nested.keys[0])
    name = inner.text("model_type", nested.text)
    family = _family(name, nested.own)
    stated = _stated(top, inner)
    if stated:
        precision = read_precision(Fields({**top.data, **stated}), precision.overrides)
    defaults = {**family.defaults, **nested.text_defaults.get(name, {})}
    fields = Fields(inner.data, family.names, defaults, inner.where)
    fields.used |= inner.used | stated.keys() | {"dtype", "torch_dtype"}
    builder = _builder(family, fields, precision, _tied(top, fields, nested, family))
    arch = builder.arch(nested.towers(top, builder))
    for part in (top, fields, *builder.beside):
        part.used |= nested.free
    return Result(arch, tuple(builder.notes), (*fields.unread(), *builder.unread()), precision)


def _builder(family: Family, fields: Fields, precision: Precision, tied: bool | None = None) -> Builder:
    if family.mend:
        fields.data = {**fields.data, **family.mend(fields)}
    return (family.builder or Builder)(family, fields, precision, tied)


def _tied(top: Fields, fields: Fields, nested: Nested, family: Family) -> bool:
    """Whether the head is the table: the top's word, else the text config's, else the default; or either's."""
    key, default = "tie_word_embeddings", family.tied if nested.either else nested.tied
    inner = fields.flag(key, default)
    return top.flag(key, False) or inner if nested.either else top.flag(key, inner)


def _stated(top: Fields, inner: Fields) -> dict[str, Any]:
    """What the text config says about dtypes where the top says nothing."""
    said: dict[str, Any] = {}
    for keys in (("dtype", "torch_dtype"), ("quantization_config", "compression_config")):
        if not any(top.has(key) for key in keys):
            said |= {key: inner.data[key] for key in keys if inner.has(key)}
    return said


def _family(model_type: str, own: Mapping[str, Family | str] | None = None) -> Family:
    """A decoder that may stand inside a multimodal config; `own`: those that this config alone may hold."""
    named = (own or {}).get(model_type, model_type)
    family = find(named) if isinstance(named, str) else named
    if not isinstance(family, Family):
        raise ConfigError(
            f"the text model's model_type is {model_type!r}, no decoder that gambrel knows{_close(model_type)}"
        )
    return family


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
