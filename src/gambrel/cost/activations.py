"""Activations that the backward pass needs, per layer: the published formula and the model's own operators.

    s  tokens of a sequence     b  sequences of a micro-batch     h  hidden width     a  query heads

What is kept follows from the derivatives: a product keeps its input (for the weight's gradient), a norm its input and
one or two numbers a row, an activation its input, a gate both factors, softmax its output. FlashAttention keeps Q, K,
V, its output and one logsumexp a row and head instead of the scores. Each tensor counts once, however many need it.
"""

from __future__ import annotations

from gambrel.model.experts import MixtureOfExperts
from gambrel.model.latent import LatentAttention
from gambrel.model.parts import Attention, Elementwise, FeedForward, Linear, Norm
from gambrel.types import Step
from gambrel.units import total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gambrel.model.arch import Block
    from gambrel.model.model import Model
    from gambrel.model.parts import Part
    from gambrel.types import Numerics

FP32_BYTES = 4


@frozen
class Term:
    """One tensor that a layer keeps.

    per_token: elements for each token; per_score: elements for each query-key pair, all heads. bytes: of an element.
    split: tensor parallelism divides it even without sequence parallelism, over at most `ways` devices (0 any number).
    scores: "selective" recomputes it.
    """

    name: str
    per_token: float = 0
    per_score: float = 0
    bytes: float = 2
    split: bool = False
    scores: bool = False
    ways: int = 0

    def total_bytes(self, tokens: float, pairs: float) -> float:
        """Bytes for so many tokens and query-key pairs."""
        return (self.per_token * tokens + self.per_score * pairs) * self.bytes


@frozen
class Kept:
    """How activations are kept: bytes of an element, the attention kernel, and how far operators are fused.

    attention: "flash" or "materialised". kernels: "fused" (a norm keeps its input and statistics, a gate its two
    factors) or "eager" (PyTorch's operators one by one: normalised inputs, silu's output, repeated keys are kept too).
    """

    element_bytes: float = 2
    attention: str = "flash"
    kernels: str = "fused"


# The published formula ------------------------------------------------------------------------


def korthikanti_terms(hidden: int, heads: int, flash: bool = False) -> tuple[Term, ...]:
    """A standard GELU layer with dropout in 16 bit: sbh(34 + 5as/h) bytes; 34sbh where the scores are not kept.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.1.
    """
    h = hidden
    linear = (
        Term("input of Q, K, V", h, bytes=2),
        Term("Q and K", 2 * h, bytes=2, split=True),
        Term("V", h, bytes=2, split=True),
        Term("input of the output projection", h, bytes=2, split=True),
        Term("dropout mask of attention", h, bytes=1),
        Term("input of the feed-forward", h, bytes=2),
        Term("input of the second matrix", 4 * h, bytes=2, split=True),
        Term("input of GELU", 4 * h, bytes=2, split=True),
        Term("dropout mask of the feed-forward", h, bytes=1),
        Term("inputs of two norms", 2 * h, bytes=2),
    )
    scores = (
        Term("output of softmax", per_score=heads, bytes=2, split=True, scores=True),
        Term("dropout mask of softmax", per_score=heads, bytes=1, split=True, scores=True),
        Term("output of that dropout", per_score=heads, bytes=2, split=True, scores=True),
    )
    return linear if flash else (*linear, *scores)


def equal_seq(hidden: int, heads: int) -> float:
    """Sequence at which scores and the rest take equal bytes: 34h/(5a) [token]."""
    return 34 * hidden / (5 * heads)


# The model's own operators --------------------------------------------------------------------


def layer_terms(block: Block, kept: Kept, numerics: Numerics) -> list[Term]:
    """What one layer keeps, tensor by tensor, from its parts in order."""
    return [term for part in block.parts for term in _part_terms(part, kept, numerics)]


def unknown_parts(model: Model) -> list[str]:
    """Kinds of parts whose terms are an estimate: half of what their unfused operators read and write."""
    kinds = {type(part).__name__ for block in model.arch.blocks for part in block.parts if not _known(part)}
    return sorted(kinds)


def _known(part: Part) -> bool:
    return isinstance(part, (Norm, Linear, Attention, LatentAttention, FeedForward, MixtureOfExperts, Elementwise))


def _part_terms(part: Part, kept: Kept, numerics: Numerics) -> Iterable[Term]:
    if isinstance(part, Norm):
        return _norm(part, kept)
    if isinstance(part, Linear):
        return (Term(f"input of {part.name}", part.n_in, bytes=kept.element_bytes),)
    if isinstance(part, Attention):
        return _attention(part, kept)
    if isinstance(part, LatentAttention):
        return _latent(part, kept)
    if isinstance(part, FeedForward):
        return _feed_forward(part, kept)
    if isinstance(part, MixtureOfExperts):
        return _experts(part, kept)
    if isinstance(part, Elementwise):  # residual adds, rotations and scales keep nothing of a token's size
        return ()
    return _estimated(part, kept, numerics)


