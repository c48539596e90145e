"""The words and the table of `--counters`: values with their source, and one line for each reason without."""

from __future__ import annotations

from gambrel import units
from gambrel.show.tables import Column, Table
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: How a counter is called.
NAMES = {
    "sm_active": "SM active",
    "sm_occupancy": "SM occupancy",
    "tensor_active": "tensor active",
    "dram_active": "DRAM active",
    "kernel_busy": "a kernel running",
    "memory_busy": "memory accessed",
    "sm_clock": "SM clock",
    "memory_clock": "memory clock",
    "power": "power",
    "mean_power": "mean power",
    "energy": "energy",
    "temperature": "temperature",
    "throttle": "clocks held down",
    "sampling_cost": "cost of sampling",
}


def _quantity(value: float, unit: str) -> str:
    if unit == "1":
        return f"{value:.1%}"
    shown = {"degC": "°C"}.get(unit, unit)
    return f"{value:.0f} {shown}" if unit in ("MHz", "degC") else f"{units.significant(value)} {shown}"


@frozen
class Quantity(Column):
    """A column whose rows have different units."""

    def show(self, row: Mapping[str, Any]) -> str:
        """The value in the row's own unit; an absent one is a dash."""
        value = row.get(self.key)
        return "-" if value is None else _quantity(value, row["unit"])


COLUMNS = (
    Column("label", "counter"),
    Quantity("value", "value", "ratio"),
    Quantity("low", "lowest", "ratio"),
    Quantity("high", "highest", "ratio"),
    Column("samples", "samples", "count"),
    Column("source", "source"),
)


def counters_tables(readings: Mapping[str, Mapping[str, Any]], where: str = "") -> list[Table]:
    """What was read, and what was derived, from the JSON document of the readings; none where nothing was."""
    rows = [
        {
            "counter": name,
            "label": NAMES.get(name, name),
            **{key: value for key, value in reading.items() if key != "detail"},
        }
        for name, reading in readings.items()
        if reading["value"] is not None
    ]
    caption = "Medians of the samples, shares of the whole GPU. Derived: what the model's own counts imply, not read."
    name, title = ("counters", "Counters") if not where else (f"counters: {where}", f"Counters: {where}")
    return [Table(name, title, COLUMNS, rows, caption)] if rows else []


def counters_lines(readings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What held the clocks down, and for each reason one line with the counters that could not be read."""
    lines = [f"clocks held down by {_shares(reading['detail'])}" for reading in readings.values() if reading["detail"]]
    reasons: dict[tuple[str, bool], list[str]] = {}
    for name, reading in readings.items():
        if reading["reason"]:
            reasons.setdefault((reading["reason"], reading["value"] is None), []).append(NAMES.get(name, name))
    for (reason, absent), names in reasons.items():
        lines.append(f"{'not available' if absent else 'derived, not read'} ({reason}): {', '.join(names)}")
    return lines


def _shares(detail: Mapping[str, float]) -> str:
    ordered = sorted(detail.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} in {share:.0%} of the samples" for name, share in ordered)
