"""Decoders that everybody knows: Llama, Mistral, Qwen, Gemma, Phi-3, DeepSeek, gpt-oss, OLMo 2, GPT-2, OPT, …"""

from __future__ import annotations

from gambrel.model.builder import Builder, Family, Layer, MoE, Nested
from gambrel.model.families.patterns import (
    BIASED,
    GPT,
    GPT_NAMES,
    LLAMA,
    all_windowed,
    every,
    sparse_or_dense,
    typed,
    window_of,
)
from gambrel.model.parts import Elementwise, Linear, Part, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gambrel.model.fields import Fields

# Layer patterns -------------------------------------------------------------------------------


def _qwen_windows(b: Builder) -> list[Layer]:
    """Windows only with use_sliding_window, in the layers from max_window_layers on."""
    f = b.fields
    on = f.flag("use_sliding_window", False)
    window = window_of(f, absent=4096)
    edge = f.whole("max_window_layers", 28, low=0)
    if not on:
        f.items("layer_types", length=b.n_layers)
        return [Layer()] * b.n_layers
    return typed(b, window, [Layer(window if i >= edge else None) for i in range(b.n_layers)])


def _qwen3_sparse(b: Builder) -> list[Layer]:
    """Every layer windowed with use_sliding_window; experts as decoder_sparse_step and mlp_only_layers say."""
    f = b.fields
    window = window_of(f, absent=4096)
    window = window if f.flag("use_sliding_window", False) else None
    f.whole("max_window_layers", 28, low=0)
    f.choice("use_qk_norm", f.flag("use_qk_norm", True), (True,))
    return _sparse_every(b, [Layer(window)] * b.n_layers)


def _qwen2_sparse(b: Builder) -> list[Layer]:
    """With use_sliding_window, every other layer below max_window_layers is windowed."""
    f = b.fields
    window = window_of(f, absent=4096)
    window = window if f.flag("use_sliding_window", False) else None
    edge = f.whole("max_window_layers", 28, low=0)
    pattern = [Layer(window if i % 2 == 0 and i < edge else None) for i in range(b.n_layers)]
    return _sparse_every(b, typed(b, window, pattern))


def _sparse_every(b: Builder, layers: list[Layer]) -> list[Layer]:
    """Experts in every decoder_sparse_step-th layer that mlp_only_layers does not name."""
    dense, step = b.fields.items("mlp_only_layers"), b.fields.whole("decoder_sparse_step", 1)
    return [Layer(x.window, sparse=i not in dense and (i + 1) % step == 0) for i, x in enumerate(layers)]


def _all_sparse(b: Builder) -> list[Layer]:
    return [Layer(window_of(b.fields), sparse=True)] * b.n_layers


def _gpt_oss_layers(b: Builder) -> list[Layer]:
    layers = every("sliding_window_period", 2, 128)(b)
    return [Layer(layer.window, sparse=True) for layer in layers]


def _deepseek_layers(b: Builder) -> list[Layer]:
    """The first layers are dense, then every moe_layer_freq-th has experts."""
    f = b.fields
    first, step = f.whole("first_k_dense_replace", low=0), f.whole("moe_layer_freq", 1)
    predict = f.whole("num_nextn_predict_layers", 0, low=0)
    if predict:
        b.notes.append(f"num_nextn_predict_layers = {predict}: multi-token-prediction weights are not counted")
    return [Layer(sparse=i >= first and i % step == 0) for i in range(b.n_layers)]


# Feed-forward slots ---------------------------------------------------------------------------


def _qwen3_experts(b: Builder) -> MoE:
    f = b.fields
    return MoE(f.whole("num_experts"), f.whole("num_experts_per_tok"), f.whole("moe_intermediate_size"))


def _qwen2_experts(b: Builder) -> MoE:
    f = b.fields
    shared = f.whole("shared_expert_intermediate_size", low=0)
    width = f.whole("moe_intermediate_size")
    return MoE(f.whole("num_experts"), f.whole("num_experts_per_tok"), width, shared, shared_gate=True)


def _mixtral_experts(b: Builder) -> MoE:
    f = b.fields
    return MoE(f.whole("num_local_experts"), f.whole("num_experts_per_tok"), f.whole("intermediate_size"))


