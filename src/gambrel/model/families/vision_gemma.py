"""Gemma 4, its assistant and Gemma 3n: borrowed keys and values, per-layer inputs, AltUp, vision and audio towers.

A media token (Step.media_tokens) is a patch of 16 x 16 pixels of the vision tower, of which 3 x 3 become one token of
text. The audio tower runs over the source (Step.source_tokens with encode): one source token is one frame behind the
two convolutions of stride 2, 40 ms of sound. Attention is counted as causal: what the tokens of one picture see of
each other ahead (use_bidirectional_attention = "vision") is not.
"""

from __future__ import annotations

from dataclasses import replace

from gambrel.model.arch import Block
from gambrel.model.builder import Builder, Custom, Family, Layer, MoE, Nested, Result
from gambrel.model.encoders import Stack
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Attention, Chain, Elementwise, Linear, Norm, Part, Table, Vectors
from gambrel.model.vision_parts_a import Layer as VisionLayer
from gambrel.model.vision_parts_a import Merged, gain, loose, vit_layer, weight
from gambrel.model.vision_parts_gemma import (
    AltUp,
    Borrowing,
    ChunkedAttention,
    HeadRows,
    OrderedHead,
    Weights,
)
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gambrel.model.precision import Precision

_FULL, _SLIDING = "full_attention", "sliding_attention"

# Layers that borrow ---------------------------------------------------------------------------


def _types(b: Builder, period: int) -> list[str]:
    """Kinds of attention in order: the config's, else every `period`-th layer full."""
    f = b.fields
    types = f.items("layer_types", length=b.n_layers)
    for kind in types:
        f.choice("layer_types", kind, (_FULL, _SLIDING))
    return types or [_SLIDING if (i + 1) % period else _FULL for i in range(b.n_layers)]


def _borrowers(b: Builder, types: list[str], shared: int) -> list[bool]:
    """Which layers read another's keys and values: the last `shared`, of the last layer of their kind before those."""
    first = b.n_layers - shared
    lent = set(types[:first])
    if first and not lent >= set(types[first:]):
        raise ConfigError(
            f"{b.fields.label('num_kv_shared_layers')} is {shared}, but no layer before those is of each kind that "
            "they have; accepted is a number that leaves one"
        )
    return [i >= first for i in range(b.n_layers)]


@frozen
class Own:
    """What a layer has of its own: head width, KV heads, whether it borrows them, its feed-forward's width."""

    d_head: int
    n_kv: int
    borrows: bool
    width: int | None = None


def _own(layer: Layer) -> Own:
    if not isinstance(layer.extra, Own):
        raise TypeError(f"a layer of this family without its own shape: {layer}")
    return layer.extra


def _own_attention(b: Builder, layer: Layer, path: str, value: bool = True) -> Part:
    """Queries, keys and values with q/k gains and normalised values; `value`: values have a projection of their own."""
    own = _own(layer)
    q, kv = b.n_heads * own.d_head, own.n_kv * own.d_head
    sides = [("q_proj", q, b.n_heads), ("k_proj", kv, own.n_kv), ("v_proj", kv, own.n_kv)]
    sides = sides[: 1 if own.borrows else 2 + value]
    bias = "attention_bias"
    projections = tuple(b.linear(f"{path}.{name}", "attention", b.hidden, n, bias, ways) for name, n, ways in sides)
    norms: tuple[Norm, ...] = (b.norm("q_norm", own.d_head, per_row=b.n_heads),)
    if not own.borrows:
        plain = Norm("v_norm", own.d_head, b.base, per_row=own.n_kv, affine=False)
        norms += (b.norm("k_norm", own.d_head, per_row=own.n_kv), plain)
    out = b.linear(f"{path}.o_proj", "attention", q, b.hidden, bias)
    d = own.d_head
    attention = Attention(projections, out, b.n_heads, own.n_kv, d, d, b.base, norms, layer.window)
    return Borrowing(attention) if own.borrows else attention


# Per-layer inputs -----------------------------------------------------------------------------


