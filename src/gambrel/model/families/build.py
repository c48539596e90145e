"""Make index.py of the family modules: python -m gambrel.model.families.build.

The modules are what people edit; a command reads the index, so that it loads one module and not all. A test holds
them equal.
"""

from __future__ import annotations

import os
from importlib import import_module

from gambrel.model.families import MODULES, TABLES


def collect() -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Model types with their module, and class names with the model types that they go with."""
    homes: dict[str, str] = {}
    classes: dict[str, tuple[str, ...]] = {}
    for name in MODULES:
        module = import_module(f"gambrel.model.families.{name}")
        for table in TABLES:
            for model_type in getattr(module, table, ()):
                homes.setdefault(model_type, name)
        for architecture, types in getattr(module, "ARCHITECTURES", {}).items():
            known = classes.get(architecture, ())
            classes[architecture] = (*known, *(t for t in types if t not in known))
    return dict(sorted(homes.items())), dict(sorted(classes.items()))


def text() -> str:
    """The source of index.py."""
    homes, classes = collect()
    lines = ['"""Made by build.py: which module reads a model type, and which types a class name goes with."""', ""]
    lines += ["HOMES = {", *(f'    "{model_type}": "{module}",' for model_type, module in homes.items()), "}"]
    lines += ["ARCHITECTURES = {"]
    for architecture, types in classes.items():
        listed = ", ".join(f'"{t}"' for t in types)
        lines.append(f'    "{architecture}": ({listed}{"," if len(types) == 1 else ""}),')
    return "\n".join([*lines, "}", ""])


def main() -> None:
    """Write index.py."""
    with open(os.path.join(os.path.dirname(__file__), "index.py"), "w", encoding="utf-8") as file:
        file.write(text())


if __name__ == "__main__":
    main()
