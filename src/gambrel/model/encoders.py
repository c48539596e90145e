"""Encoders, cross-attention and towers: what runs over a source or over media beside the decoder."""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.parts import Linear, Norm, Part, dims
from gambrel.types import Cache, Cost, Format, Numerics, Op, Step, Tensor
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gambrel.model.arch import Block
    from gambrel.units import Num


@frozen
class Stack(Part):
    """Layers that do not belong to the decoder: an encoder over the source, or a tower over media.

    over: "source" (runs where the step encodes) or "media" (runs where the step has media tokens). rows_per_token:
    rows of this stack per token it stands for, such as patches before a merger. Its attention is bidirectional.
    loose: parameters that take part in no product, such as position tables and norms counted together.
    """

    name: str
    blocks: tuple[Block, ...]
    over: str
    group: str = ""
    loose: int = 0
    base: Format | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Every tensor of every layer; a decode step reads none of them, so none is streamed."""
        for block in self.blocks:
            for part in block.parts:
                for t in part.tensors():
                    group = self.group or t.group
                    copies = t.copies * block.count
                    yield Tensor(t.name, group, t.params, t.stored_bytes, copies, t.gemm, False, t.ways, t.used)
        if self.loose and self.base is not None:
            group = self.group or "embedding"
            yield Tensor(f"{self.name}.loose", group, self.loose, self.base.bytes(1, self.loose), streamed=False)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The operators of its layers over the whole source or all media, in a pass that has them."""
        steps = step.encoder_steps if self.over == "source" else step.media_steps
        if not steps:
            return
        inner = steps[0]
        for other in steps[1:]:
            inner = inner + other
        for block in self.blocks:
            for part in block.parts:
                for op in part.ops(inner, numerics):
                    yield replace(op, cost=without_cache(op.cost), count=op.count * block.count)


def without_cache(cost: Cost) -> Cost:
    """Keys and values of a bidirectional pass are activations, not cache."""
    return Cost(
        cost.flops,
        cost.vector_flops,
        cost.weight_bytes,
        cost.expected_weight_bytes,
        act_bytes=cost.act_bytes + cost.kv_read_bytes + cost.kv_write_bytes,
    )


@frozen
class CrossAttention(Part):
    """Attention of the decoder over the encoder's output, whose keys and values are made once and kept.

    query, key, value, out: the projections. n_heads, n_kv_heads, d_head as in Attention. norms: of queries and keys.
    """

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    n_heads: int
    n_kv_heads: int
    d_head: int
    norms: tuple[Norm, ...] = ()

    def tensors(self) -> Iterable[Tensor]:
        """Projections and norms; only a pass that encodes reads the key and value weights."""
        yield from self.key.tensors(streamed=False)
        yield from self.value.tensors(streamed=False)
        for part in (self.query, self.out, *self.norms):
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Query projection, keys and values of the source in a pass that encodes, the kernel, output projection.

        2·n_h·2·d FLOPs for each new token and source token; the kept keys and values are read once a sequence. A
        step that does not encode leaves the key and value weights alone.
        """
        yield from self.query.ops(step, numerics)
        for norm in self.norms:
            yield from norm.ops(step, numerics)
        written = step.source_written
        if not (isinstance(written, int) and written == 0):
            yield self.key.op(written, numerics)
            yield self.value.op(written, numerics)
        yield self._kernel(step, numerics, written)
        yield from self.out.ops(step, numerics)

    def _kernel(self, step: Step, numerics: Numerics, written: Num) -> Op:
        scores, per_token = step.source_scores, self._kv_bytes(numerics)
        cost = Cost(
            flops=4 * self.n_heads * self.d_head * scores,
            vector_flops=5 * self.n_heads * scores,
            kv_read_bytes=step.source_keys * per_token,
            kv_write_bytes=written * per_token,
            act_bytes=2 * step.rows * self.n_heads * self.d_head * numerics.base.element_bytes,
        )
        shape = f"{self.n_heads} heads over the source, {dims(step.rows, self.d_head)}"
        return Op(
            "cross_attention",
            "attention",
            numerics.attention,
            cost,
            shape=shape,
            ways=self.n_heads,
            kv_ways=self.n_kv_heads,
        )

    def _kv_bytes(self, numerics: Numerics) -> Num:
        return 2 * self.n_kv_heads * self.d_head * numerics.kv.element_bytes

    def cache(self, numerics: Numerics) -> Cache:
        """Keys and values of the source."""
        return Cache(0, ways=self.n_kv_heads, source_bytes_per_token=self._kv_bytes(numerics))
