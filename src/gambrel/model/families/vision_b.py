"""Vision towers beside a known text model: LLaVA, InternVL, Idefics 3, SmolVLM, Aya Vision, mllama, Llama 4, Janus, …

And DeepSeek-VL, Fuyu, Ovis 2, PaliGemma, Aria, EXAONE 4.5, LFM2-VL. One media token (`Step.media_tokens`) is one patch
of the picture as the tower's layers see it, before any merger: 576 of a picture of 336 x 336 in patches of 14. Class
tokens, mergers and windows are worked out from it (see vision_parts_b.Rows). More media tokens than a picture has
patches are further pictures or tiles, which do not attend to one another; towers that take pictures of any size count
all media tokens of a sequence as one picture. mllama's pictures are no part of the text: there one source token
(`Step.source_tokens`) is one row of its tower, 1601 a tile of 560 x 560, and cross-attention meets as many keys.
"""

from __future__ import annotations

from functools import partial

from gambrel.model.arch import Block
from gambrel.model.builder import Builder, Custom, Family, Layer, MoE, Nested, Result
from gambrel.model.encoders import CrossAttention, Stack
from gambrel.model.families.patterns import LLAMA, TEXT_DEFAULTS, sparse_or_dense
from gambrel.model.fields import ConfigError, Fields
from gambrel.model.parts import Elementwise, Linear, Norm, Part, Table
from gambrel.model.vision_parts_b import (
    TOWERS,
    Autoencoder,
    Idle,
    Maker,
    QueryPooling,
    Rows,
    Sight,
    Stage,
    WithSource,
    aimv2,
    grid,
    indices,
    intern,
    janus,
    neck,
    pair,
    real,
    sam,
    siglip,
    siglip_like,
    square,
    tower_config,
)
from gambrel.units import ceil_div

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gambrel.model.precision import Precision

#: Keys that cannot change cost in these families: what prepares pictures, and what older classes wrote.
_NO_COST = frozenset(
    """
    vocab_size
    model_type attention_dropout hidden_act layer_norm_eps initializer_range torch_dtype dtype tie_word_embeddings
    projection_dim image_seq_length ignore_index image_grid_pinpoints vision_aspect_ratio vision_feature_select_strategy
    use_image_newline_parameter num_image_tokens num_pos_feats max_image_size size use_base_siglip tau
    tokenize_function layer_scale_init_value is_llama_config perceiver_config pixel_shuffle_factor num_patches
    backbone_config backbone_kwargs mlp_ratio do_image_splitting encoder_patch_size max_image_tokens max_num_patches
    max_pixels_tolerance max_tiles min_image_tokens min_tiles tile_size use_image_special_tokens use_thumbnail
    tokens_per_second video_seq_length projector_layernorm_eps
    alignment_activation_fn max_splits_per_img visual_indicator_token_ids depth projector_dropout
    mtp_share_layers is_composition use_reentrant_checkpointing neftune_noise_alpha for_llm_compressor patch_size
    image_size projector_patch_to_query_dict conversation_formatter_class multimodal_max_length disable_tie_weight
    llm_attn_implementation use_indicators drop_cls_token max_value_projector_patch_to_query_dict
    """.split()
)


#: Generation defaults that older configs of nested models repeat.
_HUB = frozenset("forced_bos_token_id forced_eos_token_id tf_legacy_loss use_cache".split())


def _tower(top: Fields, b: Builder, kind: str, absent: Mapping[str, Any]) -> Sight:
    """A tower of the type that vision_config names."""
    stated = top.nested("vision_config").text("model_type", kind) if top.has("vision_config") else kind
    if stated not in TOWERS:
        raise ConfigError(f"vision_config.model_type is {stated!r}; accepted is {', '.join(TOWERS)}")
    return TOWERS[stated](b, tower_config(top, b, "vision_config", absent, VISION_DEFAULTS[stated]))


# Towers with their projectors, by family ------------------------------------------------------


def _connect(b: Builder, name: str, parts: tuple[Part, ...], rows: Rows, loose: int = 0) -> Stage:
    """A projector from the tower's rows to the text's."""
    stack = Stack(name, (Block(name, parts),), "media", "vision", loose, b.base)
    return Stage(stack, rows)


def _project(b: Builder, name: str, n_in: int, n_out: int, bias: bool = True) -> Linear:
    fmt = b.precision.matrix(f"multi_modal_projector.{name}", "vision")
    return Linear(name, "vision", n_in, n_out, fmt, b.base if bias else None)


