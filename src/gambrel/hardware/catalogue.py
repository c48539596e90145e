"""Devices from the catalogue or from a user's own file, with what the user overrides.

A catalogue file holds {value, source} tables, so that each number says where it is from; a user's own file may hold
plain numbers or quantities such as "3.35TB/s".
"""

from __future__ import annotations

import json
import os
from dataclasses import replace

from gambrel import units
from gambrel.types import Device, Figure, GambrelError, Link
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

CATALOGUE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "data", "hardware")
DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp6", "fp4", "int4")
LARGEST_FILE_BYTES = 2**20
#: Source name of a figure that an option gave.
YOURS = "yours"
#: Keys of a device file by section; "" is the top. Another key is an error, since it may be a figure misspelt.
KEYS = {
    "": (
        *("id", "name", "vendor", "kind", "aliases", "released", "note", "sources", "calibration"),
        *("peak_flops_per_s", "memory", "cache", "link", "host_link", "power", "units"),
    ),
    "memory": ("kind", "advertised_bytes", "usable_bytes", "bandwidth_bytes_per_s"),
    "cache": ("l2_bytes",),
    "link": ("name", "bytes_per_s"),
    "host_link": ("name", "bytes_per_s"),
    "power": ("board_w",),
    "units": ("count",),
}


class DeviceError(GambrelError):
    """A device that is not known, or whose file cannot be read."""


@frozen
class DeviceOverrides:
    """What the user says instead of the catalogue: memory [byte], bandwidth [byte/s], peaks [FLOP/s] by dtype."""

    memory: str | float | None = None
    bandwidth: str | float | None = None
    peaks: tuple[str, ...] = ()


def catalogue() -> dict[str, dict[str, str]]:
    """The catalogue's one JSON file (see build.py): names and aliases to ids, ids to a device each as JSON text."""
    with open(os.path.join(CATALOGUE, "catalogue.json"), encoding="utf-8") as file:
        tables: dict[str, dict[str, str]] = json.load(file)
    return tables


def device_ids() -> list[str]:
    """Ids of the catalogue."""
    return sorted(catalogue()["devices"])


def load_device(name: str, overrides: DeviceOverrides | None = None) -> Device:
    """A device by catalogue id, alias, or path of a TOML file. Raises DeviceError with close names."""
    is_path = name.endswith(".toml") or os.sep in name
    device = _read(_load(name), name) if is_path else _by_name(name)
    return _override(device, overrides) if overrides else device


def _by_name(name: str) -> Device:
    wanted, tables = name.lower(), catalogue()
    known = tables["names"]
    if wanted in known:
        return _read(json.loads(tables["devices"][known[wanted]]), known[wanted])
    from difflib import get_close_matches

    close = get_close_matches(wanted, known, 4, 0.5)
    hint = f"did you mean {', '.join(close)}? " if close else ""
    raise DeviceError(f"no device {name!r}; {hint}`gambrel devices` lists all, or give the path of your own .toml file")


