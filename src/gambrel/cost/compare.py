"""A measured time against its bound: the fraction of the floor, the gap in named parts, and what to try next.

Typical engines take 1.2 to 1.5 times the decode floor; more than twice is called a fault to find, by rule of thumb.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.cost.report import step_ops
from gambrel.cost.roofline import demand, op_bound, step_bound
from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gambrel.cost.roofline import Demand
    from gambrel.model.model import Model
    from gambrel.types import Device, Op, Step

#: Above this many times the floor something is broken rather than slow.
FAULT_RATIO = 2.0
#: The only ways in which a correct measurement lies below this bound.
LEGITIMATE = (
    "the run multiplied or stored in a narrower dtype (--weight-dtype, --kv-dtype, --compute-dtype)",
    "it produced several tokens a step (speculative decoding): give the time of one step",
    "it ran on more devices (--tp)",
    "the device is faster than the one named (--device, --bandwidth, --peak)",
)


class BelowBound(GambrelError):
    """A measured time below its bound: an error in the measurement or in what was said about it."""


@frozen
class Conditions:
    """What is known of the run beside its time.

    launch_s: time spent launching, by measurement or profile [s]. mem_bytes_per_s: bandwidth that reads reached while
    it ran [byte/s]. comm_s: communication [s]. ceilings: the whole machine as calibrated. None where
    unknown: no number is made up for it.
    """

    launch_s: float | None = None
    mem_bytes_per_s: float | None = None
    comm_s: float | None = None
    ceilings: Device | None = None

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """As read meanwhile, or as calibrated [byte/s]."""
        if self.mem_bytes_per_s is not None or self.ceilings is None:
            return self.mem_bytes_per_s
        return self.ceilings.mem_bytes_per_s


@frozen
class Part:
    """One part of the measured time. why: what it is.

    kind: "bound" ("ceiling" at measured ceilings), "measured", "estimate" or "remainder".
    """

    name: str
    time_s: float
    kind: str
    why: str


@frozen
class Suggestion:
    """Something to try, what it would buy at the most by the model [s], and why."""

    what: str
    gain_s: float
    why: str


@frozen
class Comparison:
    """A measured step against its bound [s]. fraction: bound / measured. parts sum to measured_s. tp: devices.

    ceilings: whether the device's own figures are measured ceilings, so that bound_s can be beaten.
    measured_ceiling_s: the bound at the machine's measured ceilings, None where none were given.
    """

    model_name: str
    device_id: str
    step: Step
    tp: int
    measured_s: float
    bound_s: float
    binding: str
    weight_bytes: float
    kv_bytes: float
    parts: tuple[Part, ...]
    suggestions: tuple[Suggestion, ...]
    ceilings: bool = False
    measured_ceiling_s: float | None = None

    @property
    def fraction(self) -> float:
        """Share of the possible speed that was reached."""
        return self.bound_s / self.measured_s

    @property
    def fault(self) -> bool:
        """Whether it is so slow that something is broken."""
        return self.measured_s > FAULT_RATIO * self.bound_s


def compare(
    model: Model, device: Device, step: Step, measured_s: float, tp: int = 1, known: Conditions | None = None
) -> Comparison:
    """Explain a measured step time.

    Raises BelowBound, with the legitimate reasons, for a time below the bound of a datasheet; measured ceilings are no
    bound, and a better kernel than calibration tried may exceed them.
    """
    known = known or Conditions()
    if not 0 < measured_s < float("inf"):
        raise GambrelError(f"a measured time of {measured_s} s; accepted is a positive time")
    ops = step_ops(model, device, step, tp)
    need = demand(ops)
    bound = step_bound(need, device)
    if measured_s < bound.time_s and not device.calibrated:
        raise BelowBound(_below(measured_s, bound.time_s))
    parts = _parts(ops, device, measured_s, known)
    return Comparison(
        model.name,
        device.id,
        step,
        tp,
        measured_s,
        bound.time_s,
        bound.binding,
        need.weight_bytes,
        need.kv_read_bytes + need.kv_write_bytes,
        parts,
        _suggestions(model, device, need, parts),
        device.calibrated,
        step_bound(need, known.ceilings).time_s if known.ceilings else None,
    )


def _figures(device: Device) -> str:
    """Where a device's ceilings come from, in a word."""
    return "calibration" if device.calibrated else "datasheet"


def _below(measured_s: float, bound_s: float) -> str:
    reasons = "; ".join(f"({i}) {reason}" for i, reason in enumerate(LEGITIMATE, 1))
    return (
        f"{measured_s * 1e3:.4g} ms is below the bound of {bound_s * 1e3:.4g} ms: an error, not a good result. "
        f"A correct measurement can be below only if {reasons}. Which is it? "
        "Otherwise the clock did not wait for the device."
    )


def _parts(ops: list[Op], device: Device, measured_s: float, known: Conditions) -> tuple[Part, ...]:
    """Bound first, then what is known to come on top, then the rest."""
    need, rate = demand(ops), device.mem_bytes_per_s
    bound = step_bound(need, device)
    kind, at = ("ceiling", "calibrated") if device.calibrated else ("bound", "datasheet's")
    if bound.binding == "memory":
        parts = [
            Part("weights", need.weight_bytes / rate, kind, f"read once at the {at} bandwidth"),
            Part("KV cache", (need.kv_read_bytes + need.kv_write_bytes) / rate, kind, "read and written once"),
        ]
    else:
        parts = [Part("arithmetic", bound.time_s, kind, f"at the {at} dense peak")]
    parts += _on_top(ops, device, known, bound.limits_s)
    parts = _shrunk(parts, measured_s - sum(part.time_s for part in parts))
    left = measured_s - sum(part.time_s for part in parts)
    if measured_s < bound.time_s:
        parts.append(Part("above the ceilings", left, "remainder", "a better kernel than calibration tried"))
    elif left < 0:
        parts.append(Part("overlap", left, "remainder", "measured parts that ran at the same time as others"))
    parts.append(Part("remainder", max(left, 0.0), "remainder", "what nothing above explains"))
    return tuple(part for part in parts if part.time_s or part.name == "remainder")


