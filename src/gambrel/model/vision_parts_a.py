"""Parts of towers: what runs over patches or frames beside a text model, and the projector behind it.

    p  patches or frames that pass through the tower     d, f  its hidden and inner width     u  rows merged into one

A tower runs only in a pass with media: Step.media_tokens is p of each sequence, counted where the tower's layers run,
before any merging. The patches of one sequence are taken as one picture, in which every patch meets every other: give
several pictures (or the frames of a video, where a tower keeps them apart) as several sequences of the batch.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.parts import Attention, Elementwise, FeedForward, Linear, Norm, Part
from gambrel.types import Numerics, Op, Step, Tensor
from gambrel.units import minimum, total
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gambrel.model.builder import Builder


@frozen
class Merged(Part):
    """Parts that see one row for every `unit` rows of the stack that they stand in, such as a projector.

    unit: rows merged into one [1]; a rest counts as a whole row, as padding makes it one. times: rows that come of
    each such row instead, for what stands before a merging [1].
    """

    parts: tuple[Part, ...]
    unit: int = 1
    times: int = 1

    def tensors(self) -> Iterable[Tensor]:
        """Those of its parts."""
        for part in self.parts:
            yield from part.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Those of its parts over ceil(p / u) rows of each sequence, times what each is split into."""
        rows = [-(-g.new_tokens // self.unit) * self.times for g in step.groups]
        groups = [Step(g.batch, n, n, causal=False, logits="all") for g, n in zip(step.groups, rows, strict=True)]
        merged = groups[0]
        for group in groups[1:]:
            merged = merged + group
        for part in self.parts:
            yield from part.ops(merged, numerics)


@frozen
class BlockAttention(Part):
    """Bidirectional attention within blocks of at most `block` rows, such as the windows of Qwen2.5-VL's tower.

    2·n_h·(d_qk + d_v)·p·min(p, block) FLOPs: exact where the picture's sides are multiples of the window's; ragged
    windows at the edges have fewer scores.
    """

    attention: Attention
    block: int

    def tensors(self) -> Iterable[Tensor]:
        """Those of the attention."""
        return self.attention.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Those of the attention, with only the scores of each row's own block."""
        own = self.attention
        scores = total(g.batch * g.new_tokens * minimum(g.new_tokens, self.block) for g in step.groups)
        for op in own.ops(step, numerics):
            if op.role != "attention":
                yield op
                continue
            flops = 2 * own.n_heads * (own.d_qk + own.d_v) * scores
            cost = replace(op.cost, flops=flops, vector_flops=5 * own.n_heads * scores)
            yield replace(op, name=f"attention (blocks of {self.block})", cost=cost)


@frozen
class Resting(Part):
    """Weights of parts that a pass of text leaves alone, such as the experts of media tokens."""

    parts: tuple[Part, ...]

    def tensors(self) -> Iterable[Tensor]:
        """Those of its parts: resident, not streamed."""
        for part in self.parts:
            for tensor in part.tensors():
                yield replace(tensor, streamed=False)


@frozen
class Loose(Part):
    """Parameters of a tower that take part in no product: a position table, scales [1]."""

    name: str
    params: int
    stored_bytes: int

    def tensors(self) -> Iterable[Tensor]:
        """All of them as one tensor."""
        if self.params:
            yield Tensor(self.name, "vision", self.params, self.stored_bytes, streamed=False)


@frozen
class Layer:
    """The shape of one kind of layer of a vision transformer.

    d, f: hidden and inner width. heads, kv_heads, d_head: of its attention (kv_heads 0: as many as heads; d_head 0:
    d / heads). norm: "layer" (gain and bias) or "rms". sandwich: a norm behind each half too. fused_qkv: one matrix.
    qk_norm: gains over each head's queries and keys. v_norm: values are normalised too, without a gain. block: see
    BlockAttention.
    """

    d: int
    f: int
    heads: int
    kv_heads: int = 0
    d_head: int = 0
    norm: str = "layer"
    sandwich: bool = False
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    fused_qkv: bool = True
    qk_norm: bool = False
    v_norm: bool = False
    block: int | None = None


def weight(b: Builder, name: str, n_in: int, n_out: int, bias: bool = True, group: str = "vision") -> Linear:
    """A matrix of a tower: in the base dtype, since schemes leave towers alone."""
    compute = b.precision.overrides.compute
    fmt = replace(b.base, compute=compute) if compute else b.base
    return Linear(name, group, n_in, n_out, fmt, b.base if bias else None)


def gain(b: Builder, name: str, width: int, bias: bool = False, per_row: int = 1) -> Norm:
    """An RMS norm, or a layer norm with `bias`."""
    return Norm(name, width, b.base, bias, per_row)


def loose(b: Builder, name: str, params: int) -> Loose:
    """Parameters without a product in the base dtype."""
    return Loose(f"vision.{name}", params, b.base.bytes(1, params))


def vit_layer(b: Builder, t: Layer) -> tuple[Part, ...]:
    """One layer: norm, attention, add, norm, feed-forward, add."""
    bias = t.norm == "layer"
    names = ("input_norm", "post_attention_norm", "pre_mlp_norm", "post_mlp_norm") if t.sandwich else ("norm1", "norm2")
    norms = [(gain(b, name, t.d, bias),) for name in names]
    before, after, ffn_before, ffn_after = norms if t.sandwich else (norms[0], (), norms[1], ())
    add = Elementwise("residual_add", t.d)
    return (*before, vit_attention(b, t), *after, add, *ffn_before, vit_mlp(b, t), *ffn_after, add)


def vit_attention(b: Builder, t: Layer) -> Part:
    """Bidirectional attention, within blocks where the layer has them."""
    d_head, kv = t.d_head or t.d // t.heads, t.kv_heads or t.heads
    q, k = t.heads * d_head, kv * d_head
    if t.fused_qkv:
        projections: tuple[Linear, ...] = (weight(b, "qkv", t.d, q + 2 * k, t.qkv_bias),)
    else:
        sides = (("q_proj", q), ("k_proj", k), ("v_proj", k))
        projections = tuple(weight(b, name, t.d, n, t.qkv_bias) for name, n in sides)
    norms: tuple[Norm, ...] = ()
    if t.qk_norm:
        norms = (gain(b, "q_norm", d_head, per_row=t.heads), gain(b, "k_norm", d_head, per_row=kv))
    if t.v_norm:
        norms += (Norm("v_norm", d_head, b.base, per_row=kv, affine=False),)
    out = weight(b, "proj", q, t.d, t.out_bias)
    whole = Attention(projections, out, t.heads, kv, d_head, d_head, b.base, norms)
    return whole if t.block is None else BlockAttention(whole, t.block)


def vit_mlp(b: Builder, t: Layer) -> FeedForward:
    """The feed-forward network of a layer."""
    names = ("gate_proj", "up_proj") if t.gated else ("fc1",)
    inner = tuple(weight(b, name, t.d, t.f, t.mlp_bias) for name in names)
    return FeedForward(inner, weight(b, "down_proj" if t.gated else "fc2", t.f, t.d, t.mlp_bias), t.f, t.gated)