def _inputs_width(b: Builder) -> int:
    return b.fields.whole("hidden_size_per_layer_input", 256, low=0)


def _side(b: Builder, path: str, n_in: int, n_out: int) -> Linear:
    """A matrix of the side paths: counted as embedding, stored as any other matrix of its layer."""
    name = path.rsplit(".", 1)[-1]
    return Linear(name, "embedding", n_in, n_out, b.precision.matrix(path, "mlp"), ways=1)


def _inputs_first(b: Builder) -> tuple[Part, ...]:
    """The token table, and a packed table of all layers' inputs with a projection of the token beside it."""
    width, rows = _inputs_width(b), b.fields.whole("vocab_size_per_layer_input", 262_144, low=0)
    if not width:
        return (b.table(),)
    wide = b.n_layers * width
    fmt = b.precision.matrix("model.embed_tokens_per_layer", "embedding")
    return (
        b.table(),
        Table("embed_tokens_per_layer", rows, wide, fmt),
        _side(b, "model.per_layer_model_projection", b.hidden, wide),
        b.norm("per_layer_projection_norm", width, per_row=b.n_layers),
        Elementwise("add_per_layer_inputs", wide),
    )


def _inputs_layer(b: Builder, path: str) -> tuple[Part, ...]:
    """The layer's input gates a narrow projection of the hidden state."""
    width = _inputs_width(b)
    if not width:
        return ()
    return (
        _side(b, f"{path}.per_layer_input_gate", b.hidden, width),
        Elementwise("gate_per_layer_input", width, flops_per_element=5),
        _side(b, f"{path}.per_layer_projection", width, b.hidden),
        b.norm("post_per_layer_input_norm"),
    )


# Gemma 4: text --------------------------------------------------------------------------------


def _overrides(f: Fields, index: int, full: bool) -> tuple[int | None, int | None]:
    """Head width and KV heads that one layer has instead of the common ones."""
    if f.has("per_layer_config"):
        layers = f.nested("per_layer_config")
        if not layers.has(str(index)):
            return None, None
        own = layers.nested(str(index))
        return own.maybe("head_dim"), own.maybe("num_key_value_heads")
    if not full:
        return None, None
    kv = f.maybe("num_global_key_value_heads")
    return f.whole("global_head_dim", 512), kv if f.flag("attention_k_eq_v", False) else None


def _gemma4_layers(b: Builder) -> list[Layer]:
    """Every 6th layer full by default, the last one always; the last num_kv_shared_layers borrow."""
    f = b.fields
    f.choice("use_bidirectional_attention", f.raw("use_bidirectional_attention", None), (None, False, "vision"))
    types = _types(b, 6)
    types[-1] = _FULL
    window = f.whole("sliding_window", 512)
    shared = _borrowers(b, types, f.whole("num_kv_shared_layers", 0, low=0, high=b.n_layers))
    layers = []
    for index, kind in enumerate(types):
        d_head, n_kv = _overrides(f, index, kind == _FULL)
        n_kv = n_kv or b.n_kv
        if b.n_heads % n_kv:
            raise ConfigError(f"{b.n_heads} query heads for {n_kv} KV heads in layer {index}; accepted is a multiple")
        own = Own(d_head or b.head_dim, n_kv, shared[index])
        layers.append(Layer(window if kind == _SLIDING else None, kind=kind, extra=own))
    return layers


def _gemma4_mixer(b: Builder, layer: Layer, path: str) -> Part:
    """Full layers may take their keys for values (attention_k_eq_v): one projection, two caches."""
    value = layer.kind != _FULL or not b.fields.flag("attention_k_eq_v", False)
    return Chain((_own_attention(b, layer, path, value), b.norm("post_attention_layernorm")))