def _norm(part: Norm, kept: Kept, split: bool = False) -> Iterator[Term]:
    """Its input and, in fp32, one number a row (RMS) or two (mean and deviation); eager RMSNorm also the quotient."""
    width = part.width * part.per_row
    yield Term(f"input of {part.name}", width, bytes=kept.element_bytes, split=split)
    if kept.kernels == "eager" and not part.bias:
        yield Term(f"{part.name}, normalised", width, bytes=kept.element_bytes, split=split)
    yield Term(f"{part.name}, statistics", part.per_row * (1 + part.bias), bytes=FP32_BYTES, split=split)


def _attention(part: Attention, kept: Kept) -> Iterator[Term]:
    a, heads, kv = kept.element_bytes, part.n_heads, part.n_kv_heads
    yield Term("input of Q, K, V", part.projections[0].n_in, bytes=a)
    for norm in part.norms:
        yield from _norm(norm, kept, split=True)
    repeated = heads if kept.attention == "materialised" and kept.kernels == "eager" else kv
    yield Term("Q", heads * part.d_qk, bytes=a, split=True)
    yield Term("K", repeated * part.d_qk, bytes=a, split=True, ways=repeated)
    yield Term("V", repeated * part.d_v, bytes=a, split=True, ways=repeated)
    yield from _kernel(heads, kept)
    yield Term("attention's output", heads * part.d_v, bytes=a, split=True)


def _kernel(heads: int, kept: Kept) -> Iterator[Term]:
    if kept.attention == "flash":
        yield Term("logsumexp", heads, bytes=FP32_BYTES, split=True)
    else:
        yield Term("output of softmax", per_score=heads, bytes=kept.element_bytes, split=True, scores=True)


def _latent(part: LatentAttention, kept: Kept) -> Iterator[Term]:
    """Expanded, as training runs it: every head has keys and values of its own."""
    a, heads = kept.element_bytes, part.n_heads
    yield Term("input of Q, K, V", part.kv_down.n_in, bytes=a)
    for query in part.queries[1:]:
        if isinstance(query, Norm):
            yield from _norm(query, kept)
        else:
            yield Term(f"input of {query.name}", query.n_in, bytes=a)
    yield from _norm(part.kv_norm, kept)
    yield Term("rotary key, stored beside the latent", part.d_rope, bytes=a)
    yield Term(f"input of {part.kv_up.name}", part.kv_up.n_in, bytes=a)
    d_qk = part.d_nope + part.d_rope
    yield Term("Q and K", 2 * heads * d_qk, bytes=a, split=True)
    yield Term("V", heads * part.d_v, bytes=a, split=True)
    yield from _kernel(heads, kept)
    yield Term("attention's output", heads * part.d_v, bytes=a, split=True)


def _feed_forward(part: FeedForward, kept: Kept, times: int = 1, name: str = "feed-forward") -> Iterator[Term]:
    """The input; inputs of the activation (gate and up); the input of the last matrix; eager: the gate's silu."""
    a = kept.element_bytes
    yield Term(f"input of the {name}", part.inner[0].n_in * times, bytes=a)
    yield from _inner(part.width, part.gated, kept, times, name)


def _inner(width: int, gated: bool, kept: Kept, times: int, name: str) -> Iterator[Term]:
    a = kept.element_bytes
    factors = (2 if gated else 1) + (gated and kept.kernels == "eager")
    yield Term(f"activation, {name}", factors * width * times, bytes=a, split=True)
    yield Term(f"input of the last matrix, {name}", width * times, bytes=a, split=True)


def _experts(part: MixtureOfExperts, kept: Kept) -> Iterator[Term]:
    """The router's input and probabilities, k copies of each token through the experts, and their outputs."""
    a, k, d = kept.element_bytes, part.top_k, part.down.n_out
    yield Term("input of the router", part.router.n_in, bytes=a)
    yield Term("probabilities of the router", part.n_experts, bytes=FP32_BYTES)
    yield Term("tokens as dealt to experts", part.inner[0].n_in * k, bytes=a)
    yield from _inner(part.width, part.gated, kept, k, "experts")
    yield Term("outputs of experts", d * k, bytes=a)
    if part.shared is not None:
        yield from _inner(part.shared.width, part.shared.gated, kept, 1, "shared experts")


def _estimated(part: Part, kept: Kept, numerics: Numerics) -> Iterator[Term]:
    """Half of what the unfused operators read and write for one token: each tensor once."""
    moved = total(op.cost.act_bytes * op.count for op in part.ops(Step(1, 1, 1), numerics))
    elements = moved / 2 / numerics.base.element_bytes
    if elements:
        yield Term(f"{type(part).__name__} (estimate)", elements, bytes=kept.element_bytes)
