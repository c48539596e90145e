"""Vision towers whose patches are merged: Qwen-VL, Qwen3.5, GLM-V, GLM-OCR, Kimi-K2.5, Kimi-VL, VideoLLaMA 3.

A media token (Step.media_tokens) is one patch of the tower, before its merger: of patch² pixels, and of two frames
where the tower has a temporal patch. A 448 x 448 picture is 32·32 patches of 14, which Qwen2-VL merges to 256 tokens of
text: count those in new_tokens. The patches of one sequence are one picture; a video's frame groups are further
sequences. Position tables are gathers or small interpolations; rotary positions in several dimensions cost nothing.
"""

from __future__ import annotations

from gambrel.model.arch import Block
from gambrel.model.builder import Builder, Family, Nested
from gambrel.model.builder import Layer as TextLayer
from gambrel.model.encoders import Stack
from gambrel.model.families.decoders import _qwen_windows
from gambrel.model.families.patterns import BIASED
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.vision_parts_a import Layer, Merged, gain, loose, vit_layer, weight

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gambrel.model.parts import Part

    Towers = Callable[[Fields, Builder], tuple[Part, ...]]

# Reading a tower ------------------------------------------------------------------------------

_NAMES = {
    "num_hidden_layers": ("depth", "num_hidden_layers"),
    "num_attention_heads": ("num_heads", "num_attention_heads"),
    "in_channels": ("in_channels", "in_chans"),
}
_VIT = {
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}


def vision_of(
    top: Fields, b: Builder, defaults: Mapping[str, Any], names: Mapping[str, Any] | None = None
) -> Fields | None:
    """The vision config, or None with a note where there is none."""
    if not top.has("vision_config"):
        b.notes.append("there is no vision_config: the text model alone is counted")
        return None
    return top.nested("vision_config", names=_NAMES if names is None else names, defaults=defaults)


def heads_of(v: Fields, d: int) -> int:
    """Attention heads, which must divide the hidden width."""
    heads = v.whole("num_attention_heads")
    if d % heads:
        raise ConfigError(f"{v.label('num_heads')} is {heads} for a hidden width of {d}; accepted is a divisor")
    return heads


def patch_inputs(v: Fields) -> int:
    """Inputs of the patch embedding: a convolution whose stride is its kernel is a product over channels·t·patch²."""
    return v.whole("in_channels") * v.whole("temporal_patch_size", 1) * v.whole("patch_size") ** 2


def _merger(b: Builder, widths: tuple[int, int, int], norm: tuple[Part, ...], unit: int) -> tuple[Part, ...]:
    """Two matrices over the `unit` patches that become one token: d·u -> d·u -> the text's width."""
    d_in, inner, out = widths
    fcs = (weight(b, "merger.fc1", d_in, inner), weight(b, "merger.fc2", inner, out))
    return (*norm, Merged(fcs, unit))


def _tower(b: Builder, first: tuple[Part, ...], layers: list[Layer], last: tuple[Part, ...]) -> Stack:
    """Patch embedding, layers (equal ones together), merger."""
    kinds = {layer: layers.count(layer) for layer in layers}
    blocks = [Block("vision layers", vit_layer(b, layer), count) for layer, count in kinds.items()]
    return Stack("vision", (Block("patches", first), *blocks, Block("merger", last)), "media", "vision", base=b.base)


# Qwen -----------------------------------------------------------------------------------------