def _gemma4_ffn(b: Builder, layer: Layer, path: str) -> Part:
    """Feed-forward, twice as wide in borrowing layers with use_double_wide_mlp; experts beside it; layer inputs."""
    f, at = b.fields, path.removesuffix(".mlp")
    double = f.flag("use_double_wide_mlp", False) and _own(layer).borrows
    dense = b.dense(path, (2 if double else 1) * f.whole("intermediate_size"))
    parts: tuple[Part, ...] = (b.norm("pre_feedforward_layernorm"), dense)
    if f.flag("enable_moe_block", False):
        parts += _gemma4_experts(b, at)
    parts += (b.norm("post_feedforward_layernorm"),)
    inputs = _inputs_layer(b, at)
    return Chain((*parts, Elementwise("residual_add", b.hidden), *inputs) if inputs else parts)


def _gemma4_experts(b: Builder, path: str) -> tuple[Part, ...]:
    """Experts beside the feed-forward, each branch with a norm behind it; the router scales its input and experts."""
    f = b.fields
    spec = MoE(f.whole("num_experts"), f.whole("top_k_experts"), f.whole("moe_intermediate_size"))
    return (
        b.norm("post_feedforward_layernorm_1"),
        Norm("router_norm", b.hidden, b.base, affine=False),
        Vectors("router_scale", "router", b.hidden + spec.n_experts, b.hidden, b.base),
        b.norm("pre_feedforward_layernorm_2"),
        b.moe(path, spec),
        b.norm("post_feedforward_layernorm_2"),
        Elementwise("add_experts", b.hidden),
    )


# Gemma 4: towers ------------------------------------------------------------------------------

_VISION4 = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "pooling_kernel_size": 3,
    "patch_size": 16,
    "position_embedding_size": 10_240,
}
_AUDIO4 = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "conv_kernel_size": 5,
    "attention_chunk_size": 12,
    "attention_context_left": 13,
    "attention_context_right": 0,
    "output_proj_dims": 1536,
}


def _gemma4_towers(top: Fields, b: Builder) -> tuple[Part, ...]:
    """The towers that the config has; null or absent is none."""
    vision = (_gemma4_vision(top, b),) if top.has("vision_config") else ()
    return (*vision, _gemma4_audio(top, b)) if top.has("audio_config") else vision


def _gemma4_vision(top: Fields, b: Builder) -> Stack:
    """Patches projected, two tables of positions, layers with four norms, mean of 3 x 3 patches, projection."""
    v = top.nested("vision_config", defaults=_VISION4)
    d, heads, kv = v.whole("hidden_size"), v.whole("num_attention_heads"), v.whole("num_key_value_heads")
    if heads % kv:
        raise ConfigError(f"{v.label('num_key_value_heads')} is {kv} for {heads} heads; accepted is a divisor")
    biases = {"qkv_bias": False, "out_bias": False, "mlp_bias": False}
    layer = VisionLayer(
        d,
        v.whole("intermediate_size"),
        heads,
        kv,
        v.whole("head_dim"),
        norm="rms",
        sandwich=True,
        gated=True,
        fused_qkv=False,
        qk_norm=True,
        v_norm=True,
        **biases,
    )
    table = loose(b, "position_embedding_table", 2 * v.whole("position_embedding_size") * d)
    first = (weight(b, "input_proj", 3 * v.whole("patch_size") ** 2, d, bias=False), table)
    norm = Norm("embedding_pre_projection_norm", d, b.base, affine=False)
    unit = v.whole("pooling_kernel_size") ** 2
    last = Merged((norm, weight(b, "embedding_projection", d, b.hidden, bias=False)), unit)
    count = v.whole("num_hidden_layers", high=10_000)
    blocks = (Block("patches", first), Block("layers", vit_layer(b, layer), count), Block("pool", (last,)))
    return Stack("vision", blocks, "media", "vision", base=b.base)


def _audio_ffn(b: Builder, d: int) -> tuple[Part, ...]:
    inner = Elementwise("activation", 4 * d, reads=1, flops_per_element=4)
    pair = (weight(b, "ffw_layer_1", d, 4 * d, bias=False), inner, weight(b, "ffw_layer_2", 4 * d, d, bias=False))
    return (gain(b, "pre_layer_norm", d), *pair, gain(b, "post_layer_norm", d), Elementwise("residual_add", d))