def _load(path: str) -> dict[str, Any]:
    import tomllib

    try:
        if os.path.getsize(path) > LARGEST_FILE_BYTES:
            raise DeviceError(f"{path} is larger than {LARGEST_FILE_BYTES} bytes, which no device file is")
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise DeviceError(f"no such device file: {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise DeviceError(f"cannot read device file {path}: {error}") from None


def _read(data: dict[str, Any], path: str) -> Device:
    _check_keys(data, path)
    reader = _Reader(data, path)
    peaks = reader.table("peak_flops_per_s", "flop/s", DTYPES)
    if not peaks:
        raise DeviceError(f"{path}: [peak_flops_per_s] has no dtype; accepted is {', '.join(DTYPES)}")
    advertised = reader.number("memory", "advertised_bytes", "byte")
    usable = reader.number("memory", "usable_bytes", "byte")
    bandwidth = reader.number("memory", "bandwidth_bytes_per_s", "byte/s")
    memory = advertised or usable
    if bandwidth is None or memory is None:
        missing = "bandwidth_bytes_per_s" if bandwidth is None else "advertised_bytes"
        raise DeviceError(f"{path}: [memory] has no {missing}")
    return Device(
        id=str(data.get("id", os.path.splitext(os.path.basename(path))[0])),
        name=str(data.get("name", data.get("id", path))),
        peak_flops_per_s=peaks,
        mem_bytes=memory,
        mem_bytes_per_s=bandwidth,
        usable_bytes=usable or memory,
        l2_bytes=reader.number("cache", "l2_bytes", "byte"),
        link=reader.link("link"),
        host_link=reader.link("host_link"),
        power_w=reader.number("power", "board_w", "W"),
        kind=str(data.get("kind", "")),
        vendor=str(data.get("vendor", "")),
        note=str(data.get("note", "")),
        figures=reader.figures,
        sources=data.get("sources", {}),
    )


def _check_keys(data: Mapping[str, Any], path: str) -> None:
    for section, accepted in KEYS.items():
        table = data.get(section, {}) if section else data
        if not isinstance(table, dict):
            raise DeviceError(f"{path}: {section} is not a table")
        unknown = [key for key in table if key not in accepted]
        if unknown:
            where = f"[{section}]" if section else "the file"
            raise DeviceError(f"{path}: {where} has {', '.join(unknown)}; accepted is {', '.join(accepted)}")


class _Reader:
    """Numbers of one file, each remembered with its source."""

    def __init__(self, data: Mapping[str, Any], path: str) -> None:
        self.data, self.path = data, path
        self.figures: dict[str, Figure] = {}

    def number(self, section: str, key: str, unit: str) -> float | None:
        """A positive number, as {value, source} or plain; None where it is absent."""
        table = self.data.get(section, {})
        if not isinstance(table, dict):
            raise DeviceError(f"{self.path}: {section} is not a table")
        if key not in table:
            return None
        entry = table[key]
        if not isinstance(entry, dict):
            entry = {"value": entry}
        figure = Figure(
            self._value(entry, section, key, unit),
            str(entry.get("source", "")),
            str(entry.get("note", "")),
            tuple(
                Figure(self._value(other, section, key, unit), str(other.get("source", "")))
                for other in entry.get("also", ())
            ),
        )
        self.figures[f"{section}.{key}"] = figure
        return figure.value

    def _value(self, entry: Any, section: str, key: str, unit: str) -> float:
        try:
            value = units.parse(entry["value"], unit)
        except (KeyError, TypeError, AttributeError, units.UnitError) as error:
            raise DeviceError(f"{self.path}: {section}.{key}: {error}") from None
        if not value > 0:
            raise DeviceError(f"{self.path}: {section}.{key} is {value}; accepted is a positive number")
        return value

    def table(self, section: str, unit: str, accepted: tuple[str, ...]) -> dict[str, float]:
        """All numbers of a section, by key."""
        table = self.data.get(section, {})
        unknown = [key for key in table if key not in accepted]
        if unknown:
            raise DeviceError(f"{self.path}: [{section}] has {', '.join(unknown)}; accepted is {', '.join(accepted)}")
        found = {key: self.number(section, key, unit) for key in table}
        return {key: value for key, value in found.items() if value is not None}

    def link(self, section: str) -> Link | None:
        """A connection, one direction."""
        rate = self.number(section, "bytes_per_s", "byte/s")
        return None if rate is None else Link(str(self.data[section].get("name", section)), rate)


def _override(device: Device, overrides: DeviceOverrides) -> Device:
    changed: list[str] = []
    figures = dict(device.figures)
    if overrides.memory is not None:
        memory = _quantity("--memory", overrides.memory, "byte")
        device = replace(device, mem_bytes=memory, usable_bytes=memory)
        figures |= dict.fromkeys(("memory.advertised_bytes", "memory.usable_bytes"), Figure(memory, YOURS))
        changed.append(f"memory {units.gigabytes(memory)}")
    if overrides.bandwidth is not None:
        rate = _quantity("--bandwidth", overrides.bandwidth, "byte/s")
        device = replace(device, mem_bytes_per_s=rate)
        figures["memory.bandwidth_bytes_per_s"] = Figure(rate, YOURS)
        changed.append(f"bandwidth {units.si(rate, 'B/s')}")
    for text in overrides.peaks:
        dtype, peak = _peak(text)
        device = replace(device, peak_flops_per_s={**device.peak_flops_per_s, dtype: peak})
        figures[f"peak_flops_per_s.{dtype}"] = Figure(peak, YOURS)
        changed.append(f"{dtype} peak {units.si(peak, 'FLOP/s')}")
    sources = {**device.sources, YOURS: {"title": "your own figure, given as an option"}}
    return replace(device, changed=tuple(changed), figures=figures, sources=sources) if changed else device


def _peak(text: str) -> tuple[str, float]:
    dtype, _, value = text.partition("=")
    if dtype not in DTYPES or not value:
        raise DeviceError(f"--peak {text}: write for example bf16=800TFLOP/s; dtypes are {', '.join(DTYPES)}")
    return dtype, _quantity("--peak", value, "flop/s")


def _quantity(option: str, text: str | float, unit: str) -> float:
    try:
        value = units.parse(text, unit)
    except units.UnitError as error:
        raise DeviceError(f"{option}: {error}") from None
    if not value > 0:
        raise DeviceError(f"{option} {text}: accepted is a positive quantity")
    return value