def _deepseek_experts(b: Builder) -> MoE:
    f = b.fields
    width = f.whole("moe_intermediate_size")
    shared = f.maybe("n_shared_experts", low=0) or 0
    return MoE(f.whole("n_routed_experts"), f.whole("num_experts_per_tok"), width, shared * width)


def _gpt_oss_experts(b: Builder) -> MoE:
    f = b.fields
    return MoE(
        f.whole("num_local_experts"),
        f.whole("num_experts_per_tok"),
        f.whole("intermediate_size"),
        bias=True,
        router_bias=True,
        fused=True,
    )


# Shapes that need more than key names ---------------------------------------------------------


def _four_times(b: Builder) -> None:
    b.width = b.width or 4 * b.hidden


def _bloom(b: Builder) -> None:
    """The width is 4 x hidden whatever n_inner says, as in the model's own code."""
    b.fields.raw("n_inner", None)
    b.width = 4 * b.hidden


def _falcon(b: Builder) -> None:
    """KV heads as the model uses them: num_kv_heads counts only in the new decoder architecture."""
    f = b.fields
    new = f.flag("new_decoder_architecture", False)
    parallel, multi_query = (f.flag(key, key not in f.data) for key in ("parallel_attn", "multi_query"))
    stated = f.whole("num_kv_heads", b.n_heads)
    b.n_kv = stated if new else 1 if multi_query else b.n_heads
    two_norms = f.whole("num_ln_in_parallel_attn", 2 if new else 1) == 2 if new else not parallel
    b.layout = "pre" if two_norms else "parallel"
    b.rotary = not f.flag("alibi", False)
    _four_times(b)


def _neox(b: Builder) -> None:
    b.fields.flag("use_parallel_residual", True)


def _opt(b: Builder) -> None:
    b.norms = b.fields.flag("layer_norm_elementwise_affine", True)


# Parts before the layers ----------------------------------------------------------------------


def _gpt2_first(b: Builder) -> tuple[Part, ...]:
    """A learned position table beside the token table."""
    b.fields.choice("add_cross_attention", b.fields.flag("add_cross_attention", False), (False,))
    places = Table("embed_positions", b.fields.whole("max_position_embeddings"), b.hidden, b.base)
    return (b.table(), places, Elementwise("add_positions", b.hidden))


def _opt_first(b: Builder) -> tuple[Part, ...]:
    """OPT: two more positions than the context, and a projection where the table is narrower than the layers."""
    narrow = b.fields.whole("word_embed_proj_dim", b.hidden)
    places = Table("embed_positions", b.fields.whole("max_position_embeddings") + 2, b.hidden, b.base)
    if narrow == b.hidden:
        return (b.table(), places, Elementwise("add_positions", b.hidden))
    project = b.linear("model.decoder.project_in", "embedding", narrow, b.hidden)
    return (b.table(narrow), project, places, Elementwise("add_positions", b.hidden))


def _opt_last(b: Builder) -> tuple[Part, ...]:
    """No final norm where the norms stand after the layers; the projection back to the narrow table."""
    f = b.fields
    narrow = f.whole("word_embed_proj_dim", b.hidden)
    final = f.flag("do_layer_norm_before", True) and not f.flag("_remove_final_layer_norm", False)
    norm = (b.norm("final_layer_norm", last_rows=True),) if final else ()
    project = () if narrow == b.hidden else (b.linear("model.decoder.project_out", "head", b.hidden, narrow),)
    return (*norm, *project, b.head(narrow))


def _bloom_first(b: Builder) -> tuple[Part, ...]:
    return (b.table(), b.norm("word_embeddings_layernorm"))


# Towers beside the text path ------------------------------------------------------------------


