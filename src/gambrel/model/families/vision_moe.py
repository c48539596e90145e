"""Vision towers beside mixtures of experts of their own: ERNIE 4.5 VL, Step-3.7 (and its text model, step3p5).

A media token (Step.media_tokens) is one patch of the tower. ERNIE's patches are of one frame; its resampler pairs
two frames, or a picture with itself.
"""

from __future__ import annotations

from gambrel.model.arch import Block
from gambrel.model.builder import Builder, Family, Layer, MoE, Nested
from gambrel.model.encoders import Stack
from gambrel.model.families.vision_a import heads_of, patch_inputs, vision_of
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Attention, Chain, Elementwise, Part, Vectors
from gambrel.model.vision_parts_a import Layer as VisionLayer
from gambrel.model.vision_parts_a import Merged, Resting, gain, loose, vit_layer, weight

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# ERNIE 4.5 VL ---------------------------------------------------------------------------------

_ERNIE_NAMES = {
    "num_hidden_layers": ("depth", "num_hidden_layers"),
    "num_attention_heads": ("num_heads", "num_attention_heads"),
    "hidden_size": ("hidden_size", "embed_dim"),
    "in_channels": ("in_channels", "in_chans"),
}
_ERNIE = {
    "num_hidden_layers": 32,
    "hidden_size": 1280,
    "num_attention_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
}


def _pair(f: Fields, key: str, default: list[int]) -> tuple[int, int]:
    """Two whole numbers, for text and for media; one number means both."""
    value = f.raw(key, default)
    if not isinstance(value, list):
        return f.whole(key, default), f.whole(key, default)
    if len(value) != 2:
        raise ConfigError(f"{f.label(key)} has {len(value)} entries; accepted is one for text and one for media")
    each = Fields(dict(zip(("text", "media"), value, strict=True)), where=f.label(f"{key}."))
    return each.whole("text", low=0), each.whole("media", low=0)


def _ernie_shape(b: Builder) -> None:
    """Keys of the older files: what they might turn off is refused, what costs nothing is passed over."""
    f = b.fields
    for key in ("use_rmsnorm", "moe_use_aux_free"):
        f.choice(key, f.flag(key, True), (True,))
    for key in ("im_patch_id", "moe_capacity", "moe_gate", "moe_multimodal_dispatch_use_allgather", "rope_3d"):
        f.raw(key, None)


def _ernie_layers(b: Builder) -> list[Layer]:
    """The first layer dense by default, the others with experts; or as mlp_layer_types or the older indices say."""
    f, n = b.fields, b.n_layers
    types = f.items("mlp_layer_types", length=n)
    for kind in types:
        f.choice("mlp_layer_types", kind, ("dense", "sparse"))
    if types:
        return [Layer(sparse=kind == "sparse") for kind in types]
    first, last = _pair(f, "moe_layer_start_index", [1, 1]), _pair(f, "moe_layer_end_index", [n - 1, n - 1])
    step = f.whole("moe_layer_interval", 1)
    if first[0] != first[1] or min(last) < n - 1 or step != 1:
        raise ConfigError(
            f"moe_layer_start_index {list(first)}, moe_layer_end_index {list(last)}, moe_layer_interval {step}: "
            "accepted are experts for text and media in the same layers, all after the first ones"
        )
    return [Layer(sparse=i >= first[0]) for i in range(n)]


def _ernie_ffn(b: Builder, layer: Layer, path: str) -> Part:
    """Experts for text and narrower ones for media, each with a router; shared experts serve both.

    Every token of the text path is counted as text: the experts of media are resident and not read.
    """
    if not layer.sparse:
        return b.dense(path)
    f = b.fields
    (text, media), (number, other) = (
        _pair(f, "moe_intermediate_size", [1536, 512]),
        _pair(f, "moe_num_experts", [64, 64]),
    )
    if number != other or not min(text, media, number):
        raise ConfigError(f"moe_num_experts is {[number, other]}; accepted is the same number for text and media")
    top_k, shared = f.whole("moe_k", 6), text * f.whole("moe_num_shared_experts", 2, low=0)
    bias = Vectors("e_score_correction_bias", "router", number, number, b.base)
    resting = Resting((bias, b.moe(f"{path}.vision_moe", MoE(number, top_k, media))))
    return Chain((b.moe(path, MoE(number, top_k, text, shared)), bias, resting))


