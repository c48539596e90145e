"""Operators as rows: what each does and moves, how long it takes at the least, and what limits it."""

from __future__ import annotations

from gambrel.cost.roofline import op_bound, op_intensity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gambrel.types import Device, Op


def op_rows(ops: list[Op], device: Device | None) -> list[dict[str, Any]]:
    """One row an operator, costs of one, `count` of them; times and shares only with a device."""
    rows = [_row(op) for op in ops]
    if device is None:
        return rows
    bounds = [op_bound(op, device) for op in ops]
    whole = sum(bound.time_s * op.count for op, bound in zip(ops, bounds, strict=True))
    return [
        {
            **row,
            "bound_s": bound.time_s,
            "total_s": bound.time_s * op.count,
            "share": bound.time_s * op.count / whole,
            "binding": bound.binding,
        }
        for row, op, bound in zip(rows, ops, bounds, strict=True)
    ]


def _row(op: Op) -> dict[str, Any]:
    cost = op.cost
    return {
        "name": op.name,
        "block": op.block,
        "role": op.role,
        "dtype": op.dtype,
        "count": op.count,
        "shape": op.shape,
        "flops": cost.flops,
        "vector_flops": cost.vector_flops,
        "weight_bytes": cost.weight_bytes,
        "expected_weight_bytes": cost.expected_weight_bytes,
        "kv_bytes": cost.kv_read_bytes,
        "kv_write_bytes": cost.kv_write_bytes,
        "act_bytes": cost.act_bytes,
        "intensity_flop_per_byte": op_intensity(op),
    }
