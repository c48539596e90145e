"""Make catalogue.json of the TOML files: python -m gambrel.hardware.build.

The TOML files are what people edit; a report reads the JSON, which costs it 4 ms less. A test holds them equal.
"""

from __future__ import annotations

import json
import os
import tomllib

from gambrel.hardware.catalogue import CATALOGUE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def collect(folder: str = CATALOGUE) -> dict[str, Any]:
    """Every TOML file of the folder, by file name without its ending."""
    devices = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".toml"):
            with open(os.path.join(folder, name), "rb") as file:
                devices[name[:-5]] = tomllib.load(file)
    return devices


def main() -> None:
    """Write catalogue.json."""
    with open(os.path.join(CATALOGUE, "catalogue.json"), "w", encoding="utf-8") as file:
        json.dump(collect(), file, indent=0, default=str)
        file.write("\n")


if __name__ == "__main__":
    main()
