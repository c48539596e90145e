"""What a counter said during a run, or why it said nothing; and what bytes and FLOPs over time say instead.

A reading has a value or a reason, and a source with either. A derived value keeps the reason for which it was not
measured, and its source says that it is derived.
"""

from __future__ import annotations

from dataclasses import field, replace

from gambrel.measure.record import quantile
from gambrel.types import GambrelError
from gambrel.units import duration
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gambrel.types import Device

#: Every counter: its unit and what it means. A share is of time, averaged over the SMs or over the memory's cycles.
COUNTERS: dict[str, tuple[str, str]] = {
    "sm_active": ("1", "share of cycles with at least one warp on an SM"),
    "sm_occupancy": ("1", "warps on the SMs over the most that they hold"),
    "tensor_active": ("1", "share of cycles with a matrix unit at work"),
    "dram_active": ("1", "share of the memory bandwidth in use"),
    "kernel_busy": ("1", "share of time with any kernel running, on however few SMs"),
    "memory_busy": ("1", "share of time with any access to memory"),
    "sm_clock": ("MHz", "clock of the SMs"),
    "memory_clock": ("MHz", "clock of the memory"),
    "power": ("W", "power as the board reports it at each sample"),
    "mean_power": ("W", "energy over time, of the whole region"),
    "energy": ("J", "energy of the whole region"),
    "temperature": ("degC", "temperature of the chip"),
    "throttle": ("1", "share of samples in which something held the clocks down"),
    "sampling_cost": ("1", "processor time of the sampling, share of one core"),
}
#: The counters that only hardware counters (GPM, DCGM) give.
PROFILED = ("sm_active", "sm_occupancy", "tensor_active", "dram_active")
#: The source of a value that was not measured.
BYTES, FLOPS = "derived (bytes / time / bandwidth)", "derived (FLOPs / time / peak)"


class UnavailableError(GambrelError):
    """A source that this machine does not give; the message is the reason, one line."""


@frozen
class Reading:
    """One counter over the timed region.

    value: median of the samples, or the one value of the whole region; None where it cannot be had. unit: of value,
    low and high ("1" for a share). source: who gave it, or who was asked. samples: how many values. reason: why it was
    not measured. low, high: smallest and largest sample. detail: shares by name, as of reasons that held the clocks.
    """

    name: str
    value: float | None
    unit: str
    source: str
    samples: int = 0
    reason: str = ""
    low: float | None = None
    high: float | None = None
    detail: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "value": self.value,
            "unit": self.unit,
            "source": self.source,
            "samples": self.samples,
            "low": self.low,
            "high": self.high,
            "reason": self.reason or None,
            "detail": dict(self.detail),
        }


def document(readings: Mapping[str, Reading]) -> dict[str, Any]:
    """The readings as JSON, by name."""
    return {name: reading.to_dict() for name, reading in readings.items()}


def restored(told: Mapping[str, Any]) -> dict[str, Reading]:
    """The readings of such a document."""
    return {name: Reading(name, **{**each, "reason": each["reason"] or ""}) for name, each in told.items()}


