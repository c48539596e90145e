"""Compressed attention and hyper-connections, as DeepSeek-V4 has them.

    B  sequences     q  new tokens     s  keys in context     W  window     r  tokens that become one entry
    k  entries that a query chooses    N  residual streams    d  hidden width    m  rows (new tokens of all sequences)

Source: the modules of transformers 5.24 (deepseek_v4) and the paper's section 2 that they cite.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.parts import Elementwise, Linear, Norm, Part, rotary
from gambrel.model.sparse import vector_op
from gambrel.types import Cache, Cost, Format, Numerics, Op, Step, Tensor
from gambrel.units import Num, maximum, minimum, share, total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def entries_read(step: Step, rate: int, top_k: int | None = None) -> Num:
    """Entries read at the least, summed over the sequences: B · min(⌊s / r⌋, k)."""
    return total(g.batch * _capped(g.context_tokens // rate, top_k) for g in step.groups)


def entries_made(step: Step, rate: int) -> Num:
    """Entries that the pass completes: B · (⌊s / r⌋ - ⌊(s - q) / r⌋)."""
    return total(g.batch * (g.context_tokens // rate - _cached(g) // rate) for g in step.groups)


def entry_scores(step: Step, rate: int, top_k: int | None = None) -> Num:
    """Query-entry pairs, one head, summed over the sequences [1].

    Causal: the query at position t meets min(⌊t / r⌋, k) entries, t counted from 1. Every key: q · min(⌊s / r⌋, k).
    """
    return total(g.batch * _entry_scores(g, rate, top_k) for g in step.groups)


def _entry_scores(g: Step, rate: int, top_k: int | None) -> Num:
    if not g.causal:
        return g.new_tokens * _capped(g.context_tokens // rate, top_k)
    return _staircase(g.context_tokens, rate, top_k) - _staircase(_cached(g), rate, top_k)


def _cached(g: Step) -> Num:
    return maximum(g.context_tokens - g.new_tokens, 0)


def _capped(entries: Num, top_k: int | None) -> Num:
    return entries if top_k is None else minimum(entries, top_k)


def _staircase(n: Num, rate: int, top_k: int | None) -> Num:
    """Sum of min(⌊t / r⌋, k) for t = 1 … n."""
    if top_k is not None:
        edge = rate * top_k
        return _staircase(minimum(n, edge), rate, None) + top_k * maximum(n - edge, 0)
    whole = n // rate
    return rate * (whole * (whole - 1) // 2) + whole * (n - rate * whole + 1)


@frozen
class GroupedLinear(Linear):
    """A block-diagonal matrix: `groups` slices of the input, each with its own n_in x (n_out / groups) part."""

    groups: int = 1

    def op(self, rows: Num, numerics: Numerics) -> Op:
        """As many FLOPs as one [m, n_in] x [n_in, n_out] product; reads groups · n_in inputs per row."""
        op = super().op(rows, numerics)
        more = rows * (self.groups - 1) * self.n_in * self._input_bytes(numerics)
        return replace(op, cost=replace(op.cost, act_bytes=op.cost.act_bytes + more))


@frozen
class CompressedAttention(Part):
    """Multi-query attention over a window of keys and over compressed entries of everything before.

    The one KV head's vector serves as key and as value, so one of d_head is cached per token. queries: projections
    and norms of the queries. key, key_norm: hidden to d_head. out: grouped, then to hidden. rate: r, None where the
    layer has the window alone. top_k: entries that a query meets, None for all. base: format of the sinks.
    """

    queries: tuple[Linear | Norm, ...]
    key: Linear
    key_norm: Norm
    out: tuple[Linear, ...]
    n_heads: int
    d_head: int
    d_rope: int
    window: int
    base: Format
    rate: int | None = None
    top_k: int | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Projections, norms, one sink per head."""
        for part in (*self.queries, self.key, self.key_norm, *self.out):
            yield from part.tensors()
        yield Tensor("sinks", "attention", self.n_heads, self.base.bytes(1, self.n_heads), ways=self.n_heads)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections, rotation of queries, key and output, one kernel over window and entries, output projections."""
        for part in (*self.queries, self.key, self.key_norm):
            yield from part.ops(step, numerics)
        yield from rotary(2 * self.n_heads + 1, self.d_rope, step, numerics)
        yield self.kernel(step, numerics)
        for part in self.out:
            yield from part.ops(step, numerics)

    def kernel(self, step: Step, numerics: Numerics) -> Op:
        """4·n_h·d_head FLOPs per score; scores with the window's keys and with min(⌊t / r⌋, k) entries.

        Reads B·(min(s, W + q - 1) + min(⌊s / r⌋, k))·d_head elements, writes the new tokens' keys that stay.
        """
        scores, keys = step.scores(self.window), step.keys_read(self.window)
        if self.rate is not None:
            scores = scores + entry_scores(step, self.rate, self.top_k)
            keys = keys + entries_read(step, self.rate, self.top_k)
        sinks = self.base.bytes(1, self.n_heads)
        cost = Cost(
            flops=4 * self.n_heads * self.d_head * scores,
            vector_flops=5 * self.n_heads * scores,
            weight_bytes=sinks,
            expected_weight_bytes=sinks,
            kv_read_bytes=keys * self._key_bytes(numerics),
            kv_write_bytes=step.keys_written(self.window) * self._key_bytes(numerics),
            act_bytes=2 * step.rows * self.n_heads * self.d_head * numerics.base.element_bytes,
        )
        entries = "" if self.rate is None else f" and {self.top_k or 'all'} entries of {self.rate}"
        name, shape = f"attention (window {self.window}{entries})", f"{self.n_heads} heads, 1 KV of {self.d_head}"
        return Op(name, "attention", numerics.attention, cost, shape=shape, ways=self.n_heads, kv_ways=1)

    def _key_bytes(self, numerics: Numerics) -> Num:
        return self.d_head * numerics.kv.element_bytes

    def cache(self, numerics: Numerics) -> Cache:
        """One vector per token of the window."""
        return Cache(self._key_bytes(numerics), self.window, ways=1)


@frozen
class Compressor(Part):
    """Pools every r tokens into one cached entry of `width`: a learned softmax over projections of the hidden state.

    keys, gates: hidden to width, or to twice that where windows overlap (each token then serves its own window and
    the next). queries, weights: of an indexer that scores all entries with n_heads heads; None where it has none.
    """

    keys: Linear
    gates: Linear
    norm: Norm
    width: int
    rate: int
    base: Format
    queries: Linear | None = None
    weights: Linear | None = None
    n_heads: int = 0

    @property
    def overlap(self) -> int:
        """2 where windows overlap, else 1."""
        return self.keys.n_out // self.width

    @property
    def _places(self) -> int:
        return self.rate * self.keys.n_out

    def tensors(self) -> Iterable[Tensor]:
        """Projections, a bias for each position in a window, the entry's norm, the indexer's projections."""
        yield from self.keys.tensors()
        yield from self.gates.tensors()
        yield Tensor("position_bias", "attention", self._places, self.base.bytes(1, self._places), ways=1)
        yield from self.norm.tensors()
        for part in (self.queries, self.weights):
            if part is not None:
                yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections of every token, pooling with its norm, and the indexer's scores where there is one."""
        yield from self.keys.ops(step, numerics)
        yield from self.gates.ops(step, numerics)
        yield self._pool(step, numerics)
        if self.queries is None or self.weights is None:
            return
        yield from self.queries.ops(step, numerics)
        yield from self.weights.ops(step, numerics)
        scores = entry_scores(step, self.rate)
        cost = Cost(
            flops=2 * self.n_heads * self.width * scores,
            vector_flops=3 * self.n_heads * scores,
            kv_read_bytes=entries_read(step, self.rate) * self._entry_bytes(numerics),
            act_bytes=step.rows * self.n_heads * self.width * numerics.base.element_bytes,
        )
        shape = f"{self.n_heads} heads over entries of {self.width}"
        yield Op("index_scores", "attention", numerics.attention, cost, shape=shape, ways=1, kv_ways=1)

    def _pool(self, step: Step, numerics: Numerics) -> Op:
        """Pooling: each token's key and gate pass once through the buffer of unfinished windows, entries are written.

        The buffer keeps at most r tokens of a pass, so B · min(q, s, r) rows of key and gate are written and read.
        """
        stored = self.base.bytes(1, self._places) + self.norm.format.bytes(1, self.norm.params)
        buffered = step.keys_written(self.rate) * 2 * self.keys.n_out * numerics.base.element_bytes
        cost = Cost(
            vector_flops=8 * step.rows * self.keys.n_out,
            weight_bytes=stored,
            expected_weight_bytes=stored,
            kv_read_bytes=buffered,
            kv_write_bytes=buffered + entries_made(step, self.rate) * self._entry_bytes(numerics),
            act_bytes=2 * step.rows * self.keys.n_out * numerics.base.element_bytes,
        )
        return Op(f"compress {self.rate} tokens", "reduction", numerics.base.name, cost, ways=1, kv_ways=1)

    def _entry_bytes(self, numerics: Numerics) -> Num:
        return self.width * numerics.kv.element_bytes

    def cache(self, numerics: Numerics) -> Cache:
        """An entry per r tokens; at most r - 1 tokens' keys and gates, and where windows overlap the last window's."""
        waiting = 2 * (self.rate - 1) * self.keys.n_out + (self.overlap - 1) * 2 * self.rate * self.width
        per_token = share(self._entry_bytes(numerics), self.rate)
        return Cache(per_token, fixed_bytes=waiting * numerics.base.element_bytes, ways=1)


