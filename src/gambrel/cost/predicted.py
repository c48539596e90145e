"""What a model's operators should reach, as hollow marks behind those that were measured."""

from __future__ import annotations

from dataclasses import replace

from gambrel.cost.points import _operators
from gambrel.cost.report import step_ops
from gambrel.model.arch import check_tp
from gambrel.types import GambrelError, Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gambrel.model.model import Model
    from gambrel.plots import Point
    from gambrel.types import Device


def predicted_points(
    model: Model, device: Device, queries: Mapping[str, tuple[int, int, int]], tp: int = 1
) -> tuple[Point, ...]:
    """Marks of each phase's step: (B, q, s) sequences, new tokens and keys, as the trace's attention had them.

    Raises GambrelError where the trace tells no such shapes.
    """
    check_tp(model.arch, tp)
    found: list[Point] = []
    for phase, (batch, new_tokens, keys) in queries.items():
        if phase in ("prefill", "decode") and min(batch, new_tokens, keys) >= 1:
            step = Step(batch, new_tokens, max(keys, new_tokens))
            found += _operators(step_ops(model, device, step, tp), device, phase)
    if not found:
        raise GambrelError(
            "the trace does not tell batch, queries and keys of its attention, so MODEL cannot be laid behind it"
        )
    return tuple(replace(point, hollow=True) for point in found)
