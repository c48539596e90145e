"""Parts of Gemma 3n and Gemma 4: borrowed keys and values, AltUp, per-layer inputs, their audio tower's attention."""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.parts import Attention, Linear, Norm, Part, Vectors, dims, rotary
from gambrel.types import Cost, Numerics, Op, Step, Tensor
from gambrel.units import total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class Weights(Part):
    """The weights of parts whose operators the model leaves out or has elsewhere."""

    parts: tuple[Part, ...]

    def tensors(self) -> Iterable[Tensor]:
        """Those of its parts."""
        for part in self.parts:
            yield from part.tensors()


@frozen
class Borrowing(Part):
    """Attention over the keys and values that an earlier layer cached: queries and output alone are its own.

    It reads B·min(s, W + q - 1)·n_kv·(d_qk + d_v) elements of that cache, writes none and keeps none.
    """

    attention: Attention

    def tensors(self) -> Iterable[Tensor]:
        """The query projection, its norm, the output projection."""
        return self.attention.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The query projection, its norm and rotation, the kernel, the output projection."""
        own = self.attention
        for part in (*own.projections, *own.norms):
            yield from part.ops(step, numerics)
        yield from rotary(own.n_heads, own.d_qk, step, numerics)
        op = own.kernel(step, numerics)
        yield replace(op, name=f"{op.name} (borrowed)", cost=replace(op.cost, kv_write_bytes=0))
        yield from own.out.ops(step, numerics)


@frozen
class HeadRows(Part):
    """Products of which only the rows that reach the output head are needed."""

    linears: tuple[Linear, ...]

    def tensors(self) -> Iterable[Tensor]:
        """The matrices."""
        for linear in self.linears:
            yield from linear.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """2·n_in·n_out FLOPs for each such row and matrix."""
        for linear in self.linears:
            yield linear.op(step.head_rows, numerics)


@frozen
class AltUp(Part):
    """Alternating updates (arXiv:2301.13310): N hidden states per token, of which a layer computes one.

    All N are predicted from each other before the layer, x·C + x with a matrix C [N, N] of the token's own:
    2·d·N² FLOPs per token, and corrected behind it by N factors of the token's own. router: d -> N, once before and
    once behind the layer; predict: N -> N²; correct: N -> N.
    """

    norm: Norm
    router: Linear
    predict: Linear
    correct: Linear
    scale: Vectors

    def tensors(self) -> Iterable[Tensor]:
        """Router, its norm, the two small matrices, the scale of the corrected output."""
        for part in (self.norm, self.router, self.predict, self.correct, self.scale):
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Prediction and correction; the router's weight is read once for both."""
        n, d, element = self.router.n_out, self.router.n_in, numerics.base.element_bytes
        yield from self.norm.ops(step, numerics)
        yield self.router.op(2 * step.rows, numerics)
        yield from self.predict.ops(step, numerics)
        cost = Cost(flops=2 * step.rows * d * n * n, act_bytes=step.rows * (2 * n * d + n * n) * element)
        yield Op("altup_predict", "gemm", self.router.format.compute, cost, shape=dims(step.rows, d, n), ways=1)
        yield from self.correct.ops(step, numerics)
        elements = step.rows * n * d
        moved = Cost(vector_flops=3 * elements, act_bytes=3 * elements * element)
        yield Op("altup_correct", "elementwise", numerics.base.name, moved, shape=dims(step.rows, n, d), ways=1)
        yield from self.scale.ops(step, numerics)


@frozen
class OrderedHead(Part):
    """An output head that scores only the tokens of the k likeliest of C groups, V/C tokens each.

    2·d·C FLOPs for the groups and 2·d·k·V/C for their tokens per row. The table's rows of the groups are read: k
    groups at the least, C·(1 - (1 - k/C)^m) expected of m rows under uniform choice.
    """

    centroids: Linear
    table: Linear
    top_k: int

    def tensors(self) -> Iterable[Tensor]:
        """The groups' matrix; the table is the embedding's."""
        yield from self.centroids.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Both products."""
        rows, groups = step.head_rows, self.centroids.n_out
        yield self.centroids.op(rows, numerics)
        share = self.table.stored_bytes / groups
        part = replace(self.table, n_out=self.top_k * self.table.n_out // groups)
        op = part.op(rows, numerics)
        missed = (1 - self.top_k / groups) ** rows
        cost = replace(op.cost, weight_bytes=self.top_k * share, expected_weight_bytes=groups * (1 - missed) * share)
        yield replace(op, cost=cost, shape=f"{self.top_k} of {groups} groups, {op.shape}")


@frozen
class ChunkedAttention(Part):
    """The audio tower's attention: blocks of `chunk` frames meet their own frames and those within reach before.

    2·n_h·d_h·(2·(chunk + before) + positions) FLOPs for each frame of a whole block, `before` the frames within
    reach before (and behind) the block: keys, relative positions, values, as the block form computes them.
    """

    projections: tuple[Linear, ...]
    relative: Linear
    scale: Vectors
    out: Linear
    n_heads: int
    chunk: int
    before: int

    def tensors(self) -> Iterable[Tensor]:
        """Projections, the relative positions' matrix, the scale of a head's width."""
        for part in (*self.projections, self.relative, self.scale, self.out):
            yield from part.tensors()

    @property
    def positions(self) -> int:
        """Relative positions that a frame can have to a key [1]."""
        return (self.chunk + self.before) // 2 + 1

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections, the relative positions once a pass, the kernel, the output projection."""
        for part in (*self.projections, self.scale):
            yield from part.ops(step, numerics)
        yield self.relative.op(self.positions, numerics)
        rows = total(g.batch * -(-g.new_tokens // self.chunk) * self.chunk for g in step.groups)
        keys = self.chunk + self.before
        width = self.relative.n_out
        cost = Cost(
            flops=2 * width * rows * (2 * keys + self.positions),
            vector_flops=5 * self.n_heads * rows * keys,
            act_bytes=4 * rows * width * numerics.base.element_bytes,
        )
        name = f"attention (blocks of {self.chunk})"
        yield Op(name, "attention", numerics.attention, cost, shape=dims(rows, keys), ways=self.n_heads)
        yield from self.out.ops(step, numerics)
