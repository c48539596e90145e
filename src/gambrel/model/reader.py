"""From a config.json to an Arch: picks the family, reads it, and says what nobody read."""

from __future__ import annotations

from gambrel.model.builder import Builder
from gambrel.model.families import ARCHITECTURES, FAMILIES, NESTED, Nested
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


def read_config(config: Mapping[str, Any], overrides: Overrides | None = None) -> Reading:
    """Read a config.json as a model. Raises ConfigError naming the key, its value and what is accepted."""
    if not isinstance(config, dict):
        raise ConfigError("a config.json holds one object")
    top = Fields(config)
    model_type = _model_type(top)
    precision = read_precision(top, overrides or Overrides())
    if model_type in NESTED and "text_config" in config:
        return _read_nested(top, NESTED[model_type], model_type, precision, overrides or Overrides())
    family = FAMILIES[NESTED[model_type].text if model_type in NESTED else model_type]
    fields = Fields(config, family.names, family.defaults)
    fields.used |= top.used
    builder = Builder(family, fields, precision)
    arch = builder.arch()
    return Reading(arch, precision, model_type, (*precision.notes, *builder.notes), tuple(fields.unread()))


def _read_nested(top: Fields, nested: Nested, model_type: str, precision: Precision, overrides: Overrides) -> Reading:
    """A text model inside a multimodal config: its family, its own dtype where the top names none, its towers."""
    inner = top.nested("text_config")
    name = inner.text("model_type", nested.text)
    inner.choice("model_type", name, tuple(FAMILIES))
    if not (top.has("dtype") or top.has("torch_dtype")):
        precision = read_precision(Fields({**top.data, **_dtype(inner)}), overrides)
    family = FAMILIES[name]
    fields = Fields(inner.data, family.names, family.defaults, "text_config.")
    fields.used |= inner.used | {"dtype", "torch_dtype"}
    tied = fields.flag("tie_word_embeddings", nested.tied)
    if top.has("tie_word_embeddings"):
        tied = top.flag("tie_word_embeddings")
    builder = Builder(family, fields, precision, tied)
    arch = builder.arch(nested.towers(top, builder) if top.has("vision_config") else ())
    return Reading(
        arch, precision, model_type, (*precision.notes, *builder.notes), tuple(top.unread() + fields.unread())
    )


def _dtype(inner: Fields) -> dict[str, Any]:
    return {key: inner.data[key] for key in ("dtype", "torch_dtype") if inner.data.get(key) is not None}


def _model_type(top: Fields) -> str:
    """The family, checked against `architectures`; never guessed from a name."""
    names = [name for name in top.items("architectures") if isinstance(name, str)]
    accepted = sorted({*FAMILIES, *NESTED})
    model_type = top.text("model_type", "")
    if not model_type:
        hint = "".join(f'; architectures says {name}: if so, add "model_type"' for name in names[:1])
        raise ConfigError(f"missing key model_type{hint}; accepted is {', '.join(accepted)}")
    for name in names:
        belongs = ARCHITECTURES.get(name)
        if belongs and model_type not in belongs:
            raise ConfigError(
                f"contradictory config: architectures is {name}, which is a {' or '.join(belongs)} model, "
                f"but model_type is {model_type}"
            )
    if model_type not in accepted:
        raise ConfigError(
            f"model_type is {model_type!r}, which gambrel does not know; accepted is {', '.join(accepted)}"
        )
    return model_type