@frozen
class HyperConnection(Part):
    """Takes a layer's input from N residual streams and mixes its output back, with weights from the streams.

    mix: N·d to (2 + N)·N weights. streams: N. width: d. vectors: further learned numbers. Source: manifold-constrained
    hyper-connections, arXiv:2512.24880.
    """

    mix: Linear
    streams: int
    width: int
    vectors: int
    base: Format

    def tensors(self) -> Iterable[Tensor]:
        """The projection, and its biases and scales."""
        yield from self.mix.tensors()
        stored = self.base.bytes(1, self.vectors)
        yield Tensor(f"{self.mix.name}.vectors", self.mix.group, self.vectors, stored, ways=1)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The projection, the streams' product with an N x N matrix per token (2·m·N²·d FLOPs), sums over streams."""
        n, d = self.streams, self.width
        yield from self.mix.ops(step, numerics)
        yield vector_op(
            f"{self.mix.name}.vectors", self.base.bytes(1, self.vectors), step.rows * self.mix.n_out, numerics
        )
        moved = 2 * step.rows * n * d * numerics.base.element_bytes
        cost = Cost(flops=2 * step.rows * n * n * d, act_bytes=moved)
        yield Op("mix_streams", "gemm", self.mix.format.compute, cost, shape=f"{n} streams of {d}", ways=1)
        yield from Elementwise("read_streams", d, reads=n, writes=1, flops_per_element=2 * n).ops(step, numerics)
        yield from Elementwise("write_streams", d, reads=1 + n, writes=n, flops_per_element=2 * n).ops(step, numerics)


@frozen
class HyperHead(Part):
    """Sums the N streams into one before the final norm; only the rows that reach the output head need it."""

    mix: Linear
    vectors: int
    base: Format

    def tensors(self) -> Iterable[Tensor]:
        """The projection, and its biases and scale."""
        yield from self.mix.tensors()
        yield Tensor("hc_head.vectors", "head", self.vectors, self.base.bytes(1, self.vectors), ways=1)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The projection and a weighted sum."""
        yield self.mix.op(step.head_rows, numerics)
        yield vector_op("hc_head.vectors", self.base.bytes(1, self.vectors), step.head_rows * self.mix.n_in, numerics)