def _qwen2_vl(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Qwen2-VL: layer norms, plain feed-forward of mlp_ratio·d; its hidden_size is the width that it hands on."""
    v = vision_of(top, b, {**_VIT, "embed_dim": 1280, "hidden_size": 3584, "mlp_ratio": 4})
    if v is None:
        return ()
    d, unit = v.whole("embed_dim"), v.whole("spatial_merge_size") ** 2
    layer = Layer(d, d * v.whole("mlp_ratio"), heads_of(v, d))
    first = (weight(b, "patch_embed", patch_inputs(v), d, bias=False),)
    norm = (gain(b, "ln_q", d, bias=True),)
    merger = _merger(b, (d * unit, d * unit, v.whole("hidden_size")), norm, unit)
    return (_tower(b, first, [layer] * v.whole("num_hidden_layers", high=10_000), merger),)


def _qwen2_5_vl(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Qwen2.5-VL: RMS norms, gated feed-forward, attention in windows but for fullatt_block_indexes."""
    v = vision_of(top, b, {**_VIT, "hidden_size": 3584, "intermediate_size": 3420, "out_hidden_size": 3584})
    if v is None:
        return ()
    d, merge = v.whole("hidden_size"), v.whole("spatial_merge_size")
    side = v.whole("window_size", 112) // merge // v.whole("patch_size")
    full = v.items("fullatt_block_indexes") if v.has("fullatt_block_indexes") else [7, 15, 23, 31]
    if side < 1:
        raise ConfigError(f"{v.label('window_size')} is less than one merged patch; accepted is at least that")
    common: dict[str, Any] = {"norm": "rms", "gated": True}
    shape = (d, v.whole("intermediate_size"), heads_of(v, d))
    windowed, whole = Layer(*shape, block=(side * merge) ** 2, **common), Layer(*shape, **common)
    layers = [whole if i in full else windowed for i in range(v.whole("num_hidden_layers", high=10_000))]
    unit = merge**2
    first = (weight(b, "patch_embed", patch_inputs(v), d, bias=False),)
    merger = _merger(b, (d * unit, d * unit, v.whole("out_hidden_size")), (gain(b, "ln_q", d),), unit)
    return (_tower(b, first, layers, merger),)


_QWEN3 = {
    **_VIT,
    "num_hidden_layers": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 16,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
}


def _qwen3_vl(deepstack: bool) -> Towers:
    """Qwen3-VL and Qwen3.5: layer norms, a table of positions; Qwen3-VL also merges what some inner layers say."""

    def read(top: Fields, b: Builder) -> tuple[Part, ...]:
        v = vision_of(top, b, _QWEN3)
        if v is None:
            return ()
        d, unit, out = v.whole("hidden_size"), v.whole("spatial_merge_size") ** 2, v.whole("out_hidden_size")
        layer = Layer(d, v.whole("intermediate_size"), heads_of(v, d))
        table = loose(b, "pos_embed", v.whole("num_position_embeddings") * d)
        first = (weight(b, "patch_embed", patch_inputs(v), d), table)
        wide = (d * unit, d * unit, out)
        last = _merger(b, wide, (gain(b, "merger.norm", d, bias=True),), unit)
        depth = v.whole("num_hidden_layers", high=10_000)
        inner = v.items("deepstack_visual_indexes") if v.has("deepstack_visual_indexes") else [8, 16, 24]
        for index in inner if deepstack else ():
            if v.choice("deepstack_visual_indexes", index, range(depth)) == index:
                norm = Merged((gain(b, "deepstack.norm", d * unit, bias=True),), unit)
                last += _merger(b, wide, (norm,), unit)
        return (_tower(b, first, [layer] * depth, last),)

    return read


# GLM ------------------------------------------------------------------------------------------

_GLM = {
    **_VIT,
    "num_hidden_layers": 24,
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "image_size": 336,
    "out_hidden_size": 4096,
    "intermediate_size": 13_696,
    "attention_bias": False,
}
_GLM_OCR = {
    **_GLM,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "out_hidden_size": 1536,
    "intermediate_size": 4096,
    "attention_bias": True,
}


def _glm_last(b: Builder, widths: tuple[int, int, int], unit: int) -> tuple[Part, ...]:
    """A convolution that takes `unit` patches to one token, then projection, norm and a gated feed-forward."""
    d, out, inner = widths
    gated = [weight(b, f"merger.{name}", out, inner, bias=False) for name in ("gate_proj", "up_proj")]
    merged = (
        weight(b, "downsample", d * unit, out),
        weight(b, "merger.proj", out, out, bias=False),
        gain(b, "post_projection_norm", out, bias=True),
        *gated,
        weight(b, "merger.down_proj", inner, out, bias=False),
    )
    return (gain(b, "post_layernorm", d), Merged(merged, unit))


def _glm4v(top: Fields, b: Builder) -> tuple[Part, ...]:
    """GLM-4.1V, GLM-4.5V: the layers' inner width is out_hidden_size, the merger's is intermediate_size."""
    v = vision_of(top, b, _GLM)
    if v is None:
        return ()
    d, out, unit = v.whole("hidden_size"), v.whole("out_hidden_size"), v.whole("spatial_merge_size") ** 2
    bias = v.flag("attention_bias")
    layer = Layer(d, out, heads_of(v, d), norm="rms", gated=True, qkv_bias=bias, out_bias=False, mlp_bias=False)
    places = (v.whole("image_size") // v.whole("patch_size")) ** 2
    table = loose(b, "position_embedding", places * d)
    first = (weight(b, "patch_embed", patch_inputs(v), d), gain(b, "post_conv_layernorm", d), table)
    last = _glm_last(b, (d, out, v.whole("intermediate_size")), unit)
    return (_tower(b, first, [layer] * v.whole("num_hidden_layers", high=10_000), last),)


def _glm_ocr(top: Fields, b: Builder) -> tuple[Part, ...]:
    """GLM-OCR: q/k norms, no table of positions, a merger of out_hidden_size times the channels."""
    v = vision_of(top, b, _GLM_OCR)
    if v is None:
        return ()
    d, out, unit = v.whole("hidden_size"), v.whole("out_hidden_size"), v.whole("spatial_merge_size") ** 2
    bias = v.flag("attention_bias")
    biases = {"qkv_bias": bias, "out_bias": bias, "mlp_bias": bias}
    layer = Layer(d, v.whole("intermediate_size"), heads_of(v, d), norm="rms", gated=True, qk_norm=True, **biases)
    last = _glm_last(b, (d, out, out * v.whole("in_channels")), unit)
    first = (weight(b, "patch_embed", patch_inputs(v), d),)
    return (_tower(b, first, [layer] * v.whole("num_hidden_layers", high=10_000), last),)


# Kimi, VideoLLaMA -----------------------------------------------------------------------------

_MOON_NAMES = {
    "hidden_size": ("hidden_size", "vt_hidden_size"),
    "intermediate_size": ("intermediate_size", "vt_intermediate_size"),
    "num_hidden_layers": ("num_hidden_layers", "vt_num_hidden_layers"),
    "num_attention_heads": ("num_attention_heads", "vt_num_attention_heads"),
    "pos_emb_height": ("pos_emb_height", "init_pos_emb_height"),
    "pos_emb_width": ("pos_emb_width", "init_pos_emb_width"),
    "projection_hidden_size": ("mm_hidden_size", "projection_hidden_size"),
}
_MOON = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "pos_emb_height": 64,
    "pos_emb_width": 64,
}


def _moonvit(top: Fields, b: Builder) -> tuple[Part, ...]:
    """MoonViT of Kimi-K2.5 and Kimi-VL: a learned grid of positions, patches joined by merge_kernel_size.

    The projector's norm is over projection_hidden_size; a clip's frames are averaged, so give one picture.
    """
    v = vision_of(top, b, _MOON, _MOON_NAMES)
    if v is None:
        return ()
    d, kernel = v.whole("hidden_size"), v.items("merge_kernel_size") or [2, 2]
    sides = Fields(dict(zip(("height", "width"), kernel, strict=False)), where=v.label("merge_kernel_size."))
    unit = sides.whole("height") * sides.whole("width")
    norm_width = v.whole("projection_hidden_size", top.whole("projection_hidden_size", d))
    v.choice("mm_hidden_size", norm_width, (d,))
    layer = Layer(d, v.whole("intermediate_size"), heads_of(v, d), fused_qkv=False)
    table = loose(b, "pos_emb", v.whole("pos_emb_height") * v.whole("pos_emb_width") * d)
    first = (weight(b, "patch_embed", patch_inputs(v), d), table)
    norms = (gain(b, "final_layernorm", d, bias=True), gain(b, "pre_norm", d, bias=True))
    last = _merger(b, (d * unit, d * unit, b.hidden), norms, unit)
    return (_tower(b, first, [layer] * v.whole("num_hidden_layers", high=10_000), last),)


_SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "in_channels": 3,
    "patch_size": 16,
}


