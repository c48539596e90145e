"""Lower bounds on time from operators and a device: time >= max(FLOPs / peak, bytes / bandwidth).

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009, doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.types import Bound, Device, Numerics, Op
from gambrel.units import Num, maximum, total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@frozen
class Demand:
    """What one forward pass demands of one device, activations left out (a fused kernel keeps them on chip).

    flops_by_dtype: matrix and attention FLOPs by the dtype that is multiplied. weight_bytes: read at the least;
    expected_weight_bytes: read under uniform expert routing. kv_read_bytes, kv_write_bytes: cache traffic.
    """

    flops_by_dtype: Mapping[str, Num]
    weight_bytes: Num
    expected_weight_bytes: Num
    kv_read_bytes: Num
    kv_write_bytes: Num

    @property
    def flops(self) -> Num:
        """All matrix and attention FLOPs."""
        return total(self.flops_by_dtype.values())

    def bytes(self, expected: bool = False) -> Num:
        """Weights and cache traffic, reads and writes."""
        weights = self.expected_weight_bytes if expected else self.weight_bytes
        return weights + self.kv_read_bytes + self.kv_write_bytes

    @property
    def intensity(self) -> Num:
        """FLOPs per byte of memory traffic [FLOP/byte]."""
        return self.flops / self.bytes()


def demand(ops: Iterable[Op]) -> Demand:
    """The sum over operators, each as often as it occurs."""
    ops = list(ops)
    flops: dict[str, list[Num]] = {}
    for op in ops:
        if not (isinstance(op.cost.flops, int) and op.cost.flops == 0):
            flops.setdefault(op.dtype, []).append(op.cost.flops * op.count)
    return Demand(
        {dtype: total(values) for dtype, values in flops.items()},
        total(op.cost.weight_bytes * op.count for op in ops),
        total(op.cost.expected_weight_bytes * op.count for op in ops),
        total(op.cost.kv_read_bytes * op.count for op in ops),
        total(op.cost.kv_write_bytes * op.count for op in ops),
    )


def step_bound(need: Demand, device: Device, expected: bool = False) -> Bound:
    """max(ΣFLOPs/peak, Σbytes/bandwidth): everything overlaps, each byte moves once.

    expected: read the expected instead of the least expert weights (then it is an expectation, not a bound).
    """
    compute = total(flops / device.peak(dtype) for dtype, flops in need.flops_by_dtype.items())
    memory = need.bytes(expected) / device.mem_bytes_per_s
    return Bound({"compute": compute, "memory": memory}, maximum(compute, memory))


def op_moved_bytes(op: Op) -> Num:
    """Weights, cache and activations of an unfused operator, each once [byte]."""
    return op.cost.weight_bytes + op.cost.kv_bytes + op.cost.act_bytes


def op_bound(op: Op, device: Device) -> Bound:
    """One unfused operator: its FLOPs against the peak, its weights, cache and activations against the bandwidth."""
    compute = op.cost.flops / device.peak(op.dtype) if _has_flops(op) else 0.0
    memory = op_moved_bytes(op) / device.mem_bytes_per_s
    return Bound({"compute": compute, "memory": memory}, maximum(compute, memory), "operator")


def _has_flops(op: Op) -> bool:
    return not (isinstance(op.cost.flops, int) and op.cost.flops == 0)


def operators_bound(ops: Iterable[Op], device: Device) -> Num:
    """Σ max(…) over operators run one after the other, none fused [s]."""
    return total(op_bound(op, device).time_s * op.count for op in ops)


def op_intensity(op: Op) -> Num:
    """FLOPs per byte of an unfused operator, vector operations where it has no others [FLOP/byte]."""
    return (op.cost.flops if _has_flops(op) else op.cost.vector_flops) / op_moved_bytes(op)


def numerics_for(numerics: Numerics, device: Device) -> Numerics:
    """Scores of an fp8 cache are multiplied in fp8 where the device can, else in the base dtype."""
    if numerics.attention == numerics.kv.name and numerics.attention not in device.peak_flops_per_s:
        return replace(numerics, attention=numerics.base.compute)
    return numerics