def _siglip(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Gemma 3's SigLIP tower and its projector: weights that text does not read."""
    from gambrel.model.towers import Extra

    if not top.has("vision_config"):
        b.notes.append("there is no vision_config: the text model alone is counted")
        return ()
    v = top.nested("vision_config", defaults=_SIGLIP)
    d, f, n = v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("num_hidden_layers")
    patch, pixels = v.whole("patch_size"), v.whole("image_size")
    pooled = int(v.flag("vision_use_head", True))
    n += pooled  # the pooling head has an attention and a feed-forward of its own, but one norm less and a probe
    biased = ((patch * patch * v.whole("num_channels"), d, 1), (d, d, 4 * n), (d, f, n), (f, d, n))
    linears = tuple((Linear("vision", "vision", i, o, b.base, b.base), copies) for i, o, copies in biased)
    projector = Linear("vision.projector", "vision", d, b.hidden, b.base)
    norms = 4 * d * n + 2 * d + d - pooled * d
    return (Extra("vision.vectors", "vision", (*linears, (projector, 1)), (pixels // patch) ** 2 * d + norms, b.base),)


def _pixtral(top: Fields, b: Builder) -> tuple[Part, ...]:
    """Mistral 3's Pixtral tower with its patch merger and projector."""
    from gambrel.model.towers import Extra

    if not top.has("vision_config"):
        b.notes.append("there is no vision_config: the text model alone is counted")
        return ()
    v = top.nested("vision_config", defaults=_PIXTRAL)
    d, f, n = v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("num_hidden_layers")
    patch, merge = v.whole("patch_size"), top.whole("spatial_merge_size", 2)
    bias = b.base if top.flag("multimodal_projector_bias", False) else None
    plain = ((patch * patch * v.whole("num_channels"), d, 1), (d, d, 4 * n), (d, f, 3 * n), (d * merge * merge, d, 1))
    linears = tuple((Linear("vision", "vision", i, o, b.base), copies) for i, o, copies in plain)
    projector = tuple((Linear("vision.projector", "vision", i, b.hidden, b.base, bias), 1) for i in (d, b.hidden))
    return (Extra("vision.vectors", "vision", (*linears, *projector), 2 * d * n + 2 * d, b.base),)


_SIGLIP = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
}
_PIXTRAL = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_channels": 3,
    "patch_size": 16,
}

# The table ------------------------------------------------------------------------------------

_FALCON_NAMES = {
    "hidden_size": ("hidden_size", "n_embed"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_kv_heads": ("num_kv_heads", "n_head_kv"),
    "intermediate_size": ("ffn_hidden_size",),
}
_BLOOM_NAMES = {
    "hidden_size": ("hidden_size", "n_embed"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "max_position_embeddings": ("seq_length",),
}
_EXPERT_NAMES = {"num_experts": ("num_experts", "num_local_experts")}
_OPT_NAMES = {"intermediate_size": ("ffn_dim",)}
_GEMMA = {"head_dim": 256}
_GEMMA3 = {
    **_GEMMA,
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}

_GEMMA3_TEXT = Family(
    defaults=_GEMMA3,
    layout="sandwich",
    qk_norm="head",
    **BIASED,
    tied=True,
    layers=every("sliding_window_pattern", 6, 4096),
    names={"sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern")},
)
_DEEPSEEK = {"mixer": Builder.latent_attention, "layers": _deepseek_layers, "ffn": sparse_or_dense(_deepseek_experts)}
_DEEPSEEK_V3 = Family(**_DEEPSEEK, defaults={"first_k_dense_replace": 3, "n_shared_experts": 1, "q_lora_rank": 1536})

FAMILIES: dict[str, Family] = {
    "llama": Family(**LLAMA),
    "mistral": Family(layers=all_windowed(4096), defaults={"num_key_value_heads": 8}),
    "ministral3": Family(layers=all_windowed(None), defaults={"num_key_value_heads": 8, "head_dim": 128}),
    "mixtral": Family(layers=_all_sparse, ffn=sparse_or_dense(_mixtral_experts), defaults={"num_key_value_heads": 8}),
    "qwen2": Family(qkv_bias=True, layers=_qwen_windows, defaults={"num_key_value_heads": 32}),
    "qwen3": Family(
        **BIASED,
        qk_norm="head",
        layers=_qwen_windows,
        defaults={"head_dim": 128, "num_key_value_heads": 32},
    ),
    "qwen2_moe": Family(
        qkv_bias="qkv_bias",
        layers=_qwen2_sparse,
        ffn=sparse_or_dense(_qwen2_experts),
        defaults={"qkv_bias": True, "num_key_value_heads": 16},
        names=_EXPERT_NAMES,
    ),
    "qwen3_moe": Family(
        **BIASED,
        qk_norm="head",
        layers=_qwen3_sparse,
        ffn=sparse_or_dense(_qwen3_experts),
        defaults={"num_key_value_heads": 4},
        names=_EXPERT_NAMES,
    ),
    "gemma": Family(defaults={**_GEMMA, "num_key_value_heads": 16}, tied=True, **BIASED),
    "gemma2": Family(
        defaults={**_GEMMA, "num_key_value_heads": 4},
        layout="sandwich",
        tied=True,
        **BIASED,
        layers=every("sliding_window_period", 2, 4096),
        names={"sliding_window": ("sliding_window", "sliding_window_size")},
    ),
    "gemma3_text": _GEMMA3_TEXT,
    "phi3": Family(fused_qkv=True, fused_inner=True, layers=all_windowed(None)),
    "deepseek_v2": Family(
        **_DEEPSEEK,
        mlp_bias="mlp_bias",
        defaults={"first_k_dense_replace": 0, "n_shared_experts": 2, "q_lora_rank": 1536},
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "gpt_oss": Family(
        **BIASED,
        sinks=True,
        layers=_gpt_oss_layers,
        ffn=sparse_or_dense(_gpt_oss_experts),
        defaults={"attention_bias": True, "head_dim": 64, "num_key_value_heads": 8},
        names={"num_experts_per_tok": ("num_experts_per_tok", "experts_per_token")},
    ),
    "olmo2": Family(layout="post", qk_norm="full", **BIASED),
    "gpt2": Family(
        **GPT,
        names=GPT_NAMES,
        fused_qkv=True,
        shape=_four_times,
        first=_gpt2_first,
    ),
    "opt": Family(
        names=_OPT_NAMES,
        norm="layer",
        gated=False,
        qkv_bias="enable_bias",
        out_bias="enable_bias",
        mlp_bias="enable_bias",
        rotary=False,
        tied=True,
        shape=_opt,
        first=_opt_first,
        last=_opt_last,
        defaults={"enable_bias": True},
    ),
    "falcon": Family(
        names=_FALCON_NAMES,
        norm="layer",
        gated=False,
        qkv_bias="bias",
        out_bias="bias",
        mlp_bias="bias",
        fused_qkv=True,
        tied=True,
        shape=_falcon,
    ),
    "gpt_neox": Family(
        norm="layer",
        gated=False,
        **BIASED,
        mlp_bias=True,
        fused_qkv=True,
        shape=_neox,
        defaults={"attention_bias": True},
    ),
    "bloom": Family(
        **GPT,
        names=_BLOOM_NAMES,
        fused_qkv=True,
        shape=_bloom,
        first=_bloom_first,
    ),
}


NESTED: dict[str, Nested] = {
    "gemma3": Nested("gemma3_text", _siglip, tied=True),
    "mistral3": Nested("mistral", _pixtral),
}

#: Class names of `architectures` and the model types that they go with; another known type beside one is an error.
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "LlamaForCausalLM": ("llama",),
    "MistralForCausalLM": ("mistral",),
    "MixtralForCausalLM": ("mixtral",),
    "Qwen2ForCausalLM": ("qwen2",),
    "Qwen3ForCausalLM": ("qwen3",),
    "Qwen2MoeForCausalLM": ("qwen2_moe",),
    "Qwen3MoeForCausalLM": ("qwen3_moe",),
    "GemmaForCausalLM": ("gemma",),
    "Gemma2ForCausalLM": ("gemma2",),
    "Gemma3ForCausalLM": ("gemma3_text",),
    "Gemma3ForConditionalGeneration": ("gemma3",),
    "Mistral3ForConditionalGeneration": ("mistral3",),
    "Phi3ForCausalLM": ("phi3",),
    "DeepseekV2ForCausalLM": ("deepseek_v2",),
    "DeepseekV3ForCausalLM": ("deepseek_v3", "kimi_k2"),
    "GptOssForCausalLM": ("gpt_oss",),
    "Olmo2ForCausalLM": ("olmo2",),
    "GPT2LMHeadModel": ("gpt2",),
    "OPTForCausalLM": ("opt",),
    "FalconForCausalLM": ("falcon",),
    "GPTNeoXForCausalLM": ("gpt_neox",),
    "BloomForCausalLM": ("bloom",),
    "MiniMaxM2ForCausalLM": ("minimax_m2",),
}