def _video_llama(top: Fields, b: Builder) -> tuple[Part, ...]:
    """VideoLLaMA 3: SigLIP layers without a table of positions; pictures are not merged (merge_size 1).

    Its projector counts as embedding, as in the list of true counts.
    """
    v = vision_of(top, b, _SIGLIP, {"in_channels": ("num_channels", "in_channels")})
    if v is None:
        return ()
    d = v.whole("hidden_size")
    layer = Layer(d, v.whole("intermediate_size"), heads_of(v, d), fused_qkv=False)
    first = (weight(b, "patch_embedding", patch_inputs(v), d),)
    layers = [layer] * v.whole("num_hidden_layers", high=10_000)
    tower = _tower(b, first, layers, (gain(b, "post_layernorm", d, bias=True),))
    sides = (("readout.0", d), ("readout.2", b.hidden))
    readout = tuple(weight(b, name, n_in, b.hidden, group="embedding") for name, n_in in sides)
    return (tower, Stack("projector", (Block("projector", readout),), "media"))


# Text models ----------------------------------------------------------------------------------


def _null_kv(b: Builder) -> None:
    """A null num_key_value_heads is as many as query heads, not the class's default."""
    if b.fields.data.get("num_key_value_heads", 0) is None:
        b.n_kv = b.n_heads


