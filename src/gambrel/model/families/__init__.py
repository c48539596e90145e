"""The tables of model families: each row says how one family's config.json becomes parts.

To add a family, add a row to the module that it belongs to (and a part where its layers do something new). Defaults
are those of the family's own configuration class in transformers 5.24; keys without a default must be in the config.
A module holds FAMILIES (a decoder that the builder can make), NESTED (a text model inside a multimodal config), CUSTOM
(anything else, as a function) and ARCHITECTURES (class names with the model types that they go with).
"""

from __future__ import annotations

from importlib import import_module

from gambrel.model.families.index import ARCHITECTURES, HOMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gambrel.model.builder import Custom, Family, Nested

#: Modules of this package, the first of two that have a type wins; index.py says which to load (see build.py).
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


#: Tables of a module, in the order in which a type is looked up.
TABLES = ("FAMILIES", "NESTED", "CUSTOM")


def find(model_type: str) -> Family | Nested | Custom | None:
    """The row of a model type, or None for a type that no table has."""
    home = HOMES.get(model_type)
    if home is None:
        return None
    module = import_module(f"gambrel.model.families.{home}")
    tables = (getattr(module, table, {}) for table in TABLES)
    entry: Family | Nested | Custom = next(table[model_type] for table in tables if model_type in table)
    return entry


def known() -> list[str]:
    """Every model type that can be read."""
    return list(HOMES)


def belongs(architecture: str) -> tuple[str, ...]:
    """The model types that a class name goes with; empty where no table has it."""
    return ARCHITECTURES.get(architecture, ())