def _llava(
    top: Fields, b: Builder, kind: str, absent: Mapping[str, Any], strategy: str, newline: bool
) -> tuple[Part, ...]:
    """LLaVA: two linears over the patches; vision_feature_layer may name several layers, whose rows are joined."""
    sight = _tower(top, b, kind, absent)
    joined = _feature_layers(top, 1)
    bias = top.flag("multimodal_projector_bias", True)
    chosen = top.text("vision_feature_select_strategy", strategy)
    extra = sight.classes - (top.choice("vision_feature_select_strategy", chosen, ("default", "full")) == "default")
    parts = (
        _project(b, "linear_1", sight.width * joined, b.hidden, bias),
        Elementwise("activation", b.hidden, 1, 1, 4),
        _project(b, "linear_2", b.hidden, b.hidden, bias),
    )
    rows = Rows((1, 1), sight.picture, extra)
    return (*sight.stages, _connect(b, "projector", parts, rows, b.hidden if newline else 0))


def _feature_layers(top: Fields, default: int) -> int:
    """How many layers of the tower the projector reads, joined."""
    key = "vision_feature_layers" if top.has("vision_feature_layers") else "vision_feature_layer"
    given = top.raw(key, None)
    if given is None:
        return default
    layers = given if isinstance(given, list) else [given]
    if not layers or any(type(x) is not int for x in layers):
        raise ConfigError(f"{key} is {given!r:.60}; accepted is a layer's index or a list of them")
    return len(layers)


def _llava_video(top: Fields, b: Builder) -> tuple[Part, ...]:
    """LLaVA-NeXT-Video: as LLaVA-NeXT; rows of a video are pooled before the projector, which pictures' are not."""
    top.choice("spatial_pool_mode", top.text("spatial_pool_mode", "average"), ("average", "max"))
    top.used.add("spatial_pool_stride")
    return _llava(top, b, "clip_vision_model", _CLIP_LARGE, "default", True)


def _vipllava(top: Fields, b: Builder) -> tuple[Part, ...]:
    """ViP-LLaVA: the patches' rows of five layers joined, normed, and two linears."""
    sight = _tower(top, b, "clip_vision_model", _CLIP_LARGE)
    width = sight.width * _feature_layers(top, 5)
    parts = (
        Norm("projector_layernorm", width, b.base, True),
        _project(b, "linear_1", width, b.hidden),
        Elementwise("activation", b.hidden, 1, 1, 4),
        _project(b, "linear_2", b.hidden, b.hidden),
    )
    return (*sight.stages, _connect(b, "projector", parts, Rows((1, 1), sight.picture, sight.classes - 1)))


def _paligemma(top: Fields, b: Builder) -> tuple[Part, ...]:
    """PaliGemma: SigLIP and one linear; its prompt attends both ways, which is Step(causal=False)."""
    absent = {**_SO400M, "intermediate_size": 4096, "image_size": 224, "num_hidden_layers": 27}
    sight = _tower(top, b, "siglip_vision_model", absent)
    out = top.choice("projection_dim", top.whole("projection_dim", 2048), (b.hidden,))
    top.used.add("hidden_size")
    return (*sight.stages, _connect(b, "projector", (_project(b, "linear", sight.width, out),), Rows()))


def _internvl(top: Fields, b: Builder) -> tuple[Part, ...]:
    """InternVL: patches are joined 2 x 2 (downsample_ratio 0.5), normed, and pass two linears."""
    sight = intern(b, tower_config(top, b, "vision_config", {}, VISION_DEFAULTS["internvl_vision"]))
    joined = max(int(1 / real(top, "downsample_ratio", 0.5)), 1) ** 2
    width = sight.width * joined
    parts = (
        Norm("layer_norm", width, b.base, True),
        _project(b, "linear_1", width, b.hidden),
        Elementwise("activation", b.hidden, 1, 1, 4),
        _project(b, "linear_2", b.hidden, b.hidden),
    )
    return (*sight.stages, _connect(b, "projector", parts, Rows((1, joined))))


def _idefics(top: Fields, b: Builder, kind: str) -> tuple[Part, ...]:
    """Idefics 3 and SmolVLM: scale_factor x scale_factor patches are joined and pass one linear without bias."""
    sight = siglip(b, tower_config(top, b, "vision_config", {}, VISION_DEFAULTS[kind]))
    joined = top.whole("scale_factor", 2) ** 2
    project = _project(b, "modality_projection", sight.width * joined, b.hidden, False)
    return (*sight.stages, _connect(b, "connector", (project,), Rows((1, joined))))


