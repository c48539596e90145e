"""Make catalogue.json of the TOML files: python -m gambrel.hardware.build.

The TOML files are what people edit; a report reads the JSON, which costs it 4 ms less. A test holds them equal.
"""

from __future__ import annotations

import json
import os
import tomllib

from gambrel.hardware.catalogue import CATALOGUE


def collect(folder: str = CATALOGUE) -> dict[str, dict[str, str]]:
    """Every TOML file of the folder as JSON text by id, and every name and alias with its id."""
    names, devices = {}, {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".toml"):
            with open(os.path.join(folder, name), "rb") as file:
                data = tomllib.load(file)
            devices[name[:-5]] = json.dumps(data, default=str)
            names.update(dict.fromkeys([name[:-5], *data.get("aliases", ())], name[:-5]))
    return {"names": names, "devices": devices}


def main() -> None:
    """Write catalogue.json."""
    with open(os.path.join(CATALOGUE, "catalogue.json"), "w", encoding="utf-8") as file:
        json.dump(collect(), file, indent=0, default=str)
        file.write("\n")


if __name__ == "__main__":
    main()