def _audio_layer(b: Builder, v: Fields, d: int) -> tuple[Part, ...]:
    """A conformer layer: half a feed-forward, attention in blocks, a depthwise convolution, half a feed-forward."""
    heads, kernel = v.whole("num_attention_heads"), v.whole("conv_kernel_size")
    if d % heads:
        raise ConfigError(f"{v.label('num_attention_heads')} is {heads} for a width of {d}; accepted is a divisor")
    before = v.whole("attention_context_left") - 1 + v.whole("attention_context_right", low=0)
    attention = ChunkedAttention(
        tuple(weight(b, name, d, d, bias=False) for name in ("q_proj", "k_proj", "v_proj")),
        weight(b, "relative_k_proj", d, d, bias=False),
        Vectors("per_dim_scale", "vision", d // heads, d // heads, b.base),
        weight(b, "post", d, d, bias=False),
        heads,
        v.whole("attention_chunk_size"),
        before,
    )
    convolution = (
        gain(b, "pre_layer_norm", d),
        weight(b, "linear_start", d, 2 * d, bias=False),
        Elementwise("glu", d),
        weight(b, "depthwise_conv1d", kernel, d, bias=False),
        gain(b, "conv_norm", d),
        weight(b, "linear_end", d, d, bias=False),
    )
    add = Elementwise("residual_add", d)
    middle = (gain(b, "norm_pre_attn", d), attention, gain(b, "norm_post_attn", d), add, *convolution, add)
    return (*_audio_ffn(b, d), *middle, *_audio_ffn(b, d), gain(b, "norm_out", d))


def _gemma4_audio(top: Fields, b: Builder) -> Stack:
    """Two convolutions of stride 2 over frames and mel bins (as many bins as channels of the first), a conformer."""
    v = top.nested("audio_config", defaults=_AUDIO4)
    channels = v.items("subsampling_conv_channels") or [128, 32]
    sizes = Fields(dict(zip("01", channels, strict=False)), where=v.label("subsampling_conv_channels."))
    one, two = sizes.whole("0"), sizes.whole("1")
    bins = one // 4
    if not bins:
        raise ConfigError(f"{v.label('subsampling_conv_channels')} begins with {one}; accepted is at least 4")
    d, width = v.whole("hidden_size"), v.whole("output_proj_dims")
    # of each frame that comes out: 2 x 2 and 1 places in time and mel bins for the two convolutions
    first = (
        Merged((weight(b, "layer0.conv", 9, one, bias=False), gain(b, "layer0.norm", one)), times=4 * bins),
        Merged((weight(b, "layer1.conv", 9 * one, two, bias=False), gain(b, "layer1.norm", two)), times=bins),
        weight(b, "input_proj_linear", bins * two, d, bias=False),
    )
    last = (
        weight(b, "output_proj", d, width),
        Norm("embedding_pre_projection_norm", width, b.base, affine=False),
        weight(b, "embedding_projection", width, b.hidden, bias=False),
    )
    count = v.whole("num_hidden_layers", high=10_000)
    blocks = (Block("convolutions", first), Block("layers", _audio_layer(b, v, d), count), Block("out", last))
    return Stack("audio", blocks, "source", "vision", base=b.base)


# Gemma 4: assistant ---------------------------------------------------------------------------


def _assistant(top: Fields, precision: Precision) -> Result:
    """The drafter of Gemma 4: its layers borrow every key and value from the target's caches.

    It has the target's embeddings and hidden state as input (2·backbone_hidden_size), and hands a hidden state back.
    kv_read_bytes is traffic of the target's cache; it keeps none of its own.
    """
    f = top.nested("text_config")
    f.choice("model_type", f.text("model_type", "gemma4_text"), ("gemma4_text",))
    family = FAMILIES["gemma4_text"]
    layers = f.whole("num_hidden_layers", high=10_000)
    stated = f.whole("num_kv_shared_layers", layers, low=0) or layers
    f.choice("num_kv_shared_layers", stated, (layers,))
    data = {**f.data, "num_kv_shared_layers": layers, "hidden_size_per_layer_input": 0}
    f.choice("hidden_size_per_layer_input", f.whole("hidden_size_per_layer_input", 0, low=0), (0,))
    for key in ("enable_moe_block", "use_double_wide_mlp"):
        f.choice(key, f.flag(key, False), (False,))
    wide = top.whole("backbone_hidden_size", 1536)
    family = replace(
        family,
        first=lambda b: (_side(b, "pre_projection", 2 * wide, b.hidden),),
        last=lambda b: _assistant_last(b, top, wide),
    )
    inner = Fields(data, family.names, family.defaults, f.where)
    below = inner.flag("tie_word_embeddings", True)
    b = Builder(family, inner, precision, top.flag("tie_word_embeddings", below))
    arch = b.arch()
    note = "drafts for a target model whose cache it reads: that cache is not counted here"
    return Result(arch, (*b.notes, note), tuple(inner.unread()))


def _assistant_last(b: Builder, top: Fields, wide: int) -> tuple[Part, ...]:
    """The final norm, the hidden state for the target, and a head that may look at the likeliest groups alone."""
    groups, top_k = top.whole("num_centroids", 2048), top.whole("centroid_intermediate_top_k", 32)
    head = b.head()
    table = Weights((b.table(),))  # without its gather: inputs come from the target's table
    common = (b.norm("final_norm", last_rows=True), _side(b, "post_projection", b.hidden, wide), table)
    if not top.flag("use_ordered_embeddings", False):
        return (*common, head)
    if b.vocab % groups or top_k > groups:
        raise ConfigError(
            f"num_centroids is {groups} for {b.vocab} tokens, {top_k} of them chosen; accepted is a divisor of the "
            "tokens and no more than all"
        )
    centroids = _side(b, "masked_embedding.centroids", b.hidden, groups)
    return (*common, Weights((head,)), OrderedHead(centroids, head.linear, top_k))


# Gemma 3n -------------------------------------------------------------------------------------


def _gemma3n_widths(b: Builder) -> list[int]:
    """The inner width of each layer: one for all, or a list."""
    f = b.fields
    if not isinstance(f.raw("widths"), list):
        return [f.whole("widths")] * b.n_layers
    given = f.items("widths", length=b.n_layers)
    each = Fields({str(i): width for i, width in enumerate(given)}, where=f.label("intermediate_size."))
    return [each.whole(str(i)) for i in range(b.n_layers)]


def _gemma3n_layers(b: Builder) -> list[Layer]:
    """Every 5th layer full by default; the last num_kv_shared_layers borrow; each layer has its own width."""
    f = b.fields
    f.raw("activation_sparsity_pattern", None)  # the products stay dense
    for key in ("altup_active_idx", "altup_coef_clip", "altup_correct_scale"):
        f.raw(key, None)
    types, window, widths = _types(b, 5), f.whole("sliding_window", 512), _gemma3n_widths(b)
    shared = _borrowers(b, types, f.whole("num_kv_shared_layers", 15, low=0, high=b.n_layers))
    return [
        Layer(window if kind == _SLIDING else None, kind=kind, extra=Own(b.head_dim, b.n_kv, shared[i], widths[i]))
        for i, kind in enumerate(types)
    ]


def _gemma3n_mixer(b: Builder, layer: Layer, path: str) -> Part:
    """Attention, and beside it the low-rank residual path (LAuReL, arXiv:2411.07501) on the same input."""
    at, rank = path.removesuffix(".self_attn"), b.fields.whole("laurel_rank", 64)
    laurel = (
        _side(b, f"{at}.laurel.linear_left", b.hidden, rank),
        _side(b, f"{at}.laurel.linear_right", rank, b.hidden),
        b.norm("post_laurel_norm"),
        Elementwise("add_laurel", b.hidden, reads=3, flops_per_element=3),
    )
    return Chain((*laurel, _own_attention(b, layer, path), b.norm("post_attention_layernorm")))


def _gemma3n_ffn(b: Builder, layer: Layer, path: str) -> Part:
    """Feed-forward, AltUp's prediction and correction, the layer's input into the other hidden states."""
    at, n = path.removesuffix(".mlp"), b.fields.whole("altup_num_inputs", 4, high=100)
    altup = AltUp(
        b.norm("router_norm", per_row=2),
        _side(b, f"{at}.altup.modality_router", b.hidden, n),
        _side(b, f"{at}.altup.prediction_coefs", n, n * n),
        _side(b, f"{at}.altup.correction_coefs", n, n),
        Vectors("correct_output_scale", "embedding", b.hidden, b.hidden, b.base),
    )
    dense = b.dense(path, _own(layer).width)
    around = (b.norm("pre_feedforward_layernorm"), dense, b.norm("post_feedforward_layernorm"))
    return Chain((*around, Elementwise("residual_add", b.hidden), altup, *_inputs_layer(b, at)))


def _gemma3n_first(b: Builder) -> tuple[Part, ...]:
    """Tables, and the projections that make the further hidden states of a token."""
    n = b.fields.whole("altup_num_inputs", 4, high=100)
    return (
        *_inputs_first(b),
        *(_side(b, f"model.altup_projections.{i}.altup_projection", b.hidden, b.hidden) for i in range(n - 1)),
    )


def _gemma3n_last(b: Builder) -> tuple[Part, ...]:
    """The hidden states back to one, by projections of the rows that need logits; norm; head."""
    n = b.fields.whole("altup_num_inputs", 4, high=100)
    path = "model.altup_unembed_projections.0.altup_unembed_projection"
    back = HeadRows(tuple(_side(b, path, b.hidden, b.hidden) for _ in range(n - 1)))
    return (back, b.norm("final_norm", last_rows=True), b.head())


def _gemma3n_towers(top: Fields, b: Builder) -> tuple[Part, ...]:
    """None: the vision tower is a MobileNet-V5 of timm, which no config describes."""
    towers = [name for name in ("vision", "audio") if top.raw(f"{name}_config", None) is not None]
    b.notes.append(f"the text model alone is counted, without its {' and '.join(towers) or 'default'} tower")
    return ()


# The table ------------------------------------------------------------------------------------

_COMMON: dict[str, Any] = {"layout": "parallel", "tied": True, "first": _inputs_first}

FAMILIES: dict[str, Family] = {
    "gemma4_text": Family(
        **_COMMON,
        layers=_gemma4_layers,
        mixer=_gemma4_mixer,
        ffn=_gemma4_ffn,
        defaults={"head_dim": 256, "num_key_value_heads": 4},
        names={"moe_intermediate_size": ("moe_intermediate_size", "expert_intermediate_size")},
    ),
    "gemma3n_text": Family(
        **{**_COMMON, "first": _gemma3n_first},
        layers=_gemma3n_layers,
        mixer=_gemma3n_mixer,
        ffn=_gemma3n_ffn,
        last=_gemma3n_last,
        defaults={"head_dim": 256, "num_key_value_heads": 2, "widths": 16_384},
        names={"intermediate_size": ("no_such_key",), "widths": ("intermediate_size",)},
    ),
}

NESTED: dict[str, Nested] = {
    "gemma4": Nested("gemma4_text", _gemma4_towers, tied=True),
    "gemma3n": Nested("gemma3n_text", _gemma3n_towers, tied=True),
}

CUSTOM: dict[str, Custom] = {"gemma4_assistant": Custom(_assistant)}

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "Gemma4ForCausalLM": ("gemma4_text",),
    "Gemma4ForConditionalGeneration": ("gemma4",),
    "Gemma4AssistantForCausalLM": ("gemma4_assistant",),
    "Gemma3nForCausalLM": ("gemma3n_text",),
    "Gemma3nForConditionalGeneration": ("gemma3n",),
}
