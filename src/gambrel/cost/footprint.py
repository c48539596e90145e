"""Memory of one device in training: parameters, gradients, optimizer state, activations, loss, buffers.

What ZeRO, tensor, pipeline, context and expert parallelism, recomputation and LoRA divide or leave out. Every number is
an estimate of what must be there at the fullest moment, the end of a forward pass; allocator, libraries and
fragmentation come on top. Source: Rajbhandari et al. 2020, arXiv:1910.02054; Korthikanti et al. 2022, arXiv:2205.05198.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.cost.activations import FP32_BYTES, Kept, Term, layer_terms
from gambrel.cost.capacity import UTILIZATION
from gambrel.cost.parallel import Layout
from gambrel.cost.training import Recompute, hidden_width, recompute
from gambrel.model.parts import Linear
from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from gambrel.model.arch import Block
    from gambrel.model.model import Model
    from gambrel.model.parts import Part
    from gambrel.types import Tensor


# Optimizers -----------------------------------------------------------------------------------


@frozen
class Optimizer:
    """Bytes that each trained parameter takes: itself, its gradient, a master copy, and state.

    matrix_state_bytes: state of a layer's matrix where the optimizer treats it apart; None as all others.
    """

    name: str
    param_bytes: float
    grad_bytes: float
    master_bytes: float
    state_bytes: float
    source: str
    matrix_state_bytes: float | None = None


#: Bytes of 8-bit state with one fp32 scale for 256 elements, two moments. Source: bitsandbytes, blocksize 256.
EIGHT_BIT = 2 * (1 + FP32_BYTES / 256)
OPTIMIZERS = {
    row.name: row
    for row in (
        Optimizer("adamw", 2, 2, 4, 8, "bf16 with an fp32 master copy: Rajbhandari et al. 2020, arXiv:1910.02054, 3.1"),
        Optimizer("adamw-fp32", 4, 4, 0, 8, "fp32 weights and gradients, bf16 while gathered: FSDP2, torchtitan"),
        Optimizer("adamw-bf16", 2, 2, 0, 4, "weights, gradients and both moments in bf16"),
        Optimizer("adamw-8bit", 2, 2, 0, EIGHT_BIT, "two 8-bit moments: Dettmers et al. 2022, arXiv:2110.02861"),
        Optimizer("muon", 2, 2, 4, 8, "one fp32 momentum for a layer's matrix, AdamW for the rest: Jordan 2024", 4),
        Optimizer("sgd", 2, 2, 4, 0, "bf16 with an fp32 master copy, no momentum"),
        Optimizer("sgd-momentum", 2, 2, 4, 4, "bf16 with an fp32 master copy and momentum"),
    )
}


def optimizer(name: str) -> Optimizer:
    """An optimizer by name. Raises GambrelError that lists them."""
    if name not in OPTIMIZERS:
        raise GambrelError(f"--optimizer {name}: accepted is {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


#: Bytes of one weight in NF4 with its scales quantised again. Source: Dettmers et al. 2023, arXiv:2305.14314.
NF4_BYTES = (4 + 0.127) / 8


@frozen
class Adapter:
    """LoRA: matrices of this rank beside every matrix of the layers (experts left out); the base stays frozen.

    quantised: the base in NF4 (QLoRA). Source: Hu et al. 2021, arXiv:2106.09685.
    """

    rank: int
    quantised: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise GambrelError(f"--lora {self.rank}: accepted is a rank from 1")


# What is asked --------------------------------------------------------------------------------


@frozen
class Plan:
    """How a model is trained on many devices.

    seq_tokens: of a sequence. micro_batch: sequences that one device takes at once. micro_batches: how many of them one
    step takes on each pipeline. zero: what is divided among replicas: 0 nothing, 1 optimizer state, 2 gradients too,
    3 parameters too (FSDP). attention, kernels: see activations.Kept. chunked_loss: logits are never there as a whole.
    """

    model: Model
    seq_tokens: int = 8192
    micro_batch: int = 1
    micro_batches: int = 1
    layout: Layout = Layout()
    zero: int = 0
    recompute: Recompute = Recompute()
    optimizer: Optimizer = OPTIMIZERS["adamw"]
    attention: str = "flash"
    kernels: str = "fused"
    adapter: Adapter | None = None
    chunked_loss: bool = False

    def __post_init__(self) -> None:
        if self.zero not in (0, 1, 2, 3):
            raise GambrelError(f"--zero {self.zero}: accepted is 0, 1, 2 or 3")
        if self.layout.pp > self.model.arch.n_layers:
            raise GambrelError(f"--pp {self.layout.pp} is more stages than {self.model.arch.n_layers} layers")

    @property
    def kept(self) -> Kept:
        """How activations are kept: in 16 bit."""
        return Kept(2, self.attention, self.kernels)

    @property
    def tokens(self) -> float:
        """Tokens of one micro-batch on one device."""
        return self.micro_batch * self.seq_tokens / self.layout.cp


# Weights --------------------------------------------------------------------------------------


@frozen
class Held:
    """Elements on one device before ZeRO: dense and of experts, trained or frozen; matrices of layers apart.

    replicas: devices over which ZeRO divides them.
    """

    elements: float
    replicas: int
    trained: bool = True
    matrix: bool = False


def _local(tensor: Tensor, layout: Layout) -> float:
    """Elements of a tensor on one of tp (and, for experts, ep) devices."""
    ways = layout.tp if tensor.ways is None else min(layout.tp, tensor.ways)
    experts = layout.ep if tensor.used != (1, 1) else 1
    return tensor.params * tensor.copies / ways / experts


def stage_parts(plan: Plan, stage: int) -> Iterator[tuple[Part, float]]:
    """Parts of a pipeline stage with how often each occurs: layers of every kind spread evenly over the stages."""
    arch, pp = plan.model.arch, plan.layout.pp
    for block in arch.blocks:
        for part in block.parts:
            yield part, block.count / pp
    if stage == 0:
        for part in (*arch.first, *arch.extras):
            yield part, 1
    if stage == pp - 1:
        for part in arch.last:
            yield part, 1
        if pp > 1:  # a tied table is needed at both ends
            for part in arch.first:
                if getattr(part, "tied", False):
                    yield part, 1


def stage_blocks(plan: Plan, stage: int) -> Iterator[tuple[Block, float]]:
    """Layers of a stage with how often each kind occurs, in units of the decoder's tokens.

    An encoder runs on the first stage, over a source of as many tokens or of the length that it always has.
    """
    arch = plan.model.arch
    for block in arch.blocks:
        yield block, block.count / plan.layout.pp
    for part in arch.extras if stage == 0 else ():
        if getattr(part, "over", "") == "source":
            encoder: Any = part
            for block in encoder.blocks:
                yield block, block.count * (arch.source_tokens or plan.seq_tokens) / plan.seq_tokens


def held(plan: Plan, stage: int) -> list[Held]:
    """Everything that a device of a stage holds, adapters included."""
    layout, frozen_base, found = plan.layout, plan.adapter is not None, []
    for part, times in stage_parts(plan, stage):
        for tensor in part.tensors():
            replicas = layout.replicas // (layout.ep if tensor.used != (1, 1) else 1)
            matrix = tensor.gemm and tensor.group not in ("embedding", "head")
            found.append(Held(_local(tensor, layout) * times, replicas, not frozen_base, matrix))
        if plan.adapter is not None:
            size = sum(plan.adapter.rank * (m.n_in + m.n_out) for m in _adapted(part))
            found.append(Held(size * times / layout.tp, layout.replicas, True, True))
    return found


def _adapted(part: Part) -> Iterator[Linear]:
    """Matrices of a layer's part that get an adapter: all of attention and of a feed-forward, none of experts."""
    if hasattr(part, "linear") or hasattr(part, "n_experts"):
        return
    if isinstance(part, Linear):
        yield part
        return
    for value in vars(part).values():
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Linear):
                yield inner


