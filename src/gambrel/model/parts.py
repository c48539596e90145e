"""The parts that a model is composed of; each knows its tensors, its operators and what it caches.

    m  rows (new tokens of all sequences)     n_in, n_out  sides of a weight
    d  hidden width     n_h  query heads      n_kv  key/value heads     E, k  experts, experts per token
    d_qk, d_v  width of a head's keys and values     a  bytes of one activation

A [m, n_in] x [n_in, n_out] product costs 2·m·n_in·n_out FLOPs; its weight is read once whatever m is.
"""

from __future__ import annotations

from gambrel.types import Cache, Cost, Format, Numerics, Op, Step, Tensor
from gambrel.units import Num, is_grid, minimum, total, where
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Part:
    """A piece of a layer. Parts without weights, operators or a cache inherit the empty answer."""

    def tensors(self) -> Iterable[Tensor]:
        """The weights of one such part."""
        return ()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The operators of one forward pass through one such part."""
        return ()

    def cache(self, numerics: Numerics) -> Cache | None:
        """What one such part keeps per sequence."""
        return None


def _dims(*sides: Num) -> str:
    """Sides of a matrix for people; a grid has no single size."""
    return "[" + ", ".join("·" if is_grid(s) else f"{s:g}" if isinstance(s, float) else str(s) for s in sides) + "]"


@frozen
class Linear(Part):
    """A weight matrix, n_in x n_out, and its bias.

    group: what its parameters are counted as. bias: the format of the bias, None where there is none.
    ways: over how many devices tensor parallelism can split it (1 replicated, None any number).
    """

    name: str
    group: str
    n_in: int
    n_out: int
    format: Format
    bias: Format | None = None
    ways: int | None = None

    def tensors(self, copies: int = 1, streamed: bool = True) -> Iterable[Tensor]:
        """The matrix, and the bias where there is one."""
        size = self.n_in * self.n_out
        stored = self.format.bytes(self.n_in, self.n_out)
        yield Tensor(self.name, self.group, size, stored, copies, gemm=True, streamed=streamed, ways=self.ways)
        if self.bias is not None:
            stored = self.bias.bytes(1, self.n_out)
            yield Tensor(f"{self.name}.bias", self.group, self.n_out, stored, copies, streamed=streamed, ways=self.ways)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the matrix and its bias [byte]."""
        return self.format.bytes(self.n_in, self.n_out) + (self.bias.bytes(1, self.n_out) if self.bias else 0)

    def op(self, rows: Num, numerics: Numerics) -> Op:
        """The product [m, n_in] x [n_in, n_out]: 2·m·n_in·n_out FLOPs; inputs, weight and outputs once."""
        cost = Cost(
            flops=2 * rows * self.n_in * self.n_out,
            weight_bytes=self.stored_bytes,
            expected_weight_bytes=self.stored_bytes,
            act_bytes=rows * (self.n_in + self.n_out) * numerics.base.element_bytes,
        )
        shape = f"{_dims(rows, self.n_in)} x {_dims(self.n_in, self.n_out)}"
        return Op(self.name, "gemm", self.format.compute, cost, shape=shape, ways=self.ways)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """One product over all rows of the step."""
        yield self.op(step.rows, numerics)


@frozen
class Norm(Part):
    """A normalisation of `width` elements, with a gain and, for LayerNorm, a bias.

    per_row: how many such vectors one token has (heads, for a q/k norm). affine: whether it has a gain.
    last_rows: only the rows that reach the output head pass through it.
    """

    name: str
    width: int
    format: Format
    bias: bool = False
    per_row: int = 1
    affine: bool = True
    last_rows: bool = False

    @property
    def params(self) -> int:
        """Gain and bias elements."""
        return self.width * (self.affine + self.bias)

    def tensors(self) -> Iterable[Tensor]:
        """Gain and bias together; replicated under tensor parallelism."""
        if self.params:
            yield Tensor(self.name, "norm", self.params, self.format.bytes(1, self.params), ways=1)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """About 4 FLOPs per element, one read, one write: an intensity of 1 in bf16."""
        rows = step.head_rows if self.last_rows else step.rows
        elements = rows * self.per_row * self.width
        stored = self.format.bytes(1, self.params)
        cost = Cost(
            vector_flops=4 * elements,
            weight_bytes=stored,
            expected_weight_bytes=stored,
            act_bytes=2 * elements * numerics.base.element_bytes,
        )
        yield Op(self.name, "reduction", numerics.base.name, cost, shape=_dims(rows * self.per_row, self.width), ways=1)