def _ernie_tower(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Layer norms, plain feed-forward; a resampler over 2 x 2 patches, then over two frames."""
    v = vision_of(top, b, _ERNIE, _ERNIE_NAMES)
    if v is None:
        return ()
    d, merge = v.whole("hidden_size"), v.whole("spatial_merge_size")
    frames, unit = v.whole("temporal_merge_size", top.whole("temporal_conv_size", 2)), merge**2
    for key, size in (("spatial_conv_size", merge), ("temporal_conv_size", frames), ("pixel_hidden_size", d)):
        top.choice(key, top.whole(key, size), (size,))
    inner = v.whole("intermediate_size", d * v.whole("mlp_ratio", 4))
    layer, wide = VisionLayer(d, inner, heads_of(v, d)), d * unit
    first = (weight(b, "patch_embed", patch_inputs(v), d, bias=False),)
    resampler = (
        weight(b, "spatial_linear.fc1", wide, wide),
        weight(b, "spatial_linear.fc2", wide, wide),
        gain(b, "spatial_linear.ln", wide, bias=True),
        weight(b, "temporal_linear.fc1", wide * frames, wide),
        weight(b, "temporal_linear.fc2", wide, wide),
        gain(b, "temporal_linear.ln", wide, bias=True),
        weight(b, "mlp", wide, b.hidden),
        gain(b, "after_norm", b.hidden),
    )
    count = v.whole("num_hidden_layers", high=10_000)
    last = (gain(b, "ln", d, bias=True), Merged(resampler, unit))
    blocks = (Block("patches", first), Block("layers", vit_layer(b, layer), count), Block("resampler", last))
    return (Stack("vision", blocks, "media", "vision", base=b.base),)


# Step-3.7 -------------------------------------------------------------------------------------

_STEP_NAMES = {
    "hidden_size": ("hidden_size", "width"),
    "num_hidden_layers": ("num_hidden_layers", "layers"),
    "num_attention_heads": ("num_attention_heads", "heads"),
    "in_channels": ("num_channels", "in_channels"),
}
_STEP = {
    "hidden_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 16,
    "in_channels": 3,
    "image_size": 728,
    "patch_size": 14,
}


def _step_tower(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Layers with two learned scales, then two convolutions of stride 2 that take 4 x 4 patches to one token.

    The feed-forward's width is int(mlp_ratio * hidden_size); intermediate_size is not read.
    """
    v = vision_of(top, b, _STEP, _STEP_NAMES)
    if v is None:
        return ()
    d, ratio = v.whole("hidden_size"), v.raw("mlp_ratio", 8960 / 1536)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 1 <= d * ratio < 10**9:
        raise ConfigError(f"{v.label('mlp_ratio')} is {ratio!r:.60}; accepted is a positive number")
    layer = VisionLayer(d, int(d * ratio), heads_of(v, d), fused_qkv=False)
    scales = tuple(Vectors(name, "vision", d, d, b.base) for name in ("lambda_1", "lambda_2"))
    table = loose(b, "position_embedding", (v.whole("image_size") // v.whole("patch_size")) ** 2 * d)
    first = (
        weight(b, "patch_embedding", patch_inputs(v), d, bias=False),
        table,
        gain(b, "pre_layernorm", d, bias=True),
    )
    last = (
        Merged((weight(b, "downsampler1", 9 * d, 2 * d),), 4),
        Merged(
            (
                weight(b, "downsampler2", 9 * 2 * d, 4 * d),
                weight(b, "multi_modal_projector", 4 * d, b.hidden, top.flag("projector_bias", False)),
            ),
            16,
        ),
    )
    count = v.whole("num_hidden_layers", high=10_000)
    blocks = (
        Block("patches", first),
        Block("layers", (*vit_layer(b, layer), *scales), count),
        Block("downsamplers", last),
    )
    return (Stack("vision", blocks, "media", "vision", base=b.base),)


def _step_shape(b: Builder) -> None:
    """Keys that say again what others say, and multi-token prediction."""
    f = b.fields
    for key in ("swiglu_limits", "swiglu_limits_shared", "mtp_layer_types", "mtp_mlp_layer_types", "moe_layers_enum"):
        f.raw(key, None)
    predict = f.whole("num_nextn_predict_layers", 0, low=0)
    if predict:
        b.notes.append(f"num_nextn_predict_layers = {predict}: multi-token-prediction weights are not counted")


def _padded(b: Builder, key: str) -> list[Any]:
    """A list with an entry for each layer; entries of the multi-token-prediction layers behind them are left out."""
    given = b.fields.items(key)
    predict = b.fields.whole("num_nextn_predict_layers", 0, low=0)
    return given[: b.n_layers] if len(given) == b.n_layers + predict else b.fields.items(key, length=b.n_layers)


def _step_sparse(b: Builder) -> list[bool]:
    """Which layers have experts: mlp_layer_types, or the indices in moe_layers_enum, or all from the fourth on."""
    f = b.fields
    types = _padded(b, "mlp_layer_types")
    for kind in types:
        f.choice("mlp_layer_types", kind, ("dense", "sparse"))
    if types:
        return [kind == "sparse" for kind in types]
    named = f.raw("moe_layers_enum", None)
    if named is None:
        return [i >= 3 for i in range(b.n_layers)]
    words = named.split(",") if isinstance(named, str) else named if isinstance(named, list) else [named]
    indices = [str(word).strip() for word in words]
    for index in indices:
        if index and not (index.isascii() and index.isdigit()):
            raise ConfigError(f"{f.label('moe_layers_enum')} has {index!r:.40}; accepted are indices of layers")
    return [str(i) in indices for i in range(b.n_layers)]


def _step_layers(b: Builder) -> list[Layer]:
    """Full or windowed, dense or with experts; windowed layers may have another number of query heads."""
    f = b.fields
    types = _padded(b, "layer_types") or ["full_attention"] * b.n_layers
    for kind in types:
        f.choice("layer_types", kind, ("full_attention", "sliding_attention"))
    window = f.maybe("sliding_window")
    if window is None and "sliding_attention" in types:
        raise ConfigError("layer_types has sliding_attention but sliding_window is missing or null")
    heads = f.maybe("num_sliding_attention_heads")
    if heads is None and f.has("attention_other_setting"):
        other = f.nested("attention_other_setting", names={"num_key_value_heads": ("num_attention_groups",)})
        heads = other.whole("num_attention_heads", b.n_heads)
        other.choice("num_attention_groups", other.whole("num_key_value_heads", b.n_kv), (b.n_kv,))
        other.choice("head_dim", other.whole("head_dim", b.head_dim), (b.head_dim,))
    layers = []
    for index, (kind, sparse) in enumerate(zip(types, _step_sparse(b), strict=True)):
        near = kind == "sliding_attention"
        own = (_layer_heads(f, index, b.n_heads) if f.has("per_layer_config") else heads if near else None) or b.n_heads
        if own % b.n_kv:
            raise ConfigError(f"{own} query heads for {b.n_kv} KV heads in layer {index}; accepted is a multiple")
        layers.append(Layer(window if near else None, sparse, extra=own))
    return layers


def _layer_heads(f: Fields, index: int, common: int) -> int:
    """Query heads of one layer where per_layer_config says so."""
    layers = f.nested("per_layer_config")
    return layers.nested(str(index)).whole("num_attention_heads", common) if layers.has(str(index)) else common


def _step_mixer(b: Builder, layer: Layer, path: str) -> Part:
    """Attention with q/k norms and a sigmoid gate for each head from the layer's input."""
    heads, d, bias = layer.extra, b.head_dim, "attention_bias"
    if not isinstance(heads, int):
        raise TypeError(f"a layer of this family without its heads: {layer}")
    gating = b.fields.raw("gating", True)
    per_head = b.fields.choice("gating", gating, (True, "per-head", "per-element", False)) in (True, "per-head")
    q, kv = heads * d, b.n_kv * d
    sides = (("q_proj", q, heads, bias), ("k_proj", kv, b.n_kv, bias), ("v_proj", kv, b.n_kv, bias))
    gate = ("g_proj", heads if per_head else q, heads, False)
    projections = tuple(
        b.linear(f"{path}.{name}", "attention", b.hidden, n, has_bias, ways)
        for name, n, ways, has_bias in (*sides, gate)
    )
    norms = (b.norm("q_norm", d, per_row=heads), b.norm("k_norm", d, per_row=b.n_kv))
    out = b.linear(f"{path}.o_proj", "attention", q, b.hidden, bias)
    kernel = Attention(projections, out, heads, b.n_kv, d, d, b.base, norms, layer.window)
    return Chain((kernel, Elementwise("head_gate", q)))


def _step_ffn(b: Builder, layer: Layer, path: str) -> Part:
    """Experts and one shared expert, or a plain feed-forward."""
    f = b.fields
    if not layer.sparse:
        return b.dense(path)
    shared = f.whole("share_expert_dim", 1280)
    width = f.whole("moe_intermediate_size", 1280)
    return b.moe(path, MoE(f.whole("n_routed_experts", 288), f.whole("num_experts_per_tok", 8), width, shared))


# The table ------------------------------------------------------------------------------------

FAMILIES: dict[str, Family] = {
    "ernie4_5_vl_moe_text": Family(
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        tied=True,
        shape=_ernie_shape,
        layers=_ernie_layers,
        ffn=_ernie_ffn,
        defaults={"num_key_value_heads": 4},
        names={"moe_num_experts": ("moe_num_experts", "num_experts"), "moe_k": ("moe_k", "num_experts_per_tok")},
    ),
    "step3p5": Family(
        mlp_bias="mlp_bias",
        shape=_step_shape,
        layers=_step_layers,
        mixer=_step_mixer,
        ffn=_step_ffn,
        defaults={"num_key_value_heads": 8, "head_dim": 128},
        names={
            "n_routed_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
            "num_experts_per_tok": ("num_experts_per_tok", "moe_top_k"),
            "num_key_value_heads": ("num_key_value_heads", "num_attention_groups"),
            "share_expert_dim": ("share_expert_dim", "share_expert_dims"),
            "num_nextn_predict_layers": ("num_nextn_predict_layers", "num_mtp_layers"),
        },
    ),
}

NESTED: dict[str, Nested] = {
    "ernie4_5_vl_moe": Nested("ernie4_5_vl_moe_text", _ernie_tower, tied=True),
    "ernie4_5_moe_vl": Nested("ernie4_5_vl_moe_text", _ernie_tower, tied=True),
    "step3p7": Nested("step3p5", _step_tower, flat=False),  # its class reads the text's keys in text_config alone
}

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "Ernie4_5_VLMoeForConditionalGeneration": ("ernie4_5_vl_moe", "ernie4_5_moe_vl"),
    "Ernie4_5_VL_MoeForConditionalGeneration": ("ernie4_5_vl_moe", "ernie4_5_moe_vl"),
    "Step3p7ForConditionalGeneration": ("step3p7",),
}