def _on_top(ops: list[Op], device: Device, known: Conditions, limits_s: Mapping[str, float]) -> list[Part]:
    parts = _below_datasheet(ops, device, known, limits_s)
    traffic = sum(
        op_bound(op, device).time_s * op.count for op in ops if op.role in ("elementwise", "reduction", "movement")
    )
    parts.append(Part("element-wise traffic", traffic, "estimate", "norms, activations, copies, none of them fused"))
    if known.launch_s is not None:
        parts.append(Part("launches", known.launch_s, "measured", "eager minus graph, or gaps in a profile"))
    if known.comm_s is not None:
        parts.append(Part("communication", known.comm_s, "measured", "between devices"))
    return parts


def _below_datasheet(ops: list[Op], device: Device, known: Conditions, limits_s: Mapping[str, float]) -> list[Part]:
    """What the bound grows by at measured ceilings: first by the bandwidth, then by the peaks."""
    parts, floor, why = [], max(limits_s.values()), "by calibration of this machine"
    reads = why if known.mem_bytes_per_s is None else "by reads in turn with the run"
    rate = known.bandwidth_bytes_per_s
    if rate is not None and rate < device.mem_bytes_per_s:
        slower = max(limits_s["memory"] * device.mem_bytes_per_s / rate, floor) - floor
        parts.append(Part(f"bandwidth below {_figures(device)}", slower, "measured", reads))
        floor = floor + slower
    if known.ceilings is not None:
        slower = max(step_bound(demand(ops), known.ceilings).limits_s["compute"], floor) - floor
        parts.append(Part(f"arithmetic below {_figures(device)}", slower, "measured", why))
    return parts


def _shrunk(parts: list[Part], excess: float) -> list[Part]:
    """Estimates give way where the parts add up to more than was measured (a negative excess)."""
    shrunk = []
    for part in parts:
        if part.kind == "estimate" and excess < 0:
            cut = min(part.time_s, -excess)
            excess += cut
            part = replace(part, time_s=part.time_s - cut, why=f"{part.why}; at most what is left")
        shrunk.append(part)
    return shrunk


def _suggestions(model: Model, device: Device, need: Demand, parts: tuple[Part, ...]) -> tuple[Suggestion, ...]:
    """What to try, ordered by what it would buy at the most, by the same model."""
    by_name = {part.name: part for part in parts}
    found = [*_narrower_bytes(model, device, need), *_narrower_products(device, need)]
    if "launches" in by_name:
        found.append(Suggestion("a captured graph", by_name["launches"].time_s, "one launch for all kernels"))
    if "element-wise traffic" in by_name:
        found.append(
            Suggestion("fused kernels", by_name["element-wise traffic"].time_s, "no activation leaves the chip")
        )
    if by_name["remainder"].time_s > 0:
        why = "launches, kernels below their roof, scheduling: gambrel profile tells them apart"
        found.append(Suggestion("a profile of the step", by_name["remainder"].time_s, why))
    return tuple(sorted((s for s in found if s.gain_s > 0), key=lambda s: -s.gain_s))


def _narrower_bytes(model: Model, device: Device, need: Demand) -> list[Suggestion]:
    """Fewer bytes of weights or cache: what the bound falls by, nothing where it is the arithmetic that binds."""
    stored, kv_bits = 8 * model.weight_bytes() / model.params_total, model.numerics.kv.bits
    now_s = step_bound(need, device).time_s

    def gain(weights: float = 0.0, kv: float = 0.0) -> float:
        fewer = replace(
            need, weight_bytes=need.weight_bytes * (1 - weights), kv_read_bytes=need.kv_read_bytes * (1 - kv)
        )
        return float(now_s - step_bound(fewer, device).time_s)

    found = [
        Suggestion("weights in 8 bit", gain(weights=max(1 - 8 / stored, 0.0)), f"of {stored:.3g} bit now"),
        Suggestion("weights in 4 bit", gain(weights=max(1 - 4.25 / stored, 0.0)), "with group scales, 4.25 bit"),
    ]
    if kv_bits > 8:
        found.append(Suggestion("KV cache in fp8", gain(kv=1 - 8 / kv_bits), f"8 bit of {kv_bits} now"))
    return found


def _narrower_products(device: Device, need: Demand) -> list[Suggestion]:
    """Products in a dtype that this device multiplies faster; dtypes of one peak are one suggestion."""
    now_s, by_peak = step_bound(need, device).time_s, dict[float, list[str]]()
    for dtype, peak in device.peak_flops_per_s.items():
        by_peak.setdefault(peak, []).append(dtype)
    found = []
    for peak, dtypes in by_peak.items():
        name = dtypes[0]
        faster: dict[str, float] = {}
        for dtype, flops in need.flops_by_dtype.items():
            into = name if peak > device.peak(dtype) else dtype
            faster[into] = faster.get(into, 0.0) + flops
        gain_s = float(now_s - step_bound(replace(need, flops_by_dtype=faster), device).time_s)
        what = f"products in {' or '.join(dtypes)}"
        found.append(Suggestion(what, gain_s, "that this device multiplies faster"))
    return found