def _no_windows(b: Builder) -> list[TextLayer]:
    return [TextLayer()] * b.n_layers


def _fixed_bias(b: Builder) -> None:
    """The class has its biases whatever attention_bias says; its heads share the hidden width."""
    _null_kv(b)
    b.fields.flag("attention_bias", True)
    if b.hidden % b.n_heads:
        raise ConfigError(f"{b.fields.label('hidden_size')} is {b.hidden}; accepted is a multiple of the heads")
    b.head_dim = b.hidden // b.n_heads


def _predicting(b: Builder) -> list[TextLayer]:
    """All layers alike; multi-token-prediction weights are noted, not counted."""
    predict = b.fields.whole("num_nextn_predict_layers", 0, low=0)
    if predict:
        b.notes.append(f"num_nextn_predict_layers = {predict}: multi-token-prediction weights are not counted")
    return _no_windows(b)


_QWEN2_TEXT: dict[str, Any] = {
    "qkv_bias": True,
    "layers": _qwen_windows,
    "shape": _null_kv,
    "defaults": {"num_key_value_heads": 8, "max_window_layers": 80},
}
FAMILIES: dict[str, Family] = {
    "qwen2_vl_text": Family(**_QWEN2_TEXT),
    "qwen2_5_vl_text": Family(**_QWEN2_TEXT),
    "qwen3_vl_text": Family(
        **BIASED,
        qk_norm="head",
        shape=_null_kv,
        layers=_no_windows,
        defaults={"head_dim": 128, "num_key_value_heads": 32},
    ),
    "glm4v_text": Family(
        layout="sandwich",
        qkv_bias=True,
        fused_inner=True,
        shape=_fixed_bias,
        layers=_predicting,
        defaults={"num_key_value_heads": 2},
    ),
    "glm_ocr_text": Family(
        layout="sandwich",
        fused_inner=True,
        shape=_null_kv,
        layers=_predicting,
        defaults={"num_key_value_heads": 8},
    ),
}

NESTED: dict[str, Nested] = {
    "qwen2_vl": Nested("qwen2_vl_text", _qwen2_vl, either=True),
    "qwen2_5_vl": Nested("qwen2_5_vl_text", _qwen2_5_vl, either=True),
    "qwen3_vl": Nested("qwen3_vl_text", _qwen3_vl(deepstack=True)),
    "qwen3_vl_moe": Nested("qwen3_vl_moe_text", _qwen3_vl(deepstack=True)),
    "qwen3_5": Nested("qwen3_5_text", _qwen3_vl(deepstack=False)),
    "qwen3_5_moe": Nested("qwen3_5_moe_text", _qwen3_vl(deepstack=False)),
    "glm4v": Nested("glm4v_text", _glm4v, either=True),
    "glm4v_moe": Nested("glm4v_moe_text", _glm4v, either=True),
    "glm46v": Nested("glm4v_text", _glm4v),
    "glm_ocr": Nested("glm_ocr_text", _glm_ocr, either=True),
    "kimi_k25": Nested("deepseek_v3", _moonvit, tied=True),
    "kimi_vl": Nested("deepseek_v3", _moonvit),
    "video_llama_3": Nested("qwen2", _video_llama, either=True),
}

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "Qwen2VLForConditionalGeneration": ("qwen2_vl",),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl",),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl",),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe",),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5",),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe",),
    "Glm4vForConditionalGeneration": ("glm4v",),
    "Glm4vMoeForConditionalGeneration": ("glm4v_moe",),
    "Glm46VForConditionalGeneration": ("glm46v",),
    "GlmOcrForConditionalGeneration": ("glm_ocr",),
    "KimiK25ForConditionalGeneration": ("kimi_k25",),
    "KimiVLForConditionalGeneration": ("kimi_vl",),
    "VideoLlama3ForConditionalGeneration": ("video_llama_3",),
}
