"""Parts of encoder-decoder and audio models that decoders lack: position biases, local attention, convolutions."""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.encoders import CrossAttention
from gambrel.model.parts import Linear, Norm, Part, Table, dims
from gambrel.types import Cost, Format, Numerics, Op, Step, Tensor
from gambrel.units import Num, minimum, total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gambrel.model.arch import Block


def per_token(step: Step, count: Callable[[Num], Num]) -> Num:
    """Σ over the sequences of B · count(n), n the new tokens of one."""
    return total(g.batch * count(g.new_tokens) for g in step.groups)


@frozen
class Lookup(Part):
    """A gather from a table that belongs to another part, as an encoder does that shares the decoder's tokens."""

    name: str
    width: int
    format: Format

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """m rows read and written; the table's weights are counted where it stands."""
        moved = step.rows * self.width * (self.format.element_bytes + numerics.base.element_bytes)
        yield Op(self.name, "movement", numerics.base.name, Cost(act_bytes=moved), shape=dims(step.rows, self.width))


@frozen
class PositionBias(Part):
    """A learned bias per bucket of distance and head, added to the scores (Raffel et al. 2020, section 2.1).

    buckets, heads: sides of the table. T5 has one table a stack, whose bias all its layers share. span: pairs of
    positions that local attention has biases for, whatever the length. block: tokens of one summary as a key.
    """

    name: str
    buckets: int
    heads: int
    format: Format
    span: int | None = None
    block: int | None = None

    @property
    def params(self) -> int:
        """Elements of the table."""
        return self.buckets * self.heads

    def tensors(self) -> Iterable[Tensor]:
        """The table, read in full by every step."""
        stored = self.format.bytes(1, self.params)
        yield Tensor(self.name, "embedding", self.params, stored, ways=self.heads)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """One value per head, query and key, written once for all sequences and layers that share it."""
        stored = self.format.bytes(1, self.params)
        pairs = self.span if self.span is not None else total(self._pairs(g) for g in step.groups)
        moved = pairs * self.heads * numerics.base.element_bytes
        cost = Cost(weight_bytes=stored, expected_weight_bytes=stored, act_bytes=moved)
        yield Op(self.name, "movement", numerics.base.name, cost, shape=dims(self.heads, pairs), ways=self.heads)

    def _pairs(self, g: Step) -> Num:
        return g.new_tokens * (g.context_tokens if self.block is None else g.context_tokens // self.block)


@frozen
class ConstantQueries(CrossAttention):
    """Cross-attention whose queries are the same in every sequence, so that they are projected once.

    queries: rows of them.
    """

    queries: int = 1

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """As in CrossAttention but for the query projection."""
        _, *others = super().ops(step, numerics)
        yield self.query.op(self.queries, numerics)
        yield from others


@frozen
class BandAttention(Part):
    """Bidirectional attention in a band: query i meets keys i - r … i + r, and a summary of each block of tokens.

    queries, keys: the projections of queries, and of keys and values. radius: r [token]. block: tokens that are summed
    up as one further key (LongT5's transient-global attention; Guo et al. 2022), None for no such keys. norm: of the
    summaries. idle: weights that only tokens with global attention pass through (LED; Beltagy et al. 2020).
    """

    queries: Linear
    keys: tuple[Linear, ...]
    out: Linear
    n_heads: int
    d_head: int
    radius: int
    block: int | None = None
    norm: Norm | None = None
    idle: tuple[Linear, ...] = ()

    def tensors(self) -> Iterable[Tensor]:
        """Projections, the norm of the summaries, the idle weights."""
        for part in (self.queries, *self.keys, *self.idle, self.out):
            yield from part.tensors()
        if self.norm is not None:
            yield from self.norm.tensors()

    def scores(self, step: Step) -> Num:
        """Query-key pairs, one head: n(2r + 1) - r(r + 1) in the band (r at most n - 1), n · (n // block) beside."""

        def pairs(n: Num) -> Num:
            reach = minimum(self.radius, n - 1)
            return n * (2 * reach + 1) - reach * (reach + 1) + n * self._blocks(n)

        return per_token(step, pairs)

    def _blocks(self, n: Num) -> Num:
        return n // self.block if self.block is not None else 0

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections (keys and values of the summaries too), sums over blocks, one fused kernel, output projection.

        The kernel skips what lies beyond the band, which transformers' blocks of 3(r + 1) or 2r keys multiply.
        """
        blocks = per_token(step, self._blocks)
        yield self.queries.op(step.rows, numerics)
        if self.norm is not None:
            yield self._summaries(step.rows, blocks, numerics, self.norm)
        for part in self.keys:
            yield part.op(step.rows + blocks, numerics)
        yield self._kernel(step, step.rows + blocks, numerics)
        yield self.out.op(step.rows, numerics)

    def _summaries(self, rows: Num, blocks: Num, numerics: Numerics, norm: Norm) -> Op:
        stored = norm.format.bytes(1, norm.params)
        elements = (rows + blocks) * norm.width
        cost = Cost(
            vector_flops=(rows + 4 * blocks) * norm.width,
            weight_bytes=stored,
            expected_weight_bytes=stored,
            act_bytes=elements * numerics.base.element_bytes,
        )
        return Op("summaries", "reduction", numerics.base.name, cost, shape=dims(blocks, norm.width), ways=1)

    def _kernel(self, step: Step, keys: Num, numerics: Numerics) -> Op:
        scores, width = self.scores(step), self.n_heads * self.d_head
        cost = Cost(
            flops=4 * width * scores,
            vector_flops=5 * self.n_heads * scores,
            act_bytes=(2 * step.rows + 2 * keys) * width * numerics.base.element_bytes,
        )
        name = f"attention (band of {self.radius})"
        shape = f"{self.n_heads} heads, {dims(step.rows, self.d_head)}"
        return Op(name, "attention", numerics.attention, cost, shape=shape, ways=self.n_heads, kv_ways=self.n_heads)


@frozen
class BlockAttention(Part):
    """Bidirectional attention within blocks of positions, with Shaw's relative embeddings (conformers).

    size: positions of a block; the last one is not filled up. table: relative positions, one vector of a head's width
    each (Shaw et al. 2018). projections: in, fused or apart.
    """

    projections: tuple[Linear, ...]
    out: Linear
    n_heads: int
    d_head: int
    size: int
    table: int
    format: Format

    def tensors(self) -> Iterable[Tensor]:
        """Projections and the table of relative positions."""
        for part in (*self.projections, self.out):
            yield from part.tensors()
        params = self.table * self.d_head
        yield Tensor("rel_pos_emb", "embedding", params, self.format.bytes(1, params), ways=1)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections, QK^T and PV and the product of queries with the relative positions, output projection.

        6·n_h·d FLOPs per query and key of its block.
        """
        for part in self.projections:
            yield from part.ops(step, numerics)
        scores = per_token(step, lambda n: n // self.size * self.size**2 + (n % self.size) ** 2)
        stored = self.format.bytes(1, self.table * self.d_head)
        width = self.n_heads * self.d_head
        cost = Cost(
            flops=6 * width * scores,
            vector_flops=6 * self.n_heads * scores,
            weight_bytes=stored,
            expected_weight_bytes=stored,
            act_bytes=4 * step.rows * width * numerics.base.element_bytes,
        )
        shape = f"{self.n_heads} heads, {dims(step.rows, self.d_head)}"
        name = f"attention (blocks of {self.size})"
        yield Op(name, "attention", numerics.attention, cost, shape=shape, ways=self.n_heads, kv_ways=self.n_heads)
        yield from self.out.ops(step, numerics)


@frozen
class Convolution(Part):
    """A convolution over time as a matrix product: every output row multiplies `kernel` input rows.

    linear: n_in = kernel · channels of one group. channels: of the input. rows, rows_in: rows that it writes and reads
    per token of the step.
    """

    linear: Linear
    channels: int
    rows: int = 1
    rows_in: int = 1

    def tensors(self) -> Iterable[Tensor]:
        """The kernel and its bias."""
        yield from self.linear.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """2 · rows · n_in · n_out FLOPs; the input is read once, not once per position of the kernel."""
        op = self.linear.op(step.rows * self.rows, numerics)
        elements = step.rows * (self.rows_in * self.channels + self.rows * self.linear.n_out)
        stored = self.linear.stored_bytes
        cost = Cost(
            flops=op.cost.flops,
            weight_bytes=stored,
            expected_weight_bytes=stored,
            act_bytes=elements * numerics.base.element_bytes,
        )
        yield Op(op.name, op.role, op.dtype, cost, shape=op.shape, ways=op.ways)


@frozen
class Regrouped(Part):
    """Parts that see every `window` tokens of a sequence as a sequence of `queries` tokens of its own.

    A window that is not full is filled up. With cross-attention among them, its source is the window's tokens. once:
    what the parts see is the same in every window, so that they run once.
    """

    parts: tuple[Part, ...]
    window: int
    queries: int
    once: bool = False

    def tensors(self) -> Iterable[Tensor]:
        """Those of the parts."""
        for part in self.parts:
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The operators of the parts over B · ⌈n / window⌉ sequences."""
        first, *others = (self._inner(g) for g in step.groups[: 1 if self.once else None])
        inner = first
        for other in others:
            inner = inner + other
        for part in self.parts:
            yield from part.ops(inner, numerics)

    def _inner(self, g: Step) -> Step:
        sequences = 1 if self.once else g.batch * -(-g.new_tokens // self.window)
        return Step(sequences, self.queries, self.queries, False, "all", self.window, True)


@frozen
class Parameters(Part):
    """Parameters that no pass of text reads: learned queries, positions of a tower, a codec as a whole."""

    name: str
    group: str
    params: int
    format: Format

    def tensors(self) -> Iterable[Tensor]:
        """All of them together."""
        stored = self.format.bytes(1, self.params)
        yield Tensor(self.name, self.group, self.params, stored, streamed=False, ways=1)


@frozen
class Frames(Part):
    """A table from which every token gathers and sums `per_token` rows, one for each codebook of a frame of sound."""

    table: Table
    per_token: int

    def tensors(self) -> Iterable[Tensor]:
        """The table."""
        yield from self.table.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """As many gathers."""
        for op in self.table.ops(step, numerics):
            yield replace(op, cost=op.cost * self.per_token)


@frozen
class DepthDecoder(Part):
    """A small decoder that says the further codebooks of a frame one after the other (Moshi's depth transformer).

    before, blocks, after: its parts. head: output of one codebook, of which there are codebooks - 1.
    """

    before: tuple[Part, ...]
    blocks: tuple[Block, ...]
    after: tuple[Part, ...]
    head: Linear
    codebooks: int

    def tensors(self) -> Iterable[Tensor]:
        """Every tensor once."""
        for parts, count in self._all():
            for part in parts:
                for tensor in part.tensors():
                    yield replace(tensor, group="depth", copies=tensor.copies * count)
        yield from self.head.tensors(copies=self.codebooks - 1)

    def _all(self) -> Iterable[tuple[tuple[Part, ...], int]]:
        yield self.before, 1
        for block in self.blocks:
            yield block.parts, block.count
        yield self.after, 1

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The passes that one frame of every sequence takes: two tokens, then one at a time over what they left.

        n - 1 passes for n codebooks, over 2 … n keys; each reads the layers anew, so the weights that they read are
        n - 1 times those that are there. Passes over 3 … n keys are counted at their mean, which costs the same. The
        cache lives no longer than the frame: it is counted as activations.
        """
        rows, n = step.head_rows, self.codebooks
        middle, some = (3 + n) // 2, (n - 2) // 2
        later = [(middle, n - 2)] if n % 2 else [(middle, some), (middle + 1, some)]
        passes = [(Step(rows, 2, 2, step.causal), 1), *((Step(rows, 1, keys), count) for keys, count in later if count)]
        for inner, times in passes:
            for parts, count in self._all():
                for part in parts:
                    for op in part.ops(inner, numerics):
                        yield replace(op, cost=_kept_on_chip(op.cost), count=op.count * count * times)
            head = self.head.op(rows, numerics)
            yield replace(head, count=times)


def _kept_on_chip(cost: Cost) -> Cost:
    """Cache traffic as activations."""
    act_bytes = cost.act_bytes + cost.kv_read_bytes + cost.kv_write_bytes
    return replace(cost, kv_read_bytes=0, kv_write_bytes=0, act_bytes=act_bytes)