@frozen
class Elementwise(Part):
    """An element-wise operator such as a residual add: `reads` inputs and `writes` outputs of `width` per row."""

    name: str
    width: int
    reads: int = 2
    writes: int = 1
    flops_per_element: int = 1

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Traffic of an unfused kernel; no matrix FLOPs."""
        elements = step.rows * self.width
        cost = Cost(
            vector_flops=self.flops_per_element * elements,
            act_bytes=(self.reads + self.writes) * elements * numerics.base.element_bytes,
        )
        yield Op(self.name, "elementwise", numerics.base.name, cost, shape=_dims(step.rows, self.width), ways=1)


@frozen
class Table(Part):
    """A lookup table: `rows` entries of `width`, of which a step gathers one per token.

    tied: the output head multiplies by the same table, so a step reads all of it there.
    """

    name: str
    rows: int
    width: int
    format: Format
    tied: bool = False

    def tensors(self) -> Iterable[Tensor]:
        """The table; read in full only where it is tied to the output head."""
        stored = self.format.bytes(self.width, self.rows)
        yield Tensor(self.name, "embedding", self.rows * self.width, stored, gemm=self.tied, streamed=self.tied)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """A gather: no FLOPs, m rows read and written."""
        moved = step.rows * self.width * (self.format.element_bytes + numerics.base.element_bytes)
        yield Op(self.name, "movement", numerics.base.name, Cost(act_bytes=moved), shape=_dims(step.rows, self.width))


@frozen
class Head(Part):
    """The output head: one row of logits over the vocabulary for each row that needs them."""

    linear: Linear
    tied: bool

    def tensors(self) -> Iterable[Tensor]:
        """The matrix, unless it is the embedding table."""
        if not self.tied:
            yield from self.linear.tensors()
        elif self.linear.bias is not None:
            yield from list(self.linear.tensors())[1:]

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """A real product of 2·V·d FLOPs per row; the table is read in full."""
        yield self.linear.op(step.head_rows, numerics)


@frozen
class Attention(Part):
    """Scaled dot-product attention with its projections: MHA, MQA, GQA, full or windowed.

    projections: of queries, keys and values, fused or apart. out: the output projection. d_qk, d_v: width of a
    head. norms: of queries and keys. window: keys a query sees, its own included [token]; None is all.
    rotary: whether queries and keys are rotated. sinks: one learned logit per head.
    """

    projections: tuple[Linear, ...]
    out: Linear
    n_heads: int
    n_kv_heads: int
    d_qk: int
    d_v: int
    base: Format
    norms: tuple[Norm, ...] = ()
    window: int | None = None
    rotary: bool = True
    sinks: bool = False

    def tensors(self) -> Iterable[Tensor]:
        """Projections, q/k norms, sinks."""
        for part in (*self.projections, self.out, *self.norms):
            yield from part.tensors()
        if self.sinks:
            yield Tensor("sinks", "attention", self.n_heads, self.base.bytes(1, self.n_heads), ways=self.n_heads)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections, rotation, one fused attention kernel, output projection."""
        for part in (*self.projections, *self.norms):
            yield from part.ops(step, numerics)
        if self.rotary:
            yield from _rotary(self.n_heads + self.n_kv_heads, self.d_qk, step, numerics)
        yield self.kernel(step, numerics)
        yield from self.out.ops(step, numerics)

    def kernel(self, step: Step, numerics: Numerics) -> Op:
        """QK^T and PV in one kernel: 2·n_h·(d_qk + d_v) FLOPs per score; every query head meets every key.

        Reads B·min(s, W + q - 1)·n_kv·(d_qk + d_v) cached elements, writes the new tokens' own.
        """
        scores = step.scores(self.window)
        per_token = self._kv_bytes(numerics)
        sink_bytes = self.base.bytes(1, self.n_heads) if self.sinks else 0
        cost = Cost(
            flops=2 * self.n_heads * (self.d_qk + self.d_v) * scores,
            vector_flops=5 * self.n_heads * scores,
            weight_bytes=sink_bytes,
            expected_weight_bytes=sink_bytes,
            kv_read_bytes=step.keys_read(self.window) * per_token,
            kv_write_bytes=step.keys_written(self.window) * per_token,
            act_bytes=step.rows * self.n_heads * (self.d_qk + self.d_v) * numerics.base.element_bytes,
        )
        shape = f"{self.n_heads} heads, {self.n_kv_heads} KV, {_dims(step.rows, self.d_qk)} x {_dims(self.d_qk, 's')}"
        return Op(
            "attention" if self.window is None else f"attention (window {self.window})",
            "attention",
            numerics.attention,
            cost,
            shape=shape,
            ways=self.n_heads,
            kv_ways=self.n_kv_heads,
        )

    def _kv_bytes(self, numerics: Numerics) -> Num:
        return self.n_kv_heads * (self.d_qk + self.d_v) * numerics.kv.element_bytes

    def cache(self, numerics: Numerics) -> Cache:
        """Keys and values: n_kv·(d_qk + d_v) elements per token."""
        return Cache(self._kv_bytes(numerics), self.window, ways=self.n_kv_heads)


