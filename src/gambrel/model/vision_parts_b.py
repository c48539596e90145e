"""Towers over pictures: rows of each stage for a number of media tokens, what is idle, and the towers themselves.

m  media tokens of a sequence     r  rows of a stage     P  rows of one picture (or of one window)
d  width of the tower     n_h  heads     s  side of a window in patches
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.arch import Block
from gambrel.model.encoders import Stack
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Attention, Elementwise, FeedForward, Linear, Norm, Part, dims
from gambrel.types import Cost, Format, Numerics, Op, Step, Tensor
from gambrel.units import Num, ceil_div, is_grid, maximum, minimum, total, where
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from gambrel.model.builder import Builder
    from gambrel.types import Cache


def ratio(a: Num, b: Num) -> Num:
    """a / b; exact where both are whole and b divides a."""
    if isinstance(a, int) and isinstance(b, int) and a % b == 0:
        return a // b
    return a / b


@frozen
class Rows:
    """Rows of a stage for m media tokens: r = m · scale[0] / scale[1], in groups that do not attend to one another.

    scale: rows per media token, as a fraction: (1, 4) behind a merger of 2 x 2 patches. group: rows of a whole
    picture or window, P; more rows are further pictures, and None is one picture whatever its size. extra: rows that
    every group has beside (a class token), or lacks (-1).
    """

    scale: tuple[int, int] = (1, 1)
    group: int | None = None
    extra: int = 0

    def split(self, tokens: Num) -> tuple[Num, Num]:
        """Groups and rows of each: r / min(r, P) groups of min(r, P) + extra rows."""
        rows = maximum(ratio(tokens * self.scale[0], self.scale[1]), 1)
        each = rows if self.group is None else minimum(rows, self.group)
        return ratio(rows, each), maximum(each + self.extra, 1)


@frozen
class Stage(Part):
    """One stage of a tower: a stack of layers that runs over the rows which `rows` makes of the media tokens.

    stack: the layers. over: which tokens of the step feed it, "media" or "source" (then only
    a pass that encodes runs it).
    """

    stack: Stack
    rows: Rows
    over: str = "media"

    def tensors(self) -> Iterable[Tensor]:
        """Those of the layers; none is streamed by a step of text."""
        return self.stack.tensors()

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The operators of the layers, in a pass that has media; keys and values are activations there, not cache."""
        inner: Step | None = None
        present: Num = 1
        for g in step.groups:
            tokens = g.media_tokens if self.over == "media" else g.source_tokens if g.encode else 0
            if not (is_grid(tokens) or tokens != 0):
                continue
            groups, rows = self.rows.split(tokens)
            part = Step(g.batch * groups, rows, rows, causal=False, logits="all")
            inner = part if inner is None else inner + part
            present = having(tokens)
        if inner is None:
            return
        for block in self.stack.blocks:
            for layer in block.parts:
                for op in layer.ops(inner, numerics):
                    yield replace(op, cost=_uncached(op.cost) * present, count=op.count * block.count)


def having(tokens: Num) -> Num:
    """1 where there are tokens, 0 where a grid has none."""
    return where(tokens > 0, 1, 0) if is_grid(tokens) else 1


def _uncached(cost: Cost) -> Cost:
    moved = cost.act_bytes + cost.kv_read_bytes + cost.kv_write_bytes
    return replace(cost, act_bytes=moved, kv_read_bytes=0, kv_write_bytes=0)


@frozen
class Idle(Part):
    """Weights that no pass reads which makes text: a pooling head, a picture generator. Resident, not streamed."""

    parts: tuple[tuple[Part, int], ...]
    group: str = "vision"
    loose: int = 0
    base: Format | None = None

    def tensors(self) -> Iterable[Tensor]:
        """Every tensor as often as it occurs; the group is the parts' own where `group` is empty."""
        for part, count in self.parts:
            for t in part.tensors():
                yield replace(t, group=self.group or t.group, copies=t.copies * count, streamed=False, gemm=False)
        if self.loose and self.base is not None:
            group = self.group or "embedding"
            yield Tensor("vectors", group, self.loose, self.base.bytes(1, self.loose), streamed=False)