class Tally:
    """Samples and refusals as they come; who refuses once gives no number, whatever came before."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.reasons: dict[str, dict[str, str]] = {}
        self.sources: dict[str, str] = {}
        self.details: dict[str, dict[str, int]] = {}

    def add(self, name: str, value: float, source: str) -> None:
        """One sample."""
        self.values.setdefault(name, []).append(value)
        self.sources[name] = source

    def mark(self, name: str, labels: tuple[str, ...]) -> None:
        """What a sample was labelled with, counted."""
        counts = self.details.setdefault(name, {})
        for label in labels:
            counts[label] = counts.get(label, 0) + 1

    def refuse(self, name: str, reason: str, source: str) -> None:
        """Why a source does not give this counter; the first reason stays."""
        self.reasons.setdefault(name, {}).setdefault(source, " ".join(reason.split()))

    def refused(self, name: str, source: str) -> bool:
        """Whether this source refused this counter already."""
        return source in self.reasons.get(name, {})

    def readings(self, without: str) -> dict[str, Reading]:
        """Every counter as a reading. without: the reason of a counter that has neither sample nor refusal."""
        return {name: self._reading(name, unit, without) for name, (unit, _) in COUNTERS.items()}

    def _reading(self, name: str, unit: str, without: str) -> Reading:
        source, refusals = self.sources.get(name, ""), self.reasons.get(name, {})
        values = tuple(self.values.get(name, ()))
        if values and source not in refusals:
            shares = {label: times / len(values) for label, times in self.details.get(name, {}).items()}
            middle = sum(values) / len(values) if name in self.details else quantile(values, 0.5)
            return Reading(name, middle, unit, source, len(values), "", min(values), max(values), shares)
        asked = ", ".join(refusals) or source
        return Reading(name, None, unit, asked, 0, _one_line(refusals) or without)


def _one_line(refusals: Mapping[str, str]) -> str:
    """One reason that all sources share stands alone, else each behind its source's name."""
    if len(set(refusals.values())) == 1:
        return next(iter(refusals.values()))
    return "; ".join(f"{source}: {reason}" for source, reason in refusals.items())


# Derived --------------------------------------------------------------------------------------


def derive(
    moved_bytes: float, flops: float, time_s: float, device: Device | None, dtype: str = "bf16"
) -> dict[str, Reading]:
    """The activity that a model's own counts imply: no counter was read.

        dram_active = bytes / time / bandwidth        tensor_active = FLOPs / time / peak of the dtype

    moved_bytes [byte] and flops [FLOP] of one step by the model, time_s its measured time [s]. They are the least that
    the step can have had on average: repeated reads and lost cycles are active too, so a counter shows more. A share
    above 1 is no number but an error: the time lies below its floor.
    """
    return {
        "dram_active": _derived("dram_active", _least(moved_bytes, _bandwidth(device)), time_s, BYTES),
        "tensor_active": _derived("tensor_active", _least(flops, _peak(device, dtype)), time_s, FLOPS),
    }


def implied(limits_s: Mapping[str, float], time_s: float) -> dict[str, Reading]:
    """The same from a bound's limits: bytes over bandwidth ("memory") and FLOPs over peak ("compute") [s]."""
    absent = "no device was named whose bandwidth and peak could be compared"
    return {
        "dram_active": _derived("dram_active", limits_s.get("memory", absent), time_s, BYTES),
        "tensor_active": _derived("tensor_active", limits_s.get("compute", absent), time_s, FLOPS),
    }


def _least(amount: float, ceiling: float | str) -> float | str:
    return ceiling if isinstance(ceiling, str) else amount / ceiling


def _bandwidth(device: Device | None) -> float | str:
    return device.mem_bytes_per_s if device else "no device was named whose bandwidth could be compared"


def _peak(device: Device | None, dtype: str) -> float | str:
    if device is None:
        return "no device was named whose peak could be compared"
    peak = device.peak_flops_per_s.get(dtype)
    return peak if peak else f"{device.id} has no {dtype} peak"


def _derived(name: str, least_s: float | str, time_s: float, source: str) -> Reading:
    if isinstance(least_s, str):
        return Reading(name, None, "1", source, reason=least_s)
    if not time_s > 0 or least_s < 0:
        return Reading(name, None, "1", source, reason="needs a time above 0 and an amount of work")
    share = least_s / time_s
    if share > 1:
        told = (
            f"{share:.0%} of the ceiling in {duration(time_s)}: the time lies below its floor, so one of them is wrong"
        )
        return Reading(name, None, "1", source, reason=told)
    return Reading(name, share, "1", source, 1)


def fill(readings: Mapping[str, Reading], derived: Mapping[str, Reading]) -> dict[str, Reading]:
    """The readings, with derived values, labelled so, for those that could not be measured; the reason stays."""
    whole = dict(readings)
    for name, reading in derived.items():
        known = whole.get(name)
        if known is None or known.value is None:
            why = "; ".join(dict.fromkeys(r.reason for r in (known, reading) if r and r.reason))
            whole[name] = replace(reading, reason=why)
    return whole
