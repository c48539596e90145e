"""The report: one model on one device, decode and prefill, what fits, and the crossover, as plain data."""

from __future__ import annotations

from dataclasses import replace

from gambrel.cost.capacity import RESERVE_BYTES, UTILIZATION, Capacity
from gambrel.cost.crossover import Crossover, crossover
from gambrel.cost.parallel import shard
from gambrel.cost.roofline import demand, numerics_for, operators_bound, step_bound
from gambrel.cost.workload import Beside, check_beside, decode_step, prefill_step
from gambrel.model.arch import check_tp, possible_tp
from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gambrel.cost.roofline import Demand
    from gambrel.model.model import Model
    from gambrel.types import Device, Op, Step

DECODE_BATCHES = (1, 8, 64, 256)
CONTEXT_TOKENS = 8192


@frozen
class Options:
    """What to report.

    batches [seq]; contexts [token] of the decode table; prefills [token]. weights: "streamed" (what a step reads) or
    "resident" (every parameter). logits: rows through the head in a prefill, "last" or "all". efficiency: share of
    peak for the prefill estimate. tp: devices that share weights and cache. utilization, reserve_bytes: see capacity.
    source: tokens of an encoder's input, as many as the context by default. media: patches or frames of each prompt.
    """

    batches: tuple[int, ...] = DECODE_BATCHES
    contexts: tuple[int, ...] = (CONTEXT_TOKENS,)
    prefills: tuple[int, ...] = (CONTEXT_TOKENS,)
    weights: str = "streamed"
    logits: str = "last"
    efficiency: float = 0.6
    tp: int = 1
    utilization: float = UTILIZATION
    reserve_bytes: float = RESERVE_BYTES
    source: int | None = None
    media: int = 0

    @property
    def beside(self) -> Beside:
        """What stands beside the text."""
        return Beside(self.source, self.media)

    def __post_init__(self) -> None:
        if self.weights not in ("streamed", "resident"):
            raise GambrelError(f"--weights {self.weights}: accepted is streamed or resident")
        for option, value in (("--efficiency", self.efficiency), ("--utilization", self.utilization)):
            if not 0 < value <= 1:
                raise GambrelError(f"{option} {value}: accepted is a share above 0 and at most 1")


@frozen
class DecodeRow:
    """One decode step, on each of the tp devices; field names carry the units, all SI.

    bound_s reads the least expert weights, expected_bound_s those of uniform routing (equal for dense models).
    tokens_per_s and expected_tokens_per_s are the throughputs at these bounds. kv_bytes are reads. operators_s:
    Σ max(…) over unfused operators. binding, expected_binding: the resource that limits each. missing_bytes: what does
    not fit, 0 where it fits. measured_ceiling_s: bound_s at a machine's measured ceilings, None where none were given.
    """

    batch: int
    context_tokens: int
    flops: float
    weight_bytes: float
    expected_weight_bytes: float
    kv_bytes: float
    kv_write_bytes: float
    intensity_flop_per_byte: float
    memory_s: float
    compute_s: float
    bound_s: float
    expected_bound_s: float
    operators_s: float
    tokens_per_s: float
    expected_tokens_per_s: float
    binding: str
    expected_binding: str
    fits: bool
    missing_bytes: float
    beyond_max_context: bool
    measured_ceiling_s: float | None = None

    @property
    def possible(self) -> bool:
        """Whether it fits and the model was made for such a context."""
        return self.fits and not self.beyond_max_context


@frozen
class PrefillRow:
    """One prefill of one fresh prompt, on each of the tp devices.

    bound_s at peak; estimate_s with the compute time divided by the stated efficiency; operators_s and
    measured_ceiling_s as in DecodeRow.
    """

    tokens: int
    causal: bool
    flops: float
    weight_bytes: float
    memory_s: float
    compute_s: float
    bound_s: float
    estimate_s: float
    efficiency: float
    operators_s: float
    binding: str
    fits: bool
    beyond_max_context: bool
    measured_ceiling_s: float | None = None

    @property
    def possible(self) -> bool:
        """Whether it fits and the model was made for such a context."""
        return self.fits and not self.beyond_max_context


@frozen
class Report:
    """A report as data; gambrel.api.Report prints it.

    fits_with_tp: the fewest devices over which the weights fit, where this many do not hold them; None otherwise.
    ceilings: the machine as calibrated, where bounds at its ceilings stand beside; None otherwise.
    """

    model: Model
    device: Device
    options: Options
    decode: tuple[DecodeRow, ...]
    prefill: tuple[PrefillRow, ...]
    capacity: Capacity
    crossover: Crossover
    fits_with_tp: int | None
    ceilings: Device | None = None