def _rotary(heads: int, width: int, step: Step, numerics: Numerics) -> Iterable[Op]:
    return Elementwise("rope", heads * width, reads=1, writes=1, flops_per_element=3).ops(step, numerics)


@frozen
class LatentAttention(Part):
    """Multi-head latent attention (MLA): keys and values of all heads come from one cached latent vector.

    queries: projections before the heads, with their norm between, or one where queries are not compressed.
    kv_down: hidden to latent + rotary key. kv_up: latent to every head's keys and values. latent: width of the
    latent; d_nope, d_rope, d_v: widths of a head. Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """

    queries: tuple[Linear | Norm, ...]
    kv_down: Linear
    kv_norm: Norm
    kv_up: Linear
    out: Linear
    n_heads: int
    latent: int
    d_nope: int
    d_rope: int
    d_v: int

    def tensors(self) -> Iterable[Tensor]:
        """Every projection and norm."""
        for part in (*self.queries, self.kv_down, self.kv_norm, self.kv_up, self.out):
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections, then per group of sequences the cheaper of the absorbed and the expanded form."""
        for part in (*self.queries, self.kv_down, self.kv_norm):
            yield from part.ops(step, numerics)
        yield from _rotary(self.n_heads + 1, self.d_rope, step, numerics)
        yield from self._latent_ops(step, numerics)
        yield from self.out.ops(step, numerics)

    def _flops(self, g: Step, absorbed: bool) -> tuple[Num, Num]:
        """FLOPs of the up-projection and of the scores, one group of sequences.

        Absorbed: queries and outputs are multiplied by W_UK and W_UV instead, 2·latent·n_h·(d_nope + d_v) per new
        token, and scores run over the latent, 2·n_h·(2·latent + d_rope) each. Expanded: every key in context is
        projected up, 2·latent·n_h·(d_nope + d_v) per key, and scores cost 2·n_h·(d_nope + d_rope + d_v) each.
        """
        up = 2 * self.latent * self.n_heads * (self.d_nope + self.d_v)
        if absorbed:
            return g.rows * up, 2 * self.n_heads * (2 * self.latent + self.d_rope) * g.scores()
        keys = g.batch * where(g.context_tokens < g.new_tokens, g.new_tokens, g.context_tokens)
        return keys * up, 2 * self.n_heads * (self.d_nope + self.d_rope + self.d_v) * g.scores()

    def _latent_ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        up_flops, score_flops, forms = [], [], set()
        for group in step.groups:
            folded, expanded = self._flops(group, absorbed=True), self._flops(group, absorbed=False)
            cheaper = (folded[0] + folded[1]) <= (expanded[0] + expanded[1])
            up_flops.append(where(cheaper, folded[0], expanded[0]))
            score_flops.append(where(cheaper, folded[1], expanded[1]))
            forms.add("·" if is_grid(cheaper) else "absorbed" if cheaper else "expanded")
        form = " and ".join(sorted(forms))
        per_token = self._kv_bytes(numerics)
        element = numerics.base.element_bytes
        width_in, width_out = self.d_nope + self.d_rope, self.d_v
        up = Cost(
            flops=total(up_flops),
            weight_bytes=self.kv_up.stored_bytes,
            expected_weight_bytes=self.kv_up.stored_bytes,
            act_bytes=step.rows * (self.latent + self.n_heads * (self.d_nope + self.d_v)) * element,
        )
        kernel = Cost(
            flops=total(score_flops),
            vector_flops=5 * self.n_heads * step.scores(),
            kv_read_bytes=step.keys_read() * per_token,
            kv_write_bytes=step.keys_written() * per_token,
            act_bytes=step.rows * self.n_heads * (width_in + width_out) * element,
        )
        up_shape = f"{_dims(self.latent, self.kv_up.n_out)} {form}"
        yield Op(self.kv_up.name, "gemm", self.kv_up.format.compute, up, shape=up_shape, ways=self.n_heads)
        shape = f"{self.n_heads} heads over one latent, {form}"
        yield Op("attention", "attention", numerics.attention, kernel, shape=shape, ways=self.n_heads, kv_ways=1)

    def _kv_bytes(self, numerics: Numerics) -> Num:
        return (self.latent + self.d_rope) * numerics.kv.element_bytes

    def cache(self, numerics: Numerics) -> Cache:
        """One latent and one rotary key for all heads: latent + d_rope elements per token, on every device."""
        return Cache(self._kv_bytes(numerics), ways=1)


@frozen
class FeedForward(Part):
    """A feed-forward network: gated (gate, up, down; fused or apart) or plain (up, down).

    inner: the projections into the inner width. width: inner width. gated: whether one half gates the other.
    """

    inner: tuple[Linear, ...]
    down: Linear
    width: int
    gated: bool

    def tensors(self) -> Iterable[Tensor]:
        """The two or three matrices."""
        for part in (*self.inner, self.down):
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """In, activation, out."""
        for part in self.inner:
            yield from part.ops(step, numerics)
        yield from _activation(self.width, self.gated).ops(step, numerics)
        yield from self.down.ops(step, numerics)


def _activation(width: int, gated: bool) -> Elementwise:
    return Elementwise("activation", width, reads=2 if gated else 1, writes=1, flops_per_element=4)


@frozen
class MixtureOfExperts(Part):
    """A router and E experts, of which each token uses k; shared experts serve every token.

    inner, down: the projections of one expert. shared: the shared experts as one feed-forward; shared_gate: the
    projection that weighs it. Source for the expected coverage: each of m tokens leaves out a given expert with
    probability 1 - k/E, so E·(1 - (1 - k/E)^m) distinct experts are read under uniform, independent routing.
    """

    router: Linear
    inner: tuple[Linear, ...]
    down: Linear
    width: int
    gated: bool
    n_experts: int
    top_k: int
    shared: FeedForward | None = None
    shared_gate: Linear | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Router, E experts, shared experts."""
        yield from self.router.tensors()
        for part in (*self.inner, self.down):
            yield from part.tensors(copies=self.n_experts)
        if self.shared is not None:
            yield from self.shared.tensors()
        if self.shared_gate is not None:
            yield from self.shared_gate.tensors()

    def experts_hit(self, rows: Num) -> tuple[Num, Num]:
        """Distinct experts read by `rows` tokens: at the least (all agree), and expected under uniform routing."""
        missed = (1 - self.top_k / self.n_experts) ** rows
        return minimum(self.top_k, self.n_experts), self.n_experts * (1 - missed)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Router, the experts' products over m·k rows, shared experts, the weighted sum."""
        yield from self.router.ops(step, numerics)
        rows = step.rows * self.top_k
        for part in self.inner:
            yield self._expert_op(part, step.rows, numerics)
        activation = _activation(self.width, self.gated)
        yield from activation.ops(Step(batch=rows), numerics)
        yield self._expert_op(self.down, step.rows, numerics)
        yield from Elementwise("combine", self.down.n_out, reads=self.top_k).ops(step, numerics)
        if self.shared is not None:
            yield from self.shared.ops(step, numerics)
        if self.shared_gate is not None:
            yield from self.shared_gate.ops(step, numerics)

    def _expert_op(self, part: Linear, rows: Num, numerics: Numerics) -> Op:
        least, expected = self.experts_hit(rows)
        op = part.op(rows * self.top_k, numerics)
        cost = Cost(
            flops=op.cost.flops,
            weight_bytes=least * part.stored_bytes,
            expected_weight_bytes=expected * part.stored_bytes,
            act_bytes=op.cost.act_bytes,
        )
        shape = f"{self.top_k} of {self.n_experts} experts, {op.shape}"
        return Op(part.name, "gemm", op.dtype, cost, shape=shape, ways=part.ways)


@frozen
class Extra(Part):
    """Weights that a forward pass of text does not touch, such as a vision tower: resident, not streamed."""

    name: str
    group: str
    linears: tuple[tuple[Linear, int], ...] = ()
    vectors: int = 0
    base: Format | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Matrices with how often they occur, and the remaining vectors and tables together."""
        for linear, copies in self.linears:
            yield from linear.tensors(copies=copies, streamed=False)
        if self.vectors and self.base is not None:
            stored = self.base.bytes(1, self.vectors)
            yield Tensor(self.name, self.group, self.vectors, stored, streamed=False)