# The footprint --------------------------------------------------------------------------------


@frozen
class Footprint:
    """Memory of the fullest device, by kind [byte]. stage: its pipeline stage. in_flight: micro-batches it keeps."""

    stage: int
    in_flight: float
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    loss_bytes: float
    buffers_bytes: float

    @property
    def kinds(self) -> dict[str, float]:
        """Bytes by kind, in order."""
        names = ("parameters", "gradients", "optimizer", "activations", "loss", "buffers")
        return {name: getattr(self, f"{name}_bytes") for name in names}

    @property
    def total_bytes(self) -> float:
        """All kinds together."""
        return sum(self.kinds.values())


def footprint(plan: Plan) -> Footprint:
    """Memory of the fullest pipeline stage."""
    stages = {0, plan.layout.pp - 1}
    return max((_stage(plan, stage) for stage in sorted(stages)), key=lambda each: each.total_bytes)


def _stage(plan: Plan, stage: int) -> Footprint:
    parts, rule, zero = held(plan, stage), plan.optimizer, plan.zero
    base = NF4_BYTES if plan.adapter and plan.adapter.quantised else 2
    params = sum(_divided(h, zero >= 3) * (rule.param_bytes if h.trained else base) for h in parts)
    grads = sum(_divided(h, zero >= 2) * rule.grad_bytes for h in parts if h.trained)
    state = sum(_divided(h, zero >= 1) * _state_bytes(rule, h) for h in parts if h.trained)
    in_flight = plan.layout.in_flight(stage, plan.micro_batches)
    return Footprint(
        stage,
        in_flight,
        params,
        grads,
        state,
        in_flight * sum(times * kept_bytes(block, plan) for block, times in stage_blocks(plan, stage)),
        loss_bytes(plan) if stage == plan.layout.pp - 1 else 0.0,
        buffers_bytes(plan),
    )


