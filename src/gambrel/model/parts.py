"""The parts that a model is composed of; each knows its tensors, its operators and what it caches.

    m  rows (new tokens of all sequences)     n_in, n_out  sides of a weight
    d  hidden width     n_h  query heads      n_kv  key/value heads     E, k  experts, experts per token
    d_qk, d_v  width of a head's keys and values     a  bytes of one activation

A [m, n_in] x [n_in, n_out] product costs 2·m·n_in·n_out FLOPs; its weight is read once whatever m is.
"""

from __future__ import annotations

from gambrel.types import Cache, Cost, Format, Numerics, Op, Step, Tensor
from gambrel.units import Num, is_grid
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


#: Bytes of an input element by the dtype that is multiplied; the base dtype for any other [byte].
NARROW_BYTES = {"fp8": 1, "int8": 1, "fp6": 0.75, "fp4": 0.5, "int4": 0.5}


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


def dims(*sides: Num) -> str:
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

    def tensors(self, copies: int = 1, streamed: bool = True, used: tuple[int, int] = (1, 1)) -> Iterable[Tensor]:
        """The matrix, and the bias where there is one."""
        size, stored = self.n_in * self.n_out, self.format.bytes(self.n_in, self.n_out)
        yield Tensor(self.name, self.group, size, stored, copies, True, streamed, self.ways, used)
        if self.bias is not None:
            name, stored = f"{self.name}.bias", self.bias.bytes(1, self.n_out)
            yield Tensor(name, self.group, self.n_out, stored, copies, False, streamed, self.ways, used)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the matrix and its bias [byte]."""
        return self.format.bytes(self.n_in, self.n_out) + (self.bias.bytes(1, self.n_out) if self.bias else 0)

    def _input_bytes(self, numerics: Numerics) -> float:
        """Inputs are read in the dtype that is multiplied, where that is narrower than the base dtype."""
        return NARROW_BYTES.get(self.format.compute, numerics.base.element_bytes)

    def op(self, rows: Num, numerics: Numerics) -> Op:
        """The product [m, n_in] x [n_in, n_out]: 2·m·n_in·n_out FLOPs; inputs, weight and outputs once."""
        cost = Cost(
            flops=2 * rows * self.n_in * self.n_out,
            weight_bytes=self.stored_bytes,
            expected_weight_bytes=self.stored_bytes,
            act_bytes=rows * (self.n_in * self._input_bytes(numerics) + self.n_out * numerics.base.element_bytes),
        )
        shape = f"{dims(rows, self.n_in)} x {dims(self.n_in, self.n_out)}"
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
        yield Op(self.name, "reduction", numerics.base.name, cost, shape=dims(rows * self.per_row, self.width), ways=1)


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
        yield Op(self.name, "elementwise", numerics.base.name, cost, shape=dims(step.rows, self.width), ways=1)


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
        yield Op(self.name, "movement", numerics.base.name, Cost(act_bytes=moved), shape=dims(step.rows, self.width))


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
    rotary: whether queries and keys are rotated. sinks: one learned logit per head. chunk: attention stays within
    chunks of so many positions [token].
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
    chunk: int | None = None

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
            yield from rotary(self.n_heads + self.n_kv_heads, self.d_qk, step, numerics)
        yield self.kernel(step, numerics)
        yield from self.out.ops(step, numerics)

    def kernel(self, step: Step, numerics: Numerics) -> Op:
        """QK^T and PV in one kernel: 2·n_h·(d_qk + d_v) FLOPs per score; every query head meets every key.

        Reads B·min(s, W + q - 1)·n_kv·(d_qk + d_v) cached elements, writes the new tokens' own.
        """
        scores = step.scores(self.window, self.chunk)
        per_token = self._kv_bytes(numerics)
        sink_bytes = self.base.bytes(1, self.n_heads) if self.sinks else 0
        cost = Cost(
            flops=2 * self.n_heads * (self.d_qk + self.d_v) * scores,
            vector_flops=5 * self.n_heads * scores,
            weight_bytes=sink_bytes,
            expected_weight_bytes=sink_bytes,
            kv_read_bytes=step.keys_read(self.window, self.chunk) * per_token,
            kv_write_bytes=step.keys_written(self.window) * per_token,
            act_bytes=step.rows * self.n_heads * (self.d_qk + self.d_v) * numerics.base.element_bytes,
        )
        shape = f"{self.n_heads} heads, {self.n_kv_heads} KV, {dims(step.rows, self.d_qk)} x {dims(self.d_qk, 's')}"
        return Op(
            self.kernel_name,
            "attention",
            numerics.attention,
            cost,
            shape=shape,
            ways=self.n_heads,
            kv_ways=self.n_kv_heads,
        )

    @property
    def kernel_name(self) -> str:
        """The kernel, with its window or chunk."""
        if self.chunk is not None:
            return f"attention (chunks of {self.chunk})"
        return "attention" if self.window is None else f"attention (window {self.window})"

    def _kv_bytes(self, numerics: Numerics) -> Num:
        return self.n_kv_heads * (self.d_qk + self.d_v) * numerics.kv.element_bytes

    def cache(self, numerics: Numerics) -> Cache:
        """Keys and values: n_kv·(d_qk + d_v) elements per token."""
        return Cache(self._kv_bytes(numerics), self.window or self.chunk, ways=self.n_kv_heads)


def rotary(heads: int, width: int, step: Step, numerics: Numerics) -> Iterable[Op]:
    """The rotation of `heads` queries and keys of `width` elements each."""
    return Elementwise("rope", heads * width, reads=1, writes=1, flops_per_element=3).ops(step, numerics)


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
        yield from activation(self.width, self.gated).ops(step, numerics)
        yield from self.down.ops(step, numerics)


def activation(width: int, gated: bool) -> Elementwise:
    """The non-linearity between the projections, which reads gate and value where it is gated."""
    return Elementwise("activation", width, reads=2 if gated else 1, writes=1, flops_per_element=4)


@frozen
class Chain(Part):
    """Several parts as one, so that a slot of a layer may hold them; at most one of them keeps a cache."""

    parts: tuple[Part, ...]

    def tensors(self) -> Iterable[Tensor]:
        """The weights of every part."""
        for part in self.parts:
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The operators of every part, in order."""
        for part in self.parts:
            yield from part.ops(step, numerics)

    def cache(self, numerics: Numerics) -> Cache | None:
        """The cache of the part that keeps one."""
        return next((cache for part in self.parts if (cache := part.cache(numerics)) is not None), None)


@frozen
class Vectors(Part):
    """Learned vectors that scale activations element by element: no matrix product.

    params: elements of all of them. width: elements of one row that they are applied to.
    """

    name: str
    group: str
    params: int
    width: int
    format: Format

    def tensors(self) -> Iterable[Tensor]:
        """The vectors together; replicated under tensor parallelism."""
        yield Tensor(self.name, self.group, self.params, self.format.bytes(1, self.params), ways=1)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """One read and one write of the activations, and the vectors once."""
        elements, stored = step.rows * self.width, self.format.bytes(1, self.params)
        cost = Cost(
            vector_flops=elements,
            weight_bytes=stored,
            expected_weight_bytes=stored,
            act_bytes=2 * elements * numerics.base.element_bytes,
        )
        yield Op(self.name, "elementwise", numerics.base.name, cost, shape=dims(step.rows, self.width), ways=1)
