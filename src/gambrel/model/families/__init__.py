"""The tables of model families: each row says how one family's config.json becomes parts.

To add a family, add a row to the module that it belongs to (and a part where its layers do something new). Defaults
are those of the family's own configuration class in transformers 5.24; keys without a default must be in the config.
A module holds FAMILIES (a decoder that the builder can make), NESTED (a text model inside a multimodal config), CUSTOM
(anything else, as a function) and ARCHITECTURES (class names with the model types that they go with).
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from gambrel.model.builder import Custom, Family, Nested

#: Modules of this package, the most asked for first; each is loaded when a model type is not in those before.
MODULES = (
    "decoders",
    "dense",
    "moe",
    "compressed",
    "vision_a",
    "encdec",
    "vision_b",
    "vision_gemma",
    "hybrid",
    "linear",
    "speech",
    "vision_moe",
)


def _modules() -> Iterator[ModuleType]:
    for name in MODULES:
        yield import_module(f"gambrel.model.families.{name}")


def find(model_type: str) -> Family | Nested | Custom | None:
    """The row of a model type, or None for a type that no table has."""
    for module in _modules():
        for table in ("FAMILIES", "NESTED", "CUSTOM"):
            if model_type in getattr(module, table, ()):
                entry: Family | Nested | Custom = getattr(module, table)[model_type]
                return entry
    return None


def known() -> list[str]:
    """Every model type that can be read."""
    tables = ("FAMILIES", "NESTED", "CUSTOM")
    return sorted({name for module in _modules() for table in tables for name in getattr(module, table, ())})


def belongs(architecture: str, model_type: str) -> tuple[str, ...]:
    """The model types that a class name goes with; empty where no table has it. Stops early where they agree."""
    types: tuple[str, ...] = ()
    for module in _modules():
        types += getattr(module, "ARCHITECTURES", {}).get(architecture, ())
        if model_type in types:
            break
    return types
