"""Lower bound on one training step over many devices: arithmetic with its pipeline bubble, and every link.

    L  layers of a stage     m  micro-batches     b·s  tokens of a micro-batch on one device     d  hidden width

Everything overlaps in the bound; nothing does in the sum beside it, which is an estimate of the worst plan. What must
be sent: Shoeybi et al. 2019, arXiv:1909.08053 (tensor parallel); Rajbhandari et al. 2020, arXiv:1910.02054, section 7
(ZeRO); Narayanan et al. 2021, arXiv:2104.04473 (pipeline); Lepikhin et al. 2020, arXiv:2006.16668 (experts).
"""

from __future__ import annotations

from gambrel.cost.footprint import held, stage_parts
from gambrel.cost.parallel import Traffic
from gambrel.cost.training import CONVENTIONS, Work, executed, hidden_width
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from gambrel.cost.footprint import Plan
    from gambrel.cost.parallel import Network

#: Bytes of an activation, a gathered weight and a reduced gradient in 16 bit.
HALF_BYTES = 2


def traffic(plan: Plan) -> list[Traffic]:
    """What one device of the first pipeline stage sends in one step; groups of one device send nothing."""
    rows = (*_tensor(plan), *_context(plan), *_experts(plan), *_pipeline(plan), *_data(plan))
    return [row for row in rows if row.group > 1 and row.payload_bytes]


def _layers(plan: Plan) -> float:
    return plan.model.arch.n_layers / plan.layout.pp


def _stream_bytes(plan: Plan) -> float:
    """The residual stream of all micro-batches of one step on one device, before tensor parallelism divides it."""
    return plan.micro_batches * plan.tokens * hidden_width(plan.model) * HALF_BYTES


def _tensor(plan: Plan) -> Iterator[Traffic]:
    """Four all-reduces of the stream a layer, two forward and two backward; two more where it is recomputed.

    With sequence parallelism each is a reduce-scatter and an all-gather of the same bytes.
    """
    times = 4 + 2 * plan.recompute.layers
    layout = plan.layout
    yield Traffic("tensor parallel", "all-reduce", times * _layers(plan) * _stream_bytes(plan), layout.tp, layout.tp)


def _context(plan: Plan) -> Iterator[Traffic]:
    """Keys and values of the whole sequence gathered forward and backward, their gradients scattered."""
    layout, model = plan.layout, plan.model
    whole = plan.micro_batches * plan.micro_batch * plan.seq_tokens
    elements = sum(cache.bytes_per_token * count for cache, count in model.caches) / model.numerics.kv.element_bytes
    payload = 3 * whole * elements / layout.pp / layout.tp * HALF_BYTES
    yield Traffic("context parallel", "all-gather", payload, layout.cp, layout.tp * layout.cp)


def _experts(plan: Plan) -> Iterator[Traffic]:
    """Tokens dealt to experts and back, forward and backward: four all-to-alls of k copies of each token a layer."""
    layout, copies = plan.layout, 0.0
    for part, times in stage_parts(plan, 0):
        mixture: Any = part
        if hasattr(mixture, "n_experts") and hasattr(mixture, "top_k"):
            copies += times * mixture.top_k
    payload = 4 * copies * _stream_bytes(plan) / (layout.tp if layout.sequence_parallel else 1)
    yield Traffic("expert parallel", "all-to-all", payload, layout.ep, layout.tp * layout.ep)


def _pipeline(plan: Plan) -> Iterator[Traffic]:
    """The stream to the next stage and its gradient back, at the end of each chunk of layers."""
    layout = plan.layout
    payload = layout.virtual * _stream_bytes(plan) / (layout.tp if layout.sequence_parallel else 1)
    yield Traffic("pipeline", "send", payload, layout.pp, layout.devices)


def _data(plan: Plan) -> Iterator[Traffic]:
    """Gradients reduced once a step; ZeRO-1 and 2 gather new weights once; ZeRO-3 gathers them twice a micro-batch.

    ZeRO-3 reduces the gradients of each micro-batch. Gradients and weights travel in 16 bit.
    """
    trained: dict[int, float] = {}
    whole: dict[int, float] = {}
    for part in held(plan, 0):
        whole[part.replicas] = whole.get(part.replicas, 0) + part.elements * HALF_BYTES
        if part.trained:
            trained[part.replicas] = trained.get(part.replicas, 0) + part.elements * HALF_BYTES
    for replicas, size in whole.items():
        grads, span = trained.get(replicas, 0), plan.layout.devices // plan.layout.pp
        if plan.zero == 0:
            yield Traffic("data parallel", "all-reduce", grads, replicas, span)
        elif plan.zero < 3:
            yield Traffic("data parallel", "reduce-scatter", grads, replicas, span)
            yield Traffic("data parallel", "all-gather", grads, replicas, span)
        else:
            yield Traffic("data parallel", "reduce-scatter", plan.micro_batches * grads, replicas, span)
            yield Traffic("data parallel", "all-gather", 2 * plan.micro_batches * size, replicas, span)


@frozen
class StepBound:
    """A lower bound on one step [s] and what it follows from.

    tokens: of the step, on all devices. compute_s: executed FLOPs at peak. bubble: idle share of the pipeline on top of
    it. limits_s: seconds by resource ("compute" with the bubble, each link). bound_s: the largest of them. serial_s:
    their sum, nothing overlapped (an estimate). mfu_ceiling: MFU at the bound; mfu_serial: at the sum.
    """

    tokens: float
    compute_s: float
    bubble: float
    limits_s: Mapping[str, float]
    bound_s: float
    serial_s: float
    mfu_ceiling: float
    mfu_serial: float

    @property
    def binding(self) -> str:
        """The resource that limits."""
        return max(self.limits_s, key=lambda name: self.limits_s[name])


def step_bound(plan: Plan, peak_flops_per_s: float, network: Network, mtp: int = 0) -> StepBound:
    """max(arithmetic · (1 + bubble), bytes / rate of each link); FLOPs by the exact convention."""
    layout = plan.layout
    work = Work(plan.model, plan.seq_tokens, 1, None, mtp, plan.attention)
    rule = CONVENTIONS["exact"]
    done = executed(work, rule, plan.recompute)
    tokens = layout.dp * plan.micro_batches * plan.micro_batch * plan.seq_tokens
    rate = layout.devices * peak_flops_per_s
    spared = rule.count(work).weights / 3 if plan.adapter is not None else 0  # frozen: no gradients of weights
    compute_s = tokens * (done.flops - spared) / rate
    bubble = layout.bubble(plan.micro_batches)
    limits = {"compute": compute_s * (1 + bubble)}
    for row in traffic(plan):
        name = network.link(row.span)[0]
        limits[name] = limits.get(name, 0) + network.time_s(row)
    bound_s, serial_s = max(limits.values()), sum(limits.values())
    model_s = tokens * (done.model - spared) / rate
    return StepBound(tokens, compute_s, bubble, limits, bound_s, serial_s, model_s / bound_s, model_s / serial_s)