def build_report(model: Model, device: Device, options: Options | None = None) -> Report:
    """Bounds, capacity and crossover of a model on a device. Raises GambrelError for what cannot be."""
    options = options or Options()
    check_tp(model.arch, options.tp)
    check_beside(model, options.beside)
    room = capacity(model, device, options)
    decode = tuple(
        _decode_row(model, device, options, room, batch, context)
        for context in options.contexts
        for batch in options.batches
    )
    masks: tuple[bool, ...] = (True, False)
    lengths = options.prefills
    if model.arch.encodes:  # an encoder has no mask to skip, and its source may have one length alone
        fixed = model.arch.source_tokens
        masks, lengths = (True,), (fixed,) if fixed and lengths else lengths
    prefill = tuple(
        _prefill_row(model, device, options, room, tokens, causal) for tokens in lengths for causal in masks
    )
    crossing = crossover(model, device, options.contexts[0], room)
    enough = smallest_tp(model, device, options) if room.budget_bytes <= 0 else None
    return Report(model, device, options, decode, prefill, room, crossing, enough)


def beside_ceilings(report: Report, ceilings: Device) -> Report:
    """The report with each bound at measured ceilings beside it (see `gambrel calibrate`)."""
    measured = build_report(report.model, ceilings, report.options)
    decode = tuple(
        replace(a, measured_ceiling_s=b.bound_s) for a, b in zip(report.decode, measured.decode, strict=True)
    )
    prefill = tuple(
        replace(a, measured_ceiling_s=b.bound_s) for a, b in zip(report.prefill, measured.prefill, strict=True)
    )
    return replace(report, decode=decode, prefill=prefill, ceilings=ceilings)


def capacity(model: Model, device: Device, options: Options) -> Capacity:
    """The memory of the device, term by term."""
    return Capacity(
        device.usable_bytes,
        options.utilization,
        model.weight_bytes(tp=options.tp),
        options.reserve_bytes,
        model.caches,
        options.tp,
        source_tokens=model.arch.source_tokens or options.source,
    )


def smallest_tp(model: Model, device: Device, options: Options) -> int | None:
    """The fewest devices over which weights and reserve fit, None where no tensor parallelism makes them fit."""
    for tp in possible_tp(model.arch):
        if capacity(model, device, replace(options, tp=tp)).budget_bytes > 0:
            return tp
    return None


def step_ops(model: Model, device: Device, step: Step, tp: int = 1) -> list[Op]:
    """The operators of one step on one of tp devices."""
    return shard(model.ops(step, numerics_for(model.numerics, device)), tp)


def _need(ops: list[Op], device: Device, options: Options, room: Capacity) -> tuple[Demand, float]:
    """The demand of a step, and the time of the weights that it counts but no operator reads [s].

    With resident weights every parameter is read, tables and idle experts included, as a whole copy of the model.
    """
    need = demand(ops)
    if options.weights == "streamed":
        return need, 0.0
    unread = room.weights_bytes - need.weight_bytes
    whole = replace(need, weight_bytes=room.weights_bytes, expected_weight_bytes=room.weights_bytes)
    return whole, unread / device.mem_bytes_per_s


def _decode_row(model: Model, device: Device, options: Options, room: Capacity, batch: int, context: int) -> DecodeRow:
    ops = step_ops(model, device, decode_step(model.arch, batch, context, options.beside), options.tp)
    need, unread_s = _need(ops, device, options, room)
    bound, expected = step_bound(need, device), step_bound(need, device, expected=True)
    missing = room.missing_bytes(batch, context)
    return DecodeRow(
        batch,
        context,
        need.flops,
        need.weight_bytes,
        need.expected_weight_bytes,
        need.kv_read_bytes,
        need.kv_write_bytes,
        need.intensity,
        bound.limits_s["memory"],
        bound.limits_s["compute"],
        bound.time_s,
        expected.time_s,
        operators_bound(ops, device) + unread_s,
        batch / bound.time_s,
        batch / expected.time_s,
        bound.binding,
        expected.binding,
        missing <= 0,
        max(missing, 0),
        _beyond(model, context),
    )


def _prefill_row(
    model: Model, device: Device, options: Options, room: Capacity, tokens: int, causal: bool
) -> PrefillRow:
    step = prefill_step(model.arch, 1, tokens, causal, options.logits, options.beside)
    ops = step_ops(model, device, step, options.tp)
    need, unread_s = _need(ops, device, options, room)
    bound = step_bound(need, device)
    compute, memory = bound.limits_s["compute"], bound.limits_s["memory"]
    return PrefillRow(
        tokens,
        causal,
        need.flops,
        need.weight_bytes,
        memory,
        compute,
        bound.time_s,
        max(compute / options.efficiency, memory),
        options.efficiency,
        operators_bound(ops, device) + unread_s,
        bound.binding,
        room.fits(1, tokens),
        _beyond(model, tokens) if not model.arch.encodes else tokens > (model.arch.max_source_tokens or tokens),
    )


def _beyond(model: Model, tokens: int) -> bool:
    longest = model.arch.max_context
    return longest is not None and tokens > longest