def _divided(part: Held, by_replicas: bool) -> float:
    return part.elements / (part.replicas if by_replicas else 1)


def _state_bytes(rule: Optimizer, part: Held) -> float:
    apart = rule.matrix_state_bytes
    return rule.master_bytes + (apart if apart is not None and part.matrix else rule.state_bytes)


def term_bytes(term: Term, plan: Plan) -> float:
    """Bytes of one tensor that one device keeps for one layer and micro-batch."""
    layout = plan.layout
    ways = min(layout.tp, term.ways) if term.ways else layout.tp
    split = ways if term.split else layout.tp if layout.sequence_parallel else 1
    return term.total_bytes(plan.tokens, plan.tokens * plan.seq_tokens) / split


def layer_bytes(block: Block, plan: Plan) -> float:
    """Everything that the backward pass of one layer needs, nothing recomputed."""
    return sum(term_bytes(term, plan) for term in terms(block, plan))


def terms(block: Block, plan: Plan) -> list[Term]:
    """The tensors of one layer, those of adapters included (their inner vectors; their inputs are there anyway)."""
    found = layer_terms(block, plan.kept, plan.model.numerics)
    if plan.adapter is not None:
        inner = plan.adapter.rank * sum(1 for part in block.parts for _ in _adapted(part))
        found = [*found, Term("inside adapters", inner, bytes=plan.kept.element_bytes)]
    return found


def kept_bytes(block: Block, plan: Plan) -> float:
    """What one layer keeps between forward and backward under the plan's recomputation.

    A recomputed layer keeps its input alone, 2sbh (divided by t with sequence parallelism).
    """
    again = plan.recompute
    found = [term for term in terms(block, plan) if not (again.scores and term.scores)]
    whole = sum(term_bytes(term, plan) for term in found)
    entry = term_bytes(Term("input of the layer", hidden_width(plan.model), bytes=plan.kept.element_bytes), plan)
    return again.layers * entry + (1 - again.layers) * whole


def loss_bytes(plan: Plan) -> float:
    """Logits at the fullest moment: in 16 bit, in fp32, and their log-softmax (as many again in the backward pass).

    b·s·V·(a + 4 + 4) bytes for a bytes an activation; with a chunked loss only one logsumexp a token.
    """
    vocab = _vocabulary(plan.model)
    if plan.chunked_loss:
        return plan.tokens * FP32_BYTES
    return plan.tokens * vocab * (plan.kept.element_bytes + 2 * FP32_BYTES) / plan.layout.tp


def _vocabulary(model: Model) -> int:
    return int(next(part.linear.n_out for part in model.arch.last if hasattr(part, "linear")))


