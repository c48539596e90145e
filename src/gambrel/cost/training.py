"""FLOPs of training: forward and backward from operators, and every convention by which people report them.

    N  parameters that a token uses (of experts, the k that it is routed to)     D  tokens
    L  layers     H  query heads     Q  width of a head     d  hidden width     T  tokens of a sequence

A product of the forward pass has two of its size in the backward pass, for the gradients of its input and its weight:
a GEMM costs three times its forward FLOPs; attention too, where its scores are stored. A gather (the embedding) has
none. Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1.
"""

from __future__ import annotations

from gambrel.types import GambrelError, Op, Step
from gambrel.units import Num, total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from gambrel.model.arch import Arch, Block
    from gambrel.model.model import Model
    from gambrel.model.parts import Part

SEQ_TOKENS = 8192
ATTENTIONS = ("flash", "materialised")
#: Recomputation that FLOPs and memory know; "every:N" recomputes one layer in N.
RECOMPUTES = ("none", "selective", "full", "every:N")


@frozen
class Work:
    """What is trained, and on sequences of what length.

    seq_tokens: tokens of a sequence. batch: sequences. doc_tokens: where attention stays within documents of this
    length that are packed into a sequence (document masking); None where it spans the sequence. mtp: depth of
    multi-token prediction that is trained too: each adds a layer like the last, a 2d x d projection and the output
    head. attention: "flash" (scores computed again in the backward pass) or "materialised".
    """

    model: Model
    seq_tokens: int = SEQ_TOKENS
    batch: int = 1
    doc_tokens: int | None = None
    mtp: int = 0
    attention: str = "flash"

    def __post_init__(self) -> None:
        if self.attention not in ATTENTIONS:
            raise GambrelError(f"--attention {self.attention}: accepted is {' or '.join(ATTENTIONS)}")
        if self.doc_tokens is not None and not 1 <= self.doc_tokens <= self.seq_tokens:
            raise GambrelError(f"--doc {self.doc_tokens}: accepted is 1 to the {self.seq_tokens} tokens of a sequence")

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.batch * self.seq_tokens

    def step(self, causal: bool = True) -> Step:
        """The forward pass: every row through the output head, documents as sequences of their own."""
        arch, whole = self.model.arch, self.seq_tokens
        doc = whole if self.doc_tokens is None or not causal else self.doc_tokens
        step = _pass(arch, self.batch * (whole // doc), doc, causal)
        return step + _pass(arch, self.batch, whole % doc, causal) if whole % doc else step

    def ops(self, causal: bool = True) -> list[Op]:
        """Every operator of the forward pass, those of multi-token prediction among them."""
        step = self.step(causal)
        return [*self.model.ops(step), *self._prediction(step)]

    def _prediction(self, step: Step) -> Iterator[Op]:
        if not self.mtp:
            return
        arch, numerics = self.model.arch, self.model.numerics
        from dataclasses import replace

        from gambrel.model.parts import Linear

        d = hidden_width(self.model)
        joined = Linear("eh_proj", "mtp", 2 * d, d, numerics.base)
        for part in (*arch.blocks[-1].parts, *arch.last, joined):
            for op in part.ops(step, numerics):
                yield replace(op, count=op.count * self.mtp, block="multi-token prediction")


def _pass(arch: Arch, batch: int, tokens: int, causal: bool) -> Step:
    """A forward pass over whole sequences; an encoder-decoder's source is as long as its target, or fixed."""
    source = (arch.source_tokens or tokens) if arch.encodes else 0
    return Step(batch, tokens, tokens, causal, "all", source, source > 0)


def hidden_width(model: Model) -> int:
    """Width of the residual stream, d, as the output head takes it in."""
    return int(next(part.linear.n_in for part in model.arch.last if hasattr(part, "linear")))


def is_softmax(op: Op) -> bool:
    """Whether an operator is attention with softmax, unlike a recurrence, which has the same role."""
    return op.role == "attention" and "attention" in op.name


def routers(model: Model) -> set[str]:
    """Names of the matrices that choose experts."""
    return {t.name for t in model.tensors if t.group == "router"}


def _flops(ops: Iterable[Op]) -> Num:
    return total(op.cost.flops * op.count for op in ops)


# Conventions ----------------------------------------------------------------------------------


@frozen
class Count:
    """Training FLOPs of one token without recomputation: of weights, and of attention that depends on the length."""

    weights: float
    attention: float = 0

    @property
    def flops(self) -> float:
        """Both."""
        return self.weights + self.attention


@frozen
class Convention:
    """One way of counting the FLOPs of a token: its name, formula and source for people, and the count itself."""

    name: str
    formula: str
    source: str
    count: Callable[[Work], Count]


def _all_keys(work: Work) -> float:
    """12·L·H·Q·T: attention of every query with every key, windows and masks left out, per token."""
    return float(3 * _flops(op for op in work.ops(causal=False) if is_softmax(op)) / work.tokens)


def _six_n(work: Work) -> Count:
    return Count(6 * work.model.params_active)


def _without_embedding(work: Work) -> int:
    """N without the input embedding and learned positions; a tied table stays, for it is the output head's matrix."""
    left_out = sum(t.params * t.copies for t in work.model.tensors if t.group == "embedding" and not t.gemm)
    return work.model.params_active - left_out


def _palm(work: Work) -> Count:
    return Count(6 * work.model.params_active, _all_keys(work))


def _torchtitan(work: Work) -> Count:
    return Count(6 * _without_embedding(work), _all_keys(work))


def _llm_foundry(work: Work) -> Count:
    arch = work.model.arch
    return Count(6 * work.model.params_active, 12 * arch.n_layers * hidden_width(work.model) * work.seq_tokens)


def _megatron(work: Work, causal: bool = False) -> Count:
    left_out = routers(work.model)
    ops = [op for op in work.ops(causal) if op.name not in left_out]
    weights = _flops(op for op in ops if not is_softmax(op))
    return Count(3 * weights / work.tokens, 3 * _flops(op for op in ops if is_softmax(op)) / work.tokens)


def _exact(work: Work) -> Count:
    ops = work.ops()
    weights = _flops(op for op in ops if not is_softmax(op))
    return Count(3 * weights / work.tokens, 3 * _flops(op for op in ops if is_softmax(op)) / work.tokens)


CONVENTIONS = {
    row.name: row
    for row in (
        Convention(
            "exact",
            "3 x forward FLOPs of this model's operators: causal scores, routed experts, router, output head",
            "gambrel docs/training.md",
            _exact,
        ),
        Convention("6n", "6 N, N all parameters that a token uses", "Kaplan et al. 2020, arXiv:2001.08361", _six_n),
        Convention(
            "6n-no-embedding",
            "6 N, N without the input embedding and learned positions",
            "Kaplan et al. 2020, arXiv:2001.08361, table 1 (which leaves the output head out too)",
            lambda work: Count(6 * _without_embedding(work)),
        ),
        Convention(
            "palm",
            "6 N + 12 L H Q T, N all parameters that a token uses, every key",
            "Chowdhery et al. 2022, arXiv:2204.02311, appendix B",
            _palm,
        ),
        Convention(
            "megatron",
            "3 x forward FLOPs of the matrices and the output head (no router), every key: "
            "72 L d^2 (1 + T/6d + V/12Ld) for a GELU layer with d_ff = 4d",
            "Narayanan et al. 2021, arXiv:2104.04473, equation 3, without its recomputation",
            _megatron,
        ),
        Convention(
            "megatron-bridge",
            "3 x forward FLOPs of the matrices and the output head (no router), half of the keys, windows exact",
            "NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/training/utils/flop_utils.py",
            lambda work: _megatron(work, causal=True),
        ),
        Convention(
            "torchtitan",
            "6 (N - N_embedding) + 12 L H Q T, every key",
            "pytorch/torchtitan torchtitan/models/utils.py, get_dense_model_nparams_and_flops",
            _torchtitan,
        ),
        Convention(
            "llm-foundry",
            "6 N + 12 L d T, N all parameters that a token uses, every key",
            "mosaicml/llm-foundry scripts/train/benchmarking/README.md",
            _llm_foundry,
        ),
    )
}


def convention(name: str) -> Convention:
    """A convention by name. Raises GambrelError that lists them."""
    if name not in CONVENTIONS:
        raise GambrelError(f"--convention {name}: accepted is all, {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]


# Recomputation --------------------------------------------------------------------------------


@frozen
class Recompute:
    """What the backward pass computes again instead of keeping.

    layers: share of layers whose whole forward pass is repeated (1 for "full", 1/N for "every:N"). scores: the rest
    repeats attention from its queries, keys and values, nothing else ("selective").
    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 5.
    """

    name: str = "none"
    layers: float = 0.0
    scores: bool = False


def recompute(text: str) -> Recompute:
    """none, selective, full or every:N. Raises GambrelError for anything else."""
    if text in ("none", "selective", "full"):
        return Recompute(text, float(text == "full"), text == "selective")
    kind, _, number = text.partition(":")
    if kind == "every" and number.isdecimal() and int(number) > 0:
        return Recompute(text, 1 / int(number))
    raise GambrelError(f"--recompute {text}: accepted is {', '.join(RECOMPUTES)}")


@frozen
class Executed:
    """FLOPs of one token that the hardware executes: those of the model, and those done again.

    model: 3 x forward. layers: forward passes of recomputed layers. scores: attention repeated by "selective", or
    within the backward pass of a FlashAttention kernel.
    """

    model: float
    layers: float
    scores: float

    @property
    def flops(self) -> float:
        """All of them."""
        return self.model + self.layers + self.scores


def executed(work: Work, rule: Convention, again: Recompute) -> Executed:
    """What a convention counts under recomputation.

    A formula counts a forward pass as a third of its FLOPs, so full recomputation is 4/3 of it (8N). The exact count
    repeats the layers alone, without the output head, and knows FlashAttention's second QK^T; where a layer is
    recomputed, its attention kernel runs forward twice.
    """
    count = rule.count(work)
    if rule.name != "exact":
        return Executed(
            count.flops,
            again.layers * count.flops / 3,
            count.attention / 3 if again.scores else 0,
        )
    ops = work.ops()
    inner = [op for op in ops if op.block not in ("embedding", "head", "beside the text")]
    layers = again.layers * _flops(inner) / work.tokens
    scores = count.attention / 3 if again.scores and work.attention == "materialised" else 0
    return Executed(count.flops, layers, scores + (_flash_again(work) if work.attention == "flash" else 0))


def _flash_again(work: Work) -> float:
    """QK^T that a FlashAttention kernel computes again in its backward pass, per token [FLOP].

    Five products instead of four: 2·H·d_qk per score beside 4·H·(d_qk + d_v), so 2.5 forward passes where both widths
    are equal. Source: Dao 2023, arXiv:2307.08691, section 2.3.2.
    """
    step, arch, numerics = work.step(), work.model.arch, work.model.numerics
    blocks = (*arch.blocks, *_last(arch, work.mtp))
    again = (
        block.count * op.count * op.cost.flops * _qk_share(part)
        for block in blocks
        for part in block.parts
        for op in part.ops(step, numerics)
        if is_softmax(op)
    )
    return float(total(again) / work.tokens)


def _last(arch: Arch, times: int) -> Iterable[Block]:
    from dataclasses import replace

    return (replace(arch.blocks[-1], count=times),) if times else ()


def _qk_share(part: Part) -> float:
    """d_qk / (d_qk + d_v) of an attention part; half where it does not say."""
    any_part: Any = part
    d_v = getattr(any_part, "d_v", None)
    d_qk = getattr(any_part, "d_qk", None)
    if d_qk is None and hasattr(any_part, "d_nope"):
        d_qk = any_part.d_nope + any_part.d_rope
    return d_qk / (d_qk + d_v) if d_qk and d_v else 0.5


# Utilisation ----------------------------------------------------------------------------------


@frozen
class Rate:
    """A training speed on one kind of device: tokens of one device each second, and the peak of one dtype."""

    device_id: str
    peak_flops_per_s: float
    dtype: str
    tokens_per_s: float


@frozen
class Utilisation:
    """Model and hardware FLOPs utilisation under one convention.

    flops_per_token: of the model, forward and backward. executed_flops_per_token: recomputation included. mfu, hfu:
    their shares of peak.
    """

    convention: str
    formula: str
    source: str
    recompute: str
    flops_per_token: float
    executed_flops_per_token: float
    mfu: float
    hfu: float


def utilisation(work: Work, rate: Rate, rule: Convention, again: Recompute) -> Utilisation:
    """MFU = tokens/s · FLOPs of a token / peak, and HFU with what is computed again."""
    done = executed(work, rule, again)
    per_flop = rate.tokens_per_s / rate.peak_flops_per_s
    return Utilisation(
        rule.name,
        rule.formula,
        rule.source,
        again.name,
        done.model,
        done.flops,
        done.model * per_flop,
        done.flops * per_flop,
    )


def mfu_from_hfu(hfu: float, again: Recompute) -> float:
    """MFU of a run whose HFU is known, by 6N and 8N: HFU·6/8 under full recomputation."""
    return hfu * 6 / (6 + 2 * again.layers)


def check_possible(found: Utilisation, rate: Rate, peaks: dict[str, float]) -> None:
    """Raise GambrelError for more than 100 % of peak, with what is likely wrong and what each would make of it."""
    share, name = (found.mfu, "MFU") if found.mfu > 1 else (found.hfu, "HFU")
    if share <= 1:
        return
    faster = [d for d in ("fp8", "fp4") if peaks.get(d, 0) > 1.2 * rate.peak_flops_per_s]
    reasons = [f"the run multiplied in {d} ({share * rate.peak_flops_per_s / peaks[d]:.0%})" for d in faster]
    reasons += [
        f"the tokens are those of a node of 8 devices, not of one ({share / 8:.0%})",
        f"the peak that you have in mind is the one with sparsity ({share / 2:.0%}), which no dense run reaches",
        "the sequences are shorter than --seq, or the convention counts masked scores (try --convention exact)",
    ]
    listed = "; ".join(f"({i}) {reason}" for i, reason in enumerate(reasons, 1))
    raise GambrelError(
        f"{name} {share:.0%} of the dense {rate.dtype} peak of {rate.device_id} by {found.convention}: an error, not a "
        f"good result. Likely: {listed}"
    )


# Time and money -------------------------------------------------------------------------------

#: Tokens for each parameter at which loss per FLOP is best. Source: Hoffmann et al. 2022, arXiv:2203.15556, table 3.
CHINCHILLA_TOKENS = 20
HOUR_S = 3600
DAY_S = 24 * HOUR_S


@frozen
class Fleet:
    """What trains, and how well: devices of one kind, and the share of peak that they reach (an estimate).

    efficiency: MFU, or HFU where of_executed, when recomputed FLOPs count as work. power_w: of one device, None where
    unknown. usd_per_hour: price of one device for an hour, None where the user gave none.
    """

    n_devices: int
    peak_flops_per_s: float
    efficiency: float
    of_executed: bool = False
    power_w: float | None = None
    usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            name = "--hfu" if self.of_executed else "--mfu"
            raise GambrelError(f"{name} {self.efficiency}: accepted is a share above 0 and at most 1")

    @property
    def flops_per_s(self) -> float:
        """All devices together, at their efficiency."""
        return self.n_devices * self.peak_flops_per_s * self.efficiency


@frozen
class TrainingRun:
    """A whole training run; times, energy and money are estimates at the stated efficiency.

    tokens: D. flops: of the model. executed_flops: recomputation included. energy_j: at board power.
    """

    convention: str
    tokens: float
    flops: float
    executed_flops: float
    time_s: float
    device_hours: float
    energy_j: float | None
    cost_usd: float | None


def training_run(work: Work, fleet: Fleet, rule: Convention, again: Recompute, tokens: float) -> TrainingRun:
    """FLOPs of `tokens`, and how long the fleet takes for them."""
    done = executed(work, rule, again)
    counted = done.flops if fleet.of_executed else done.model
    time_s = tokens * counted / fleet.flops_per_s
    hours = time_s * fleet.n_devices / HOUR_S
    return TrainingRun(
        rule.name,
        tokens,
        tokens * done.model,
        tokens * done.flops,
        time_s,
        hours,
        None if fleet.power_w is None else fleet.power_w * hours * HOUR_S,
        None if fleet.usd_per_hour is None else fleet.usd_per_hour * hours,
    )


def tokens_in(work: Work, fleet: Fleet, rule: Convention, again: Recompute, time_s: float) -> float:
    """The inverse: tokens that the fleet trains in a time."""
    done = executed(work, rule, again)
    return time_s * fleet.flops_per_s / (done.flops if fleet.of_executed else done.model)


def chinchilla_tokens(model: Model) -> int:
    """Compute-optimal tokens, about 20 for each parameter that a token uses; information, not advice."""
    return CHINCHILLA_TOKENS * model.params_active
