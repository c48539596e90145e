"""The marks of a roofline chart, from the operators and steps of a model on a device."""

from __future__ import annotations

from gambrel import units
from gambrel.cost.report import step_ops
from gambrel.cost.roofline import demand, op_bound, op_intensity, op_moved_bytes, step_bound
from gambrel.cost.workload import decode_step, prefill_step
from gambrel.plots import Point, Roof, RooflinePlot
from gambrel.types import Device, GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gambrel.model.model import Model
    from gambrel.types import Op

#: Operators with a smaller share of their phase's time are left out of the chart, but for one norm.
SMALLEST_SHARE = 0.01


@frozen
class Marks:
    """What to mark: decode steps at these batches and this context, one prefill, operators of each, other roofs."""

    batches: tuple[int, ...] = (1, 8, 64)
    context: int = 8192
    prefill: int | None = 8192
    versus: tuple[Device, ...] = ()
    tp: int = 1


def roofline_plot(model: Model, device: Device, marks: Marks) -> RooflinePlot:
    """Prefill and decode of a model under a device's roof; other devices' roofs for comparison."""
    if not marks.batches and marks.prefill is None:
        raise GambrelError("nothing to mark: give --batch or --prefill")
    points: list[Point] = []
    largest = max(marks.batches, default=1)
    if marks.prefill is not None:
        prefill = prefill_step(model.arch, 1, marks.prefill)
        points += _operators(step_ops(model, device, prefill, marks.tp), device, "prefill")
    if marks.batches:
        points += _operators(
            step_ops(model, device, decode_step(model.arch, largest, marks.context), marks.tp), device, "decode"
        )
        points += _steps(model, device, marks)
    main, *others = _dtypes(step_ops(model, device, decode_step(model.arch, 1, marks.context)), device)
    roofs = [_roof(device, main), *(_roof(device, dtype, "same device") for dtype in others)]
    roofs += [_roof(other, main) for other in marks.versus]
    title = f"{model.name} on {device.name}"
    return RooflinePlot(title, _subtitle(marks, largest), tuple(roofs), tuple(points))


def _subtitle(marks: Marks, largest: int) -> str:
    told = []
    if marks.prefill is not None:
        told.append(f"prefill of {units.count(marks.prefill)} tokens")
    if marks.batches:
        told.append(f"decode at {units.count(marks.context)} tokens of context, operators at batch {largest}")
    return "; ".join(told) + "; bounds, no operator fused"


def _roof(device: Device, dtype: str, name: str = "") -> Roof:
    return Roof(name or device.name, dtype, device.peak(dtype), device.mem_bytes_per_s)


def _dtypes(ops: list[Op], device: Device) -> list[str]:
    """The dtypes that are multiplied, the one with the highest roof first; equal roofs once."""
    peaks = {device.peak(dtype): dtype for dtype in demand(ops).flops_by_dtype}
    return [peaks[peak] for peak in sorted(peaks, reverse=True)]


def _operators(ops: list[Op], device: Device, phase: str) -> list[Point]:
    """One mark per kind of operator; equal marks of several layers are merged."""
    times: dict[tuple[str, float], float] = {}
    for op in ops:
        key = (op.name, float(op_intensity(op)))
        times[key] = times.get(key, 0.0) + op_bound(op, device).time_s * op.count
    whole = sum(times.values())
    rates = {(op.name, float(op_intensity(op))): _rate(op, device) for op in ops}
    norm = next((key for key in times if "norm" in key[0]), None)
    return [
        Point(name, phase, intensity, rates[name, intensity], time / whole)
        for (name, intensity), time in times.items()
        if intensity > 0 and (time / whole >= SMALLEST_SHARE or (name, intensity) == norm)
    ]


def _rate(op: Op, device: Device) -> float:
    return float(op_intensity(op) * op_moved_bytes(op) / op_bound(op, device).time_s)


def _steps(model: Model, device: Device, marks: Marks) -> list[Point]:
    """Whole decode steps at growing batch, joined to a path."""
    found = []
    for batch in marks.batches:
        need = demand(step_ops(model, device, decode_step(model.arch, batch, marks.context), marks.tp))
        rate = need.flops / step_bound(need, device).time_s
        found.append(Point(f"step, batch {batch}", "decode", need.intensity, rate, path="decode step"))
    return found