def buffers_bytes(plan: Plan) -> float:
    """What is there for a moment: a layer that is recomputed, and the layers that ZeRO-3 has gathered.

    ZeRO-3 holds the layer that runs and the next in 16 bit, and the whole gradient of one. Recomputation holds
    everything that one layer needs (the scores alone where only they are recomputed).
    """
    blocks = plan.model.arch.blocks
    again = plan.recompute
    working = 0.0
    if again.layers:
        working = max(layer_bytes(block, plan) - kept_bytes(block, replace(plan, recompute=FULL)) for block in blocks)
    elif again.scores:
        working = max(layer_bytes(block, plan) - kept_bytes(block, plan) for block in blocks)
    if plan.zero < 3 or plan.layout.replicas == 1:
        return working
    largest = max(sum(_local(t, plan.layout) for part in block.parts for t in part.tensors()) for block in blocks)
    return working + largest * (2 * 2 + (0 if plan.adapter else plan.optimizer.grad_bytes))


FULL = recompute("full")


# Does it fit ----------------------------------------------------------------------------------

#: The largest micro-batch that is looked for.
MOST = 4096


def fits(plan: Plan, usable_bytes: float, utilization: float = UTILIZATION) -> bool:
    """Whether the fullest device has room."""
    return footprint(plan).total_bytes <= usable_bytes * utilization


def largest_micro_batch(plan: Plan, usable_bytes: float, utilization: float = UTILIZATION) -> int:
    """The largest micro-batch that fits; 0 where none does."""
    low, high = 0, MOST
    while low < high:
        middle = (low + high + 1) // 2
        if fits(replace(plan, micro_batch=middle), usable_bytes, utilization):
            low = middle
        else:
            high = middle - 1
    return low


@frozen
class Change:
    """One thing to change, the memory it leads to at a micro-batch of 1 [byte], and whether that fits."""

    what: str
    total_bytes: float
    fits: bool


def changes(plan: Plan, usable_bytes: float, utilization: float = UTILIZATION) -> list[Change]:
    """What to change so that a micro-batch of 1 fits: what is enough first, in order of effort.

    Of the degrees of tensor and pipeline parallelism only the smallest that is enough.
    """
    found: list[Change] = []
    plan = replace(plan, micro_batch=1)
    now = footprint(plan).total_bytes
    for what, other in _options(plan):
        size = footprint(other).total_bytes
        if size > 0.99 * now:
            continue
        if not any(change.fits and change.what.split()[0] == what.split()[0] in ("--tp", "--pp") for change in found):
            found.append(Change(what, size, size <= usable_bytes * utilization))
    return sorted(found, key=lambda change: not change.fits)


def _options(plan: Plan) -> Iterable[tuple[str, Plan]]:
    """Single changes from the least effort on, and the strongest two together."""
    full = replace(plan, recompute=FULL)
    yield "--recompute full", full
    if plan.zero < 3 and plan.layout.replicas > 1:
        yield "--zero 3", replace(plan, zero=3)
        yield "--zero 3 --recompute full", replace(full, zero=3)
    if plan.optimizer.name != "adamw-8bit" and plan.adapter is None:
        yield "--optimizer adamw-8bit", replace(plan, optimizer=OPTIMIZERS["adamw-8bit"])
    if plan.attention == "materialised":
        yield "--attention flash", replace(plan, attention="flash")
    if not plan.chunked_loss:
        yield "--loss chunked", replace(plan, chunked_loss=True)
    if plan.adapter is None:
        yield "--lora 16", replace(plan, adapter=Adapter(16))
    elif not plan.adapter.quantised:
        yield "--qlora", replace(plan, adapter=replace(plan.adapter, quantised=True))
    for name, most in (("tp", plan.model.arch.n_heads), ("pp", plan.model.arch.n_layers)):
        wider = getattr(plan.layout, name) * 2
        while wider <= min(most, 64):
            yield f"--{name} {wider}", replace(plan, layout=replace(plan.layout, **{name: wider}))
            wider *= 2
    if plan.layout.cp * 2 <= plan.seq_tokens:
        yield f"--cp {plan.layout.cp * 2}", replace(plan, layout=replace(plan.layout, cp=plan.layout.cp * 2))