def _aya(top: Fields, b: Builder, absent: Mapping[str, Any], older: bool) -> tuple[Part, ...]:
    """Aya Vision, Command A Vision: downsample_factor² patches are joined and pass a SwiGLU (linear_1 is both halves).

    The older one has a norm in front.
    """
    sight = _tower(top, b, "siglip_vision_model", absent)
    joined = top.whole("downsample_factor", 2) ** 2
    width, inner = sight.width * joined, top.whole("alignment_intermediate_size", b.hidden if older else 36_864)
    parts = (
        *((Norm("layernorm", width, b.base, True),) if older else ()),
        _project(b, "linear_1", width, inner),
        Elementwise("activation", inner // 2, 2, 1, 4),
        _project(b, "linear_2", inner // 2, b.hidden),
    )
    return (*sight.stages, _connect(b, "projector", parts, Rows((1, joined))))


def _lfm2_vl(top: Fields, b: Builder) -> tuple[Part, ...]:
    """LFM2-VL: SigLIP 2 on tiles of any shape with up to max_num_patches; downsample_factor² patches are joined."""
    b.tied = top.flag("tie_embedding", b.tied)
    v = tower_config(top, b, "vision_config", {}, VISION_DEFAULTS["siglip2_vision_model"])
    v.choice("model_type", v.text("model_type", "siglip2_vision_model"), ("siglip2_vision_model",))
    sight = siglip_like(b, v, v.whole("num_patches"), top.maybe("max_num_patches"))
    joined = top.whole("downsample_factor", 2) ** 2
    width, inner = sight.width * joined, top.whole("projector_hidden_size", 2560)
    bias = top.flag("projector_bias", True)
    norm = (Norm("layer_norm", width, b.base, True),) if top.flag("projector_use_layernorm", True) else ()
    parts = (
        *norm,
        _project(b, "linear_1", width, inner, bias),
        Elementwise("activation", inner, 1, 1, 4),
        _project(b, "linear_2", inner, b.hidden, bias),
    )
    return (*sight.stages, _connect(b, "projector", parts, Rows((1, joined))))


def _deepseek_vl(top: Fields, b: Builder) -> tuple[Part, ...]:
    """DeepSeek-VL 1.3B: SigLIP and two linears."""
    sight = _tower(top, b, "siglip_vision_model", {})
    parts = (
        _project(b, "linear1", sight.width, b.hidden),
        Elementwise("activation", b.hidden, 1, 1, 4),
        _project(b, "linear2", b.hidden, b.hidden),
    )
    return (*sight.stages, _connect(b, "aligner", parts, Rows()))


def _deepseek_hybrid(top: Fields, b: Builder) -> tuple[Part, ...]:
    """DeepSeek-VL 7B: SigLIP, and SAM on the same picture at a higher resolution; one media token is SigLIP's patch.

    The last and the first global layer of SAM pass a neck each; both are resized to four times SigLIP's grid and pass
    two 3 x 3 convolutions of stride 2.
    """
    v = tower_config(top, b, "vision_config", {}, VISION_DEFAULTS["siglip_vision_model"])
    sight, side = siglip(b, v), square(v)
    high = tower_config(top, b, "high_res_vision_config", {}, _SAM)
    per = side * side
    high_sight, m = sam(b, high, per), Maker(b, high, "high_res_vision_model")
    c, patches = high.whole("output_channels"), square(high) ** 2
    shrink = tuple(
        Stage(Stack(name, (Block(name, (m.linear(name, 9 * wide, 2 * wide, False),)),), "media", "vision"), rows)
        for name, wide, rows in (("conv1", c, Rows((2 * 4, 1))), ("conv2", 2 * c, Rows((2, 1))))
    )
    half = b.hidden // 2
    parts = (
        _project(b, "vision_proj", sight.width, half),
        _project(b, "high_res_vision_proj", 4 * c, half),
        Elementwise("activation", b.hidden, 1, 1, 4),
        _project(b, "proj", b.hidden, b.hidden),
    )
    second = neck(m, "high_res_vision_neck", Rows((patches, per)), c)
    return (*sight.stages, *high_sight.stages, second, *shrink, _connect(b, "aligner", parts, Rows(), loose=1))


#: Keys at the top of a Fuyu config that are not the text model's.
FUYU_OWN = frozenset(
    "architectures image_size patch_size num_channels text_config model_type tie_word_embeddings torch_dtype dtype "
    "image_token_id transformers_version quantization_config auto_map".split()
)


def _read_fuyu(top: Fields, precision: Precision) -> Result:
    """Fuyu has no tower: one linear from the pixels of a patch; one media token is one patch and one text position.

    The text's keys stand at the top in its published files, and in text_config in others.
    """
    inner = top.nested("text_config").data if top.has("text_config") else {}
    inner = {key: value for key, value in inner.items() if value is not None}
    lifted = {key: value for key, value in top.data.items() if key not in FUYU_OWN and value is not None}
    for key in lifted.keys() & inner.keys():
        if lifted[key] != inner[key]:
            told = f"{key} = {lifted[key]!r}, text_config.{key} = {inner[key]!r}"
            raise ConfigError(f"contradictory config: {told} mean the same thing")
    from gambrel.model.families.dense import FAMILIES as DENSE

    family = DENSE["persimmon"]
    fields = Fields({**lifted, **inner}, family.names, {**TEXT_DEFAULTS["persimmon"], **family.defaults})
    fields.choice("model_type", fields.text("model_type", "persimmon"), ("persimmon",))
    tied = top.flag("tie_word_embeddings", fields.flag("tie_word_embeddings", False))
    b = Builder(family, fields, precision, tied)
    side, channels = top.whole("patch_size", 30), top.whole("num_channels", 3)
    project = _project(b, "vision_embed_tokens", side * side * channels, b.hidden)
    arch = b.arch((_connect(b, "vision_embed_tokens", (project,), Rows()),))
    top.used |= fields.used | _NO_COST
    return Result(arch, tuple(b.notes))


def _ovis2(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Ovis 2 as transformers has it."""
    for key, right in (("vocab_size", b.vocab), ("hidden_size", b.hidden)):  # the head and the visual table's width
        top.choice(key, top.whole(key, right), (right,))
    return _ovis_parts(b, tower_config(top, b, "vision_config", {}, _AIMV2))


def _ovis_parts(b: Builder, v: Fields) -> tuple[Part, ...]:
    """AIMv2; hidden_stride² patches are joined into probabilities of a visual vocabulary, times its table."""
    sight, side = aimv2(b, v), square(v)
    stride, marks, words = (
        v.whole("hidden_stride"),
        v.whole("num_visual_indicator_tokens", low=0),
        v.whole("vocab_size"),
    )
    if marks >= words:
        raise ConfigError(f"{v.label('num_visual_indicator_tokens')} is {marks}; accepted is below {words}")
    rows = Rows((ceil_div(side, stride) ** 2, side * side))
    parts = (
        _project(b, "head_linear", sight.width * stride * stride, words - marks, False),
        Norm("head_norm", words - marks, b.base, True),
        _project(b, "visual_embeddings_table", words, b.hidden, False),
    )
    return (*sight.stages, _connect(b, "visual_head", parts, rows))


def _ovis(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Ovis 2 as its authors published it: the same tower under other keys (arXiv:2405.20797)."""
    outer = top.nested("visual_tokenizer_config")
    inner = outer.nested("backbone_config")
    inner.choice("model_type", inner.text("model_type"), ("aimv2",))
    same = {key: outer.data[key] for key in ("hidden_stride", "vocab_size") if outer.data.get(key) is not None}
    top.choice("hidden_size", top.whole("hidden_size", b.hidden), (b.hidden,))
    b.tied = b.tied and not top.flag("disable_tie_weight", False)
    named = {"num_visual_indicator_tokens": 5, "mlp_bias": inner.flag("use_bias", False)}
    v = Fields({**inner.data, **same, **named}, defaults=_AIMV2, where="visual_tokenizer_config.")
    v.used |= {"use_bias", *_HUB}
    outer.used |= {"backbone_config", "hidden_stride", "vocab_size", *_HUB}
    b.fields.used |= _HUB
    b.beside += (v, outer)
    return _ovis_parts(b, v)


def _exaone(top: Fields, b: Builder) -> tuple[Part, ...]:
    """EXAONE 4.5: windows of window_size pixels in most layers, grouped-query attention, a merger of 2 x 2 patches.

    Windows at the borders of a picture are counted as whole ones.
    """
    v = tower_config(top, b, "vision_config", {}, _EXAONE)
    v.names = {"num_hidden_layers": ("depth", "num_hidden_layers"), "num_attention_heads": ("num_heads",)}
    m, (patch, _) = Maker(b, v, "visual"), pair(v, "patch_size")
    n, merge = v.whole("num_hidden_layers"), v.whole("spatial_merge_size")
    full = sum(i < n for i in set(indices(v, "fullatt_block_indexes", (7, 15, 23, 31))))
    side = v.whole("window_size") // merge // patch * merge
    if side < 1:
        raise ConfigError(f"{v.label('window_size')} is {v.whole('window_size')}; accepted is {merge * patch} or more")
    attention = m.attention(True, True, rotary=True, n_kv=v.whole("num_key_value_heads"))
    layer = m.layer(attention, m.mlp(v.whole("intermediate_size"), True, True), False)
    joined = m.d * merge * merge
    merger = (
        m.linear("mlp.0", joined, joined),
        Elementwise("activation", joined, 1, 1, 4),
        m.linear("mlp.2", joined, v.whole("out_hidden_size")),
    )
    stages = (
        m.stage("patch_embed", (m.patches(False, "in_channels", v.whole("temporal_patch_size")),), Rows()),
        m.stage("layers over the picture", layer, Rows(), full),
        m.stage("layers in windows", layer, Rows((1, 1), side * side), n - full),
        m.stage("ln_q", (m.norm("ln_q", bias=False),), Rows()),
        m.stage("merger", merger, Rows((1, merge * merge))),
    )
    told = "num_nextn_predict_layers" in b.fields.used
    predict = b.fields.whole("num_nextn_predict_layers", 0, low=0)
    if predict and not told:
        b.notes.append(f"num_nextn_predict_layers = {predict}: multi-token-prediction weights are not counted")
    return stages


def _llama4(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Llama 4: class token, rotary positions, patches joined by pixel shuffle, an adapter of two linears."""
    v = tower_config(top, b, "vision_config", {}, _LLAMA4)
    m, (down, across) = Maker(b, v, "vision_model"), grid(v)
    picture, d, wide = down * across, m.d, v.whole("intermediate_size")
    inner, out = v.whole("projector_input_dim"), v.whole("projector_output_dim")
    joined = max(round(1 / real(v, "pixel_shuffle_ratio", 0.5) ** 2), 1)
    rows = Rows((1, 1), picture, 1)
    adapter = (
        m.linear("fc1", wide, inner, False),
        Elementwise("activation", inner, 1, 1, 4),
        m.linear("fc2", out, out, False),
        _project(b, "linear_1", v.whole("vision_output_dim"), b.hidden, False),
    )
    return (
        m.stage("patch_embedding", (m.patches(False),), Rows(), loose=(picture + 2) * d),
        m.stage("layernorm_pre", (m.norm("layernorm_pre"),), rows),
        m.stage(
            "layers",
            m.layer(m.attention(True, True, rotary=True), m.mlp(wide, True)),
            rows,
            v.whole("num_hidden_layers"),
        ),
        m.stage("layernorm_post", (m.norm("layernorm_post"),), rows),
        m.stage("vision_adapter", adapter, Rows((1, joined))),
    )


def _aria(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Aria: learned queries, as many as the picture's size has, meet its patches; two linears without bias."""
    sight = _tower(top, b, "idefics3_vision", {})
    d, heads = sight.width, b.beside[-1].whole("num_attention_heads")
    sizes = _query_sizes(top)
    keys = tuple(_project(b, name, d, d, bias) for name, bias in _ARIA_KEYS)
    queries = tuple(_project(b, name, d, d, bias) for name, bias in _ARIA_QUERIES)
    into = (_project(b, "linear_in", d, b.hidden, False), _project(b, "linear_out", b.hidden, b.hidden, False))
    pooling = QueryPooling(keys, (*queries, *into), sizes, d, heads)
    loose = (max(count for _, count in sizes) + 4) * d  # queries, and the norms of queries and of their output
    parts = (Norm("layer_norm_kv", d, b.base, True), pooling)
    return (*sight.stages, _connect(b, "projector", parts, Rows((1, 1), sight.picture), loose))


_ARIA_KEYS = (("k_proj", False), ("v_proj", False), ("in_proj_k", True), ("in_proj_v", True))
_ARIA_QUERIES = (("q_proj", False), ("in_proj_q", True), ("out_proj", True), ("linear", True))


def _query_sizes(top: Fields) -> tuple[tuple[int, int], ...]:
    """Patches of a picture and the queries that it has, ascending."""
    given = top.raw("projector_patch_to_query_dict", {"1225": 128, "4900": 256})
    if not isinstance(given, dict) or not given:
        raise ConfigError(f"projector_patch_to_query_dict is {given!r:.60}; accepted is an object of whole numbers")
    inner = Fields(given, where="projector_patch_to_query_dict.")
    if not all(str(key).isdecimal() and 0 < int(key) < 10**9 for key in given):
        raise ConfigError(f"projector_patch_to_query_dict is {given!r:.60}; accepted is an object of whole numbers")
    return tuple(sorted((int(key), inner.whole(key)) for key in given))


# Janus: a tower that reads pictures and a generator that draws them ----------------------------


def _janus_parts(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Janus: its SigLIP and aligner, and the VQ autoencoder that draws pictures, which no pass of text touches."""
    v = tower_config(top, b, "vision_config", {}, VISION_DEFAULTS["janus_vision_model"])
    sight, m, out = janus(b, v), Maker(b, v, "aligner"), v.whole("projection_dim", 2048)
    aligner = (m.linear("fc1", m.d, out), *[m.linear("hidden_layers", out, out)] * (v.whole("depth", high=1000) - 1))
    q = tower_config(top, b, "vq_config", {}, _JANUS_VQ)
    width, words, picture = q.whole("embed_dim"), q.whole("num_embeddings"), q.whole("projection_dim")
    more = q.whole("num_hidden_layers", high=1000) - 1
    drawing = (
        m.linear("generation_aligner.fc1", width, picture),
        *[m.linear("generation_aligner.hidden_layers", picture, picture)] * more,
        m.linear("generation_head.vision_head", picture, words),
    )
    idle = Idle(tuple((part, 1) for part in drawing))
    tables = Idle(((Linear("codebook", "embedding", width, words, b.base), 2),), group="embedding")
    return (*sight.stages, _connect(b, "aligner", aligner, Rows()), idle, tables, _vq(b, q))


def _vq(b: Builder, q: Fields) -> Idle:
    """The VQ autoencoder that draws; it is counted with the head, its attention and norms by what they are."""
    steps = q.raw("channel_multiplier")
    if not isinstance(steps, list) or not steps or any(type(x) is not int or not 0 < x < 1000 for x in steps):
        raise ConfigError(f"{q.label('channel_multiplier')} is {steps!r:.60}; accepted is a list of whole numbers")
    widths = [q.whole("base_channels") * x for x in steps]
    latent, code = q.whole("latent_channels"), q.whole("embed_dim")
    blocks = q.whole("num_res_blocks", high=100)
    draft = Autoencoder(b.base)
    draft.linear(q.whole("image_token_embed_dim"), q.whole("projection_dim"))
    draft.conv(q.whole("in_channels"), widths[0] // steps[0])
    draft.encoder(widths, widths[0] // steps[0], blocks)
    draft.conv(widths[-1], latent * (2 if q.flag("double_latent") else 1))
    draft.linear(latent, code)
    draft.linear(code, latent)
    draft.conv(latent, widths[-1])
    draft.decoder(widths, blocks + 1)
    draft.conv(widths[0], q.whole("out_channels"))
    return Idle(tuple(draft.parts), group="")


# Aria's text model ----------------------------------------------------------------------------


def _aria_experts(b: Builder) -> MoE:
    """Experts of intermediate_size, and shared ones of as many widths together."""
    f, width = b.fields, b.fields.whole("intermediate_size")
    f.choice("moe_intermediate_size", f.whole("moe_intermediate_size", width), (width,))
    shared = f.whole("moe_num_shared_experts", 2) * width
    return MoE(f.whole("moe_num_experts", 8), f.whole("moe_topk", 2), width, shared, fused=True)


FAMILIES: dict[str, Family] = {
    "aria_text": Family(
        **LLAMA,
        layers=lambda b: [Layer(sparse=True)] * b.n_layers,
        ffn=sparse_or_dense(_aria_experts),
    ),
}

# mllama: cross-attention layers in the text model ----------------------------------------------


class CrossBuilder(Builder):
    """mllama's text model: some layers attend to the picture instead of the text, and only where there is one."""

    def layer_parts(self, layer: Layer, index: int) -> tuple[Part, ...]:
        """A layer of cross-attention as one part that sequences without a picture skip."""
        parts = super().layer_parts(layer, index)
        return (WithSource(parts, 2, self.base),) if layer.kind == "cross" else parts


def _mllama_layers(b: Builder) -> list[Layer]:
    """Cross-attention in the layers that cross_attention_layers names."""
    cross = set(indices(b.fields, "cross_attention_layers", (3, 8, 13, 18, 23, 28, 33, 38)))
    if any(i >= b.n_layers for i in cross):
        raise ConfigError(f"cross_attention_layers names layer {max(cross)} of {b.n_layers}; accepted is below that")
    return [Layer(kind="cross" if i in cross else "") for i in range(b.n_layers)]


def _mllama_mixer(b: Builder, layer: Layer, path: str) -> Part:
    """Self-attention, or cross-attention with a q/k norm per head; the keys come from the projected picture."""
    if layer.kind != "cross":
        return b.attention(layer, path)
    path, d, q, kv = path.replace("self_attn", "cross_attn"), b.head_dim, b.n_heads * b.head_dim, b.n_kv * b.head_dim
    return CrossAttention(
        b.linear(f"{path}.q_proj", "attention", b.hidden, q, ways=b.n_heads),
        b.linear(f"{path}.k_proj", "attention", b.hidden, kv, ways=b.n_kv),
        b.linear(f"{path}.v_proj", "attention", b.hidden, kv, ways=b.n_kv),
        b.linear(f"{path}.o_proj", "attention", q, b.hidden),
        b.n_heads,
        b.n_kv,
        d,
        (b.norm("q_norm", d, per_row=b.n_heads), b.norm("k_norm", d, per_row=b.n_kv)),
    )


def _mllama_first(b: Builder) -> tuple[Part, ...]:
    """The table has eight rows more than the vocabulary, for the picture's token; so it cannot be the head."""
    b.fields.choice("tie_word_embeddings", b.tied, (False,))
    return (Table("embed_tokens", b.vocab + 8, b.hidden, b.table().format),)


def _mllama(top: Fields, b: Builder) -> tuple[Part, ...]:
    """mllama's tower: tiles of a picture attend to one another; gated global layers; outputs of six layers joined.

    One source token is one row: a patch or the class token of a tile. Rows that transformers pads a tile with (to a
    multiple of 8) are not counted.
    """
    v = tower_config(top, b, "vision_config", {}, _MLLAMA)
    v.names = {"num_attention_heads": ("attention_heads", "num_attention_heads")}
    m, side = Maker(b, v, "vision_model"), square(v)
    d, rows, tiles = m.d, side * side + 1, v.whole("max_num_tiles")
    ratios = len(v.items("supported_aspect_ratios")) if v.has("supported_aspect_ratios") else 8
    picked = indices(v, "intermediate_layers_indices", (3, 7, 15, 23, 30))
    out = v.choice("vision_output_dim", v.whole("vision_output_dim"), (d * (1 + len(picked)),))
    positions = 1 + rows * d + (ratios + 1) * tiles * rows * d + 2 * (1 + (ratios + 1) * tiles * d)
    layer = m.layer(m.attention(False, False), m.mlp(v.whole("intermediate_size"), True))
    n, whole = v.whole("num_global_layers", low=0), Rows()
    stages = (
        m.stage("patch_embedding", (m.patches(False),), Rows((rows - 1, rows)), loose=d + positions),
        m.stage("layernorm_pre", (m.norm("layernorm_pre"),), whole),
        m.stage("layers", layer, whole, v.whole("num_hidden_layers")),
        m.stage("layernorm_post", (m.norm("layernorm_post"),), whole),
        m.stage("global layers", layer, whole, n, loose=2 * n),
        _connect(b, "projector", (_project(b, "multi_modal_projector", out, b.hidden),), whole),
    )
    b.notes.append("cross-attention layers run only for sequences with source_tokens (1 per patch or class token)")
    return tuple(Stage(stage.stack, stage.rows, "source") for stage in stages)


_MLLAMA_TEXT = Family(
    defaults={"num_key_value_heads": 8},
    mixer=_mllama_mixer,
    layers=_mllama_layers,
    first=_mllama_first,
    builder=CrossBuilder,
)

# Class defaults of transformers 5.24 -----------------------------------------------------------

_BASE = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
}
_WIDE = {**_BASE, "hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
_LARGE = {**_BASE, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 24}
VISION_DEFAULTS: dict[str, dict[str, Any]] = {
    "clip_vision_model": {**_BASE, "patch_size": 32},
    "siglip_vision_model": {**_BASE, "patch_size": 16, "vision_use_head": True},
    "siglip2_vision_model": {**_BASE, "patch_size": 16, "vision_use_head": True, "num_patches": 256},
    "pixtral": {**_LARGE, "image_size": 1024, "patch_size": 16},
    "idefics3_vision": _WIDE,
    "smolvlm_vision": _WIDE,
    "internvl_vision": {
        **_LARGE,
        "image_size": 448,
        "patch_size": 14,
        "attention_bias": False,
        "use_qk_norm": False,
        "norm_type": "layer_norm",
        "use_mask_token": False,
        "use_absolute_position_embeddings": True,
        "use_mean_pooling": True,
    },
    "janus_vision_model": {
        **_LARGE,
        "image_size": 384,
        "patch_size": 16,
        "attention_bias": True,
        "use_qk_norm": False,
        "depth": 2,
    },
}
_JANUS_VQ = {
    "embed_dim": 8,
    "num_embeddings": 16_384,
    "double_latent": False,
    "latent_channels": 256,
    "in_channels": 3,
    "base_channels": 128,
    "channel_multiplier": [1, 1, 2, 2, 4],
    "num_res_blocks": 2,
    "out_channels": 3,
    "projection_dim": 2048,
    "num_hidden_layers": 2,
    "image_token_embed_dim": 2048,
}
_SAM = {
    **{key: value for key, value in _BASE.items() if key != "intermediate_size"},
    "image_size": 1024,
    "patch_size": 16,
    "output_channels": 256,
    "qkv_bias": True,
    "use_abs_pos": True,
    "use_rel_pos": True,
    "window_size": 14,
}
_AIMV2 = {
    **_LARGE,
    "intermediate_size": 2816,
    "num_attention_heads": 8,
    "patch_size": 14,
    "qkv_bias": False,
    "mlp_bias": False,
    "vocab_size": 16_384,
    "hidden_stride": 1,
    "num_visual_indicator_tokens": 5,
}
_EXAONE = {
    "num_hidden_layers": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "num_attention_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "out_hidden_size": 3584,
    "num_key_value_heads": 8,
}
_LLAMA4 = {
    **_BASE,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "vision_output_dim": 7680,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
}
_MLLAMA = {
    **_BASE,
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_global_layers": 8,
    "vision_output_dim": 7680,
    "image_size": 448,
    "patch_size": 14,
    "max_num_tiles": 4,
}
_CLIP_LARGE = {**_LARGE, "patch_size": 14, "image_size": 336}
_SO400M = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "image_size": 384,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "vision_use_head": False,
}
_AYA = {**_SO400M, "num_attention_heads": 14}
_COMMAND_A = {"hidden_size": 1152, "image_size": 512, "num_hidden_layers": 27}

# The table ------------------------------------------------------------------------------------

#: A text model in text_config, which may leave out what equals its class's defaults.
_beside = partial(Nested, flat=False, text_defaults=TEXT_DEFAULTS, free=_NO_COST)


def _llava_of(kind: str, absent: Mapping[str, Any], strategy: str, newline: bool) -> Callable[..., tuple[Part, ...]]:
    return partial(_llava, kind=kind, absent=absent, strategy=strategy, newline=newline)


NESTED: dict[str, Nested] = {
    "llava": _beside("llama", _llava_of("clip_vision_model", _CLIP_LARGE, "default", False), either=True),
    "llava_next": _beside("llama", _llava_of("clip_vision_model", _CLIP_LARGE, "default", True)),
    "llava_onevision": _beside("qwen2", _llava_of("siglip_vision_model", _SO400M, "full", True), either=True),
    "internvl": _beside("qwen2", _internvl),
    "idefics3": _beside("llama", partial(_idefics, kind="idefics3_vision")),
    "smolvlm": _beside("llama", partial(_idefics, kind="smolvlm_vision")),
    "llava_next_video": _beside("llama", _llava_video, either=True),
    "vipllava": _beside("llama", _vipllava),
    "paligemma": _beside("gemma", _paligemma, tied=True),
    "aya_vision": _beside("cohere2", partial(_aya, absent=_AYA, older=True), tied=True),
    "cohere2_vision": _beside("cohere2", partial(_aya, absent=_COMMAND_A, older=False), tied=True),
    "lfm2_vl": _beside("lfm2", _lfm2_vl, tied=True),
    "janus": _beside("llama", _janus_parts),
    "deepseek_vl": _beside("llama", _deepseek_vl),
    "deepseek_vl_hybrid": _beside("llama", _deepseek_hybrid),
    "ovis2": _beside("qwen2", _ovis2),
    "ovis": _beside("qwen2", _ovis, keys=("llm_config",)),
    "aria": _beside("aria_text", _aria),
    "exaone4_5": _beside("exaone4", _exaone, own={"exaone4_5_text": "exaone4"}),
    "llama4": _beside("llama4_text", _llama4),
    "mllama": _beside("mllama_text_model", _mllama, own={"mllama_text_model": _MLLAMA_TEXT}),
}

CUSTOM: dict[str, Custom] = {"fuyu": Custom(_read_fuyu)}

#: Class names of `architectures` and the model types that they go with.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "LlavaForConditionalGeneration": ("llava",),
    "LlavaNextForConditionalGeneration": ("llava_next",),
    "LlavaOnevisionForConditionalGeneration": ("llava_onevision",),
    "InternVLForConditionalGeneration": ("internvl",),
    "Idefics3ForConditionalGeneration": ("idefics3",),
    "SmolVLMForConditionalGeneration": ("smolvlm",),
    "LlavaNextVideoForConditionalGeneration": ("llava_next_video",),
    "VipLlavaForConditionalGeneration": ("vipllava",),
    "PaliGemmaForConditionalGeneration": ("paligemma",),
    "Cohere2VisionForConditionalGeneration": ("cohere2_vision",),
    "AyaVisionForConditionalGeneration": ("aya_vision",),
    "Lfm2VlForConditionalGeneration": ("lfm2_vl",),
    "JanusForConditionalGeneration": ("janus",),
    "DeepseekVLForConditionalGeneration": ("deepseek_vl",),
    "DeepseekVLHybridForConditionalGeneration": ("deepseek_vl_hybrid",),
    "FuyuForCausalLM": ("fuyu",),
    "Ovis2ForConditionalGeneration": ("ovis2",),
    "Ovis": ("ovis",),
    "AriaForConditionalGeneration": ("aria",),
    "AriaTextForCausalLM": ("aria_text",),
    "Exaone4_5_ForConditionalGeneration": ("exaone4_5",),
    "Llama4ForConditionalGeneration": ("llama4",),
    "MllamaForConditionalGeneration": ("mllama",),
}
