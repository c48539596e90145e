"""The bounds of a served level: a decode step of all clients together, and the prefill of one prompt."""

from __future__ import annotations

from gambrel.cost.compare import BelowBound, compare
from gambrel.cost.report import step_ops
from gambrel.cost.roofline import demand, step_bound
from gambrel.cost.workload import decode_step, prefill_step
from gambrel.model.arch import check_tp
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gambrel.model.model import Model
    from gambrel.types import Device


@frozen
class Served:
    """What was measured at a level. cached_tokens: of a prompt, which the server did not compute anew.

    tpot_s, ttft_s: medians; None where there is none, or where caches make it unfit.
    """

    concurrency: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tpot_s: float | None
    ttft_s: float | None


@frozen
class ServedBounds:
    """Bounds of a level, and the share of the possible speed that was reached: bound / measured, None without it.

    context_tokens: of the decode step, prompt + output / 2. note: why there is no fraction. errors: measured times
    below their bounds.
    """

    context_tokens: int
    decode_bound_s: float
    decode_binding: str
    decode_fraction: float | None
    prefill_bound_s: float
    prefill_binding: str
    prefill_fraction: float | None
    note: str
    errors: tuple[str, ...]


def served_bounds(model: Model, device: Device, tp: int, seen: Served) -> ServedBounds:
    """The bounds at batch = concurrency. A server may decode fewer together, so a TPOT between its bound at batch 1 and
    at the concurrency is no error and gives no fraction; one below both is.
    """
    check_tp(model.arch, tp)
    context = seen.prompt_tokens + seen.output_tokens // 2
    prompt = prefill_step(model.arch, 1, max(seen.prompt_tokens - seen.cached_tokens, 1))
    errors, note, fractions = [], "", []
    bounds = []
    for step, measured_s, least in (
        (decode_step(model.arch, seen.concurrency, context), seen.tpot_s, decode_step(model.arch, 1, context)),
        (prompt, seen.ttft_s, prompt),
    ):
        bound = step_bound(demand(step_ops(model, device, step, tp)), device)
        fraction = None
        if measured_s is not None and measured_s >= bound.time_s:
            fraction = bound.time_s / measured_s
        elif measured_s is not None:
            try:
                compare(model, device, least, measured_s, tp)
                note = f"TPOT is below the bound of {seen.concurrency} together: the server decodes fewer at a time"
            except BelowBound as error:
                errors.append(f"{'TTFT' if step is prompt else 'TPOT'} at {seen.concurrency} clients: {error}")
        bounds.append(bound)
        fractions.append(fraction)
    decode, prefill = bounds
    return ServedBounds(
        context,
        decode.time_s,
        decode.binding,
        fractions[0],
        prefill.time_s,
        prefill.binding,
        fractions[1],
        note,
        tuple(errors),
    )