@frozen
class RelativePositions(Part):
    """SAM's decomposed relative positions of a window of s x s patches, added to the scores.

    Two tables of (2·s - 1) x d / n_h. Every query meets s rows and s columns: 2·2·r·d·s FLOPs.
    Source: MViTv2, arXiv:2112.01526, section 4.1, as in transformers' SamVisionAttention.
    """

    side: int
    width: int
    d_head: int
    base: Format

    def tensors(self) -> Iterable[Tensor]:
        """The tables of rows and columns."""
        size = 2 * (2 * self.side - 1) * self.d_head
        yield Tensor("rel_pos", "vision", size, self.base.bytes(1, size), streamed=False)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Queries times the tables."""
        stored = self.base.bytes(1, 2 * (2 * self.side - 1) * self.d_head)
        cost = Cost(
            flops=4 * step.rows * self.width * self.side,
            weight_bytes=stored,
            expected_weight_bytes=stored,
            act_bytes=step.rows * self.width * numerics.base.element_bytes,
        )
        yield Op("rel_pos", "attention", numerics.attention, cost, shape=dims(step.rows, self.width))


@frozen
class WithSource(Part):
    """A layer that runs only for sequences that have a source, such as mllama's cross-attention layers.

    A pass of text alone skips it and leaves its weights alone (transformers' MllamaTextModel does), so they are not
    streamed; `gates` are the tanh gates, one element each.
    """

    parts: tuple[Part, ...]
    gates: int
    base: Format

    def tensors(self) -> Iterable[Tensor]:
        """Weights of the layer and its gates."""
        for part in self.parts:
            for t in part.tensors():
                yield replace(t, streamed=False)
        yield Tensor("gates", "attention", self.gates, self.base.bytes(1, self.gates), streamed=False)

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """The layer's operators over the sequences with a source."""
        groups = [g for g in step.groups if is_grid(g.source_tokens) or g.source_tokens != 0]
        if not groups:
            return
        inner = groups[0]
        for other in groups[1:]:
            inner = inner + other
        present = having(groups[0].source_tokens) if len(groups) == 1 else 1
        for part in self.parts:
            for op in part.ops(inner, numerics):
                yield replace(op, cost=op.cost * present)

    def cache(self, numerics: Numerics) -> Cache | None:
        """Keys and values of the source."""
        found = (part.cache(numerics) for part in self.parts)
        return next((cache for cache in found if cache is not None), None)


@frozen
class QueryPooling(Part):
    """Learned queries that meet all patches of a picture once (Aria's projector).

    keys: projections of every patch. queries: projections of every query, in order. table: (patches of a picture, its
    queries), ascending; a picture between two sizes counts as the larger. Source: arXiv:2410.05993, section 2, and
    transformers' AriaProjector.
    """

    keys: tuple[Linear, ...]
    queries: tuple[Linear, ...]
    table: tuple[tuple[int, int], ...]
    width: int
    n_heads: int

    def tensors(self) -> Iterable[Tensor]:
        """The projections."""
        for part in (*self.keys, *self.queries):
            yield from part.tensors()

    def count(self, patches: Num) -> Num:
        """Queries of a picture."""
        found: Num = self.table[-1][1]
        for size, queries in reversed(self.table):
            found = where(patches <= size, queries, found)
        return found

    def ops(self, step: Step, numerics: Numerics) -> Iterable[Op]:
        """Projections of patches and queries; 4·d FLOPs for each pair of a query and a patch."""
        rows = total(g.batch * self.count(g.new_tokens) for g in step.groups)
        pairs = total(g.batch * self.count(g.new_tokens) * g.new_tokens for g in step.groups)
        for part in self.keys:
            yield from part.ops(step, numerics)
        moved = (2 * step.rows + 2 * rows) * self.width * numerics.base.element_bytes
        cost = Cost(flops=4 * self.width * pairs, vector_flops=5 * self.n_heads * pairs, act_bytes=moved)
        shape = f"{dims(rows, self.width)} over {dims(step.rows, self.width)}"
        yield Op("query_attention", "attention", numerics.attention, cost, shape=shape, ways=self.n_heads)
        for part in self.queries:
            yield part.op(rows, numerics)


class Autoencoder:
    """Gathers the weights of a VQ autoencoder (Janus): residual blocks, and attention at the lowest resolution.

    Source: "Make-a-scene", arXiv:2203.13131, as in transformers' JanusVQVAE.
    parts: each with how often it occurs; convolutions count as "head", since they draw.
    """

    def __init__(self, base: Format) -> None:
        self.base = base
        self.parts: list[tuple[Part, int]] = []

    def linear(self, n_in: int, n_out: int, group: str = "head", count: int = 1) -> None:
        """A linear or a 1 x 1 convolution, with bias."""
        self.parts.append((Linear("conv", group, n_in, n_out, self.base, self.base), count))

    def conv(self, n_in: int, n_out: int) -> None:
        """A 3 x 3 convolution."""
        self.linear(9 * n_in, n_out)

    def norm(self, width: int) -> None:
        """A group norm."""
        self.parts.append((Norm("norm", width, self.base, True), 1))

    def residual(self, n_in: int, n_out: int) -> None:
        """Two norms and convolutions, and a 1 x 1 convolution around them where the width changes."""
        self.norm(n_in)
        self.conv(n_in, n_out)
        self.norm(n_out)
        self.conv(n_out, n_out)
        if n_in != n_out:
            self.linear(n_in, n_out)

    def attend(self, width: int) -> None:
        """Attention over the picture: queries, keys, values and output."""
        self.norm(width)
        self.linear(width, width, "attention", 4)

    def level(self, n_in: int, n_out: int, count: int) -> None:
        """The residual blocks of one resolution."""
        for i in range(count):
            self.residual(n_out if i else n_in, n_out)

    def middle(self, width: int) -> None:
        """Two residual blocks with attention between."""
        self.residual(width, width)
        self.attend(width)
        self.residual(width, width)

    def encoder(self, widths: list[int], first: int, count: int) -> None:
        """From the first width down to the lowest resolution, a strided convolution between the levels."""
        before = [first, *widths[:-1]]
        for n_in, n_out in zip(before, widths, strict=True):
            self.level(n_in, n_out, count)
        for width in widths[:-1]:
            self.conv(width, width)
        for _ in range(count):
            self.attend(widths[-1])
        self.middle(widths[-1])
        self.norm(widths[-1])

    def decoder(self, widths: list[int], count: int) -> None:
        """From the lowest resolution up again."""
        self.middle(widths[-1])
        before = [*widths[1:], widths[-1]]
        for n_in, n_out in zip(before, widths, strict=True):
            self.level(n_in, n_out, count)
        for _ in range(count):
            self.attend(widths[-1])
        for width in widths[1:]:
            self.conv(width, width)
        self.norm(widths[0])


# Towers: small readers ------------------------------------------------------------------------


def tower_config(top: Fields, b: Builder, key: str, absent: Mapping[str, Any], defaults: Mapping[str, Any]) -> Fields:
    """A tower's config with its class defaults; `absent` are the outer class's own where there is no such config."""
    if top.has(key):
        fields = top.nested(key, defaults=defaults)
    else:
        top.raw(key, None)
        fields = Fields({}, defaults={**defaults, **absent}, where=f"{key}.")
    b.beside.append(fields)
    return fields


def pair(f: Fields, key: str) -> tuple[int, int]:
    """Height and width: a whole number or a list of two."""
    value = f.raw(key)
    if isinstance(value, (list, tuple)):
        if len(value) != 2 or any(isinstance(x, bool) or not isinstance(x, int) or x < 1 for x in value):
            raise ConfigError(f"{f.label(key)} is {value!r:.60}; accepted is a whole number or two of them")
        return value[0], value[1]
    side = f.whole(key)
    return side, side


def grid(f: Fields) -> tuple[int, int]:
    """Patches of a picture, down and across."""
    (height, width), (down, across) = pair(f, "image_size"), pair(f, "patch_size")
    if down > height or across > width:
        raise ConfigError(f"{f.label('patch_size')} is {f.raw('patch_size')!r}; accepted is at most image_size")
    return height // down, width // across


def square(f: Fields) -> int:
    """Patches along one side of a picture, for towers that take squares only."""
    down, across = grid(f)
    if down != across:
        raise ConfigError(f"{f.label('image_size')} is {f.raw('image_size')!r}; accepted is a square")
    return down


def real(f: Fields, key: str, default: float) -> float:
    """A positive number."""
    value = f.raw(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise ConfigError(f"{f.label(key)} is {value!r:.60}; accepted is a positive number")
    return value


def indices(f: Fields, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """A list of layer indices."""
    if not f.has(key):
        f.raw(key, None)
        return default
    values = f.items(key)
    if any(isinstance(x, bool) or not isinstance(x, int) or x < 0 for x in values):
        raise ConfigError(f"{f.label(key)} is {values!r:.60}; accepted is a list of layer indices")
    return tuple(values)


class Maker:
    """Builds the parts of one tower from its fields; every weight counts as "vision"."""

    def __init__(self, b: Builder, v: Fields, path: str = "vision_tower") -> None:
        self.b, self.v, self.path = b, v, path
        self.d = v.whole("hidden_size")

    def linear(self, name: str, n_in: int, n_out: int, bias: bool = True) -> Linear:
        """A weight matrix or, as n_in = channels x kernel, a convolution."""
        fmt = self.b.precision.matrix(f"{self.path}.{name}", "vision")
        return Linear(name, "vision", n_in, n_out, fmt, self.b.base if bias else None)

    def norm(self, name: str, width: int | None = None, bias: bool = True) -> Norm:
        """A LayerNorm, or an RMSNorm without bias."""
        return Norm(name, width or self.d, self.b.base, bias)

    def patches(self, bias: bool, channels: str = "num_channels", frames: int = 1) -> Linear:
        """The patch embedding, a convolution whose stride is its kernel: one product of c·p² inputs per patch."""
        down, across = pair(self.v, "patch_size")
        return self.linear("patch_embedding", self.v.whole(channels) * frames * down * across, self.d, bias)

    def attention(
        self, bias: bool, out_bias: bool, norms: tuple[Norm, ...] = (), rotary: bool = False, n_kv: int | None = None
    ) -> Attention:
        """Bidirectional attention; d_head is d / n_h."""
        n = self.v.whole("num_attention_heads")
        if self.d % n or n % (n_kv or n):
            told = f"{self.v.label('hidden_size')} = {self.d} with {n} heads"
            raise ConfigError(f"{told} and {n_kv or n} KV heads; accepted is a multiple of each")
        head = self.d // n
        sizes = (("q_proj", n), ("k_proj", n_kv or n), ("v_proj", n_kv or n))
        projections = tuple(self.linear(name, self.d, heads * head, bias) for name, heads in sizes)
        out = self.linear("o_proj", self.d, self.d, out_bias)
        return Attention(projections, out, n, n_kv or n, head, head, self.b.base, norms, None, rotary)

    def mlp(self, width: int, bias: bool, gated: bool = False) -> FeedForward:
        """The feed-forward network."""
        names = ("gate_proj", "up_proj") if gated else ("fc1",)
        inner = tuple(self.linear(name, self.d, width, bias) for name in names)
        return FeedForward(inner, self.linear("fc2", width, self.d, bias), width, gated)

    def layer(self, attention: Part, mlp: Part, bias: bool = True) -> tuple[Part, ...]:
        """A layer with its norms in front (LayerNorm with bias, RMSNorm without)."""
        add = Elementwise("residual_add", self.d)
        return (self.norm("norm1", bias=bias), attention, add, self.norm("norm2", bias=bias), mlp, add)

    def stage(self, name: str, parts: tuple[Part, ...], rows: Rows, count: int = 1, loose: int = 0) -> Stage:
        """`count` layers of these parts; `loose` parameters take part in no product."""
        stack = Stack(f"{self.path}.{name}", (Block(name, parts, count),), "media", "vision", loose, self.b.base)
        return Stage(stack, rows)


@frozen
class Sight:
    """A tower: its stages, the width of its rows, patches of a picture (None: any size), and class tokens of one."""

    stages: tuple[Part, ...]
    width: int
    picture: int | None
    classes: int = 0


# The towers -----------------------------------------------------------------------------------


def clip(b: Builder, v: Fields) -> Sight:
    """CLIP: a class token, learned positions, a norm before and behind the layers."""
    m, (down, across) = Maker(b, v), grid(v)
    n, picture = v.whole("num_hidden_layers"), down * across
    layer = m.layer(m.attention(True, True), m.mlp(v.whole("intermediate_size"), True))
    stages = (
        m.stage("embeddings", (m.patches(False),), Rows(), loose=(picture + 2) * m.d),
        m.stage("pre_layrnorm", (m.norm("pre_layrnorm"),), Rows((1, 1), picture, 1)),
        m.stage("layers", layer, Rows((1, 1), picture, 1), n, loose=2 * m.d),
    )
    return Sight(stages, m.d, picture, 1)


def siglip_like(b: Builder, v: Fields, positions: int, picture: int | None) -> Sight:
    """SigLIP and what is made like it: learned positions, no class token, a norm behind the layers."""
    m = Maker(b, v)
    mlp = m.mlp(v.whole("intermediate_size"), True)
    rows = Rows((1, 1), picture)
    stages: tuple[Part, ...] = (
        m.stage("embeddings", (m.patches(True),), Rows(), loose=positions * m.d),
        m.stage("layers", m.layer(m.attention(True, True), mlp), rows, v.whole("num_hidden_layers")),
        m.stage("post_layernorm", (m.norm("post_layernorm"),), Rows()),
    )
    if v.flag("vision_use_head", False):  # the pooled vector is not used by a language model
        pooled = (m.linear("in_proj", m.d, 3 * m.d), m.linear("out_proj", m.d, m.d), m.norm("layernorm"), mlp)
        stages = (*stages, Idle(tuple((part, 1) for part in pooled), loose=m.d, base=b.base))
    return Sight(stages, m.d, picture)


def siglip(b: Builder, v: Fields) -> Sight:
    """SigLIP, Idefics 3 and SmolVLM vision."""
    down, across = grid(v)
    return siglip_like(b, v, down * across, down * across)


def pixtral(b: Builder, v: Fields) -> Sight:
    """Pixtral: rotary positions in two dimensions, gated feed-forward, no biases; pictures up to image_size."""
    m, (down, across) = Maker(b, v), grid(v)
    rows = Rows((1, 1), down * across)
    v.used.add("head_dim")  # the class overwrites it with hidden_size / heads
    layer = m.layer(m.attention(False, False, rotary=True), m.mlp(v.whole("intermediate_size"), False, True), False)
    stages = (
        m.stage("embeddings", (m.patches(False), m.norm("ln_pre", bias=False)), Rows()),
        m.stage("layers", layer, rows, v.whole("num_hidden_layers")),
    )
    return Sight(stages, m.d, down * across)


def intern(b: Builder, v: Fields) -> Sight:
    """InternViT: class token, learned positions, layer scales; LayerNorm or RMSNorm, q/k norms over all heads."""
    m, (down, across) = Maker(b, v), grid(v)
    picture, d, bias = down * across, m.d, v.flag("attention_bias")
    layered = v.choice("norm_type", v.text("norm_type"), ("layer_norm", "rms_norm")) == "layer_norm"
    norms = (m.norm("q_norm", bias=False), m.norm("k_norm", bias=False)) if v.flag("use_qk_norm") else ()
    mlp = m.mlp(v.whole("intermediate_size"), True)
    positions = (picture + 1) * d if v.flag("use_absolute_position_embeddings") else 0
    loose = d + positions + (d if v.flag("use_mask_token") else 0)
    n, rows = v.whole("num_hidden_layers"), Rows((1, 1), picture, 1)
    stages: tuple[Part, ...] = (
        m.stage("embeddings", (m.patches(True),), Rows(), loose=loose),
        m.stage("layers", m.layer(m.attention(bias, True, norms), mlp, layered), rows, n, loose=2 * d * n),
    )
    if not v.flag("use_mean_pooling"):
        stages = (*stages, m.stage("layernorm", (m.norm("layernorm"),), rows))
    return Sight(stages, d, picture, 1)


def janus(b: Builder, v: Fields) -> Sight:
    """Janus: SigLIP with an optional q/k norm; the inner width is mlp_ratio times the width."""
    m, (down, across) = Maker(b, v), grid(v)
    bias = v.flag("attention_bias")
    norms = (m.norm("q_norm"), m.norm("k_norm")) if v.flag("use_qk_norm") else ()
    width = int(m.d * real(v, "mlp_ratio", 4.0))
    rows = Rows((1, 1), down * across)
    stages = (
        m.stage("embeddings", (m.patches(True),), Rows(), loose=down * across * m.d),
        m.stage(
            "layers", m.layer(m.attention(bias, True, norms), m.mlp(width, True)), rows, v.whole("num_hidden_layers")
        ),
        m.stage("post_layernorm", (m.norm("post_layernorm"),), Rows()),
    )
    return Sight(stages, m.d, down * across)


def sam(b: Builder, v: Fields, per: int) -> Sight:
    """SAM beside a tower of `per` patches a picture: windows of s x s patches (padded), some layers over the picture.

    Its neck is a 1 x 1 and a 3 x 3 convolution to output_channels.
    """
    m, side = Maker(b, v, "high_res_vision_model"), square(v)
    n, whole = v.whole("num_hidden_layers"), side * side
    width = v.maybe("mlp_dim") or int(m.d * real(v, "mlp_ratio", 4.0))
    v.used |= {"scale"} | ({"intermediate_size"} if v.raw("intermediate_size", None) == width else set())
    full = sum(i < n for i in set(indices(v, "global_attn_indexes", (2, 5, 8, 11))))
    window, relative = v.whole("window_size", low=0), v.flag("use_rel_pos")
    every = Rows((whole, per), whole)
    attention = m.attention(v.flag("qkv_bias"), True)
    add = Elementwise("residual_add", m.d)
    outside = (m.norm("layer_norm1"), add, m.norm("layer_norm2"), m.mlp(width, True), add)

    def attend(name: str, edge: int, rows: Rows, count: int) -> tuple[Stage, ...]:
        positions = (RelativePositions(edge, m.d, attention.d_qk, b.base),) if relative else ()
        return (m.stage(name, (attention, *positions), rows, count),) if count else ()

    windows = ceil_div(side, window) ** 2 if window else 0
    inside = Rows((windows * window**2, per), window**2) if window else every
    loose = whole * m.d if v.flag("use_abs_pos") else 0
    stages = (
        m.stage("patch_embed", (m.patches(True),), Rows((whole, per)), loose=loose),
        m.stage("layers", outside, every, n),
        *attend("attention over the picture", side, every, full),
        *attend("attention in windows", window or side, inside, n - full),
        neck(m, "neck", Rows((whole, per)), v.whole("output_channels")),
    )
    return Sight(stages, m.d, per)


def neck(m: Maker, name: str, rows: Rows, channels: int) -> Stage:
    """SAM's neck: 1 x 1 and 3 x 3 convolutions without bias, a LayerNorm behind each."""
    parts = (
        m.linear("conv1", m.d, channels, False),
        m.norm("layer_norm1", channels),
        m.linear("conv2", 9 * channels, channels, False),
        m.norm("layer_norm2", channels),
    )
    return m.stage(name, parts, rows)


def aimv2(b: Builder, v: Fields) -> Sight:
    """Ovis 2's AIMv2: learned positions, RMSNorms, gated feed-forward."""
    m, side = Maker(b, v), square(v)
    bias = v.flag("qkv_bias")
    layer = m.layer(m.attention(bias, bias), m.mlp(v.whole("intermediate_size"), v.flag("mlp_bias"), True), False)
    first = (m.patches(True), m.norm("rms_norm", bias=False))
    stages = (
        m.stage("embeddings", first, Rows(), loose=side * side * m.d),
        m.stage("layers", layer, Rows((1, 1), side * side), v.whole("num_hidden_layers")),
        m.stage("rms_norm", (m.norm("rms_norm", bias=False),), Rows()),
    )
    return Sight(stages, m.d, side * side)


TOWERS: dict[str, Callable[[Builder, Fields], Sight]] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "pixtral": pixtral,
    "internvl_vision": intern,
    "idefics3_vision": siglip,
    "smolvlm_vision": siglip,
}
