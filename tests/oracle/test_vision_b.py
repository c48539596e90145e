"""Multimodal models of families/vision_b.py against truth.csv and against transformers' modules.

Counts of published configs; parameters of small models by tower and text; FLOPs of the towers, and of text steps.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from compared import assert_refused, base, published, truth

from gambrel.model import arch as totals
from gambrel.model.families import find
from gambrel.model.families.vision_b import CUSTOM, NESTED
from gambrel.model.fields import ConfigError
from gambrel.model.precision import Overrides
from gambrel.model.reader import read_config
from gambrel.types import Step

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

# Published configs ----------------------------------------------------------------------------

READ = (
    "HuggingFaceTB__SmolVLM-256M-Instruct",
    "HuggingFaceTB__SmolVLM2-2.2B-Instruct",
    "LGAI-EXAONE__EXAONE-4.5-33B-AWQ",
    "LiquidAI__LFM2-VL-450M",
    "OpenGVLab__InternVL3-38B-hf",
    "OpenGVLab__InternVL3-8B-hf",
    "RedHatAI__Llama-4-Scout-17B-16E-Instruct-FP8-dynamic",
    "adept__fuyu-8b",
    "deepseek-community__Janus-Pro-7B",
    "deepseek-community__deepseek-vl-7b-chat",
    "llava-hf__llava-onevision-qwen2-0.5b-ov-hf",
    "meta-llama__Llama-3.2-90B-Vision-Instruct",
    "mistral-community__pixtral-12b",
    "thisisiron__Ovis2-1B-hf",
    "unsloth__Llama-4-Maverick-17B-128E-Instruct",
    "unsloth__aya-vision-8b",
)

#: Refused, with these words.
REFUSED = {
    "LGAI-EXAONE__EXAONE-4.5-33B-FP8": ("layer_types", "65", "64"),
    "naver-hyperclovax__HyperCLOVAX-SEED-Think-32B": ("vlm",),
    "openbmb__MiniCPM-V-4": ("minicpmv",),
    "rhymes-ai__Aria-torchao-int8wo": ("aria_moe_lm",),
}

#: Text families that other modules hold; a test that needs one is skipped while it is missing.
TEXT = {
    "lfm2_vl": "lfm2",
    "llama4": "llama4_text",
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "fuyu": "persimmon",
    "exaone4_5": "exaone4",
}


def need_text(model_type: str) -> None:
    if model_type in TEXT and find(TEXT[model_type]) is None:
        pytest.skip(f"no table has the text family {TEXT[model_type]} yet")


@pytest.mark.parametrize("name", READ)
def test_published(name: str, shared: Any) -> None:
    """Total, active, cache, fixed state, and every group, where transformers ties a head by mistake without the tie."""
    config, row = published(shared, name), truth(shared, name)
    need_text(config["model_type"])
    reading = read_config(config, Overrides(kv="bf16"))
    tensors, caches = list(reading.arch.tensors()), reading.arch.caches(reading.precision.numerics())
    groups = totals.params_by_group(tensors)
    head = int(row["total_params_if_untied"]) - int(row["total_params"]) if row["truth_note"] else 0
    assert totals.params_total(tensors) == int(row["total_params"]) + head
    assert totals.params_active(tensors) == int(row["active_params"] or row["total_params"]) + head
    assert totals.kv_bytes_per_token(caches) == int(row["kv_bytes_per_token_bf16"])
    assert groups["vision"] == int(row["multimodal"])
    if not int(row["ssm_linear_attn"]):  # LFM2's groups and fixed state are compared where its family is
        assert sum(cache.fixed_bytes * count for cache, count in caches) == 2 * int(row["fixed_state_elems"])
        assert {k: groups.get(k, 0) for k in ("attention", "norm", "mlp")} == {
            k: int(row[k]) for k in ("attention", "norm", "mlp")
        }
    assert reading.unread == ()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, shared: Any) -> None:
    """What cannot be read says why."""
    config = published(shared, name)
    need_text(config["model_type"])
    assert_refused(config, REFUSED[name])


def test_fp8_exaone_is_the_awq_one(shared: Any) -> None:
    """With its layer types cut to 64, the refused config has the count of the other."""
    need_text("exaone4_5")
    config = published(shared, "LGAI-EXAONE__EXAONE-4.5-33B-FP8")
    config["text_config"]["layer_types"] = config["text_config"]["layer_types"][:64]
    total = totals.params_total(read_config(config).arch.tensors())
    assert total == int(truth(shared, "LGAI-EXAONE__EXAONE-4.5-33B-FP8")["total_params"])


# Small models ---------------------------------------------------------------------------------


def _text(model_type: str, **keys: Any) -> dict[str, Any]:
    return base(model_type=model_type, **{"pad_token_id": 0, **keys})


def _vision(model_type: str, **keys: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 56,
        "patch_size": 14,
        **keys,
    }


def _model(model_type: str, text: dict[str, Any], vision: dict[str, Any], **keys: Any) -> dict[str, Any]:
    tie = {"tie_word_embeddings": False}
    return {"model_type": model_type, "text_config": text, "vision_config": vision, "dtype": "bfloat16", **tie, **keys}


LLAMA, QWEN2 = _text("llama"), _text("qwen2")
SIGLIP = _vision("siglip_vision_model", vision_use_head=False)
INTERN = _vision("internvl_vision", image_size=[56, 56], patch_size=[14, 14])
SMALL_VQ = {"base_channels": 32, "channel_multiplier": [1, 2, 2], "latent_channels": 16, "num_embeddings": 40}
JANUS = _vision("janus_vision_model", mlp_ratio=2.0, projection_dim=96)
del JANUS["intermediate_size"]
SAM = {
    "model_type": "sam_vision_model",
    "hidden_size": 48,
    "mlp_dim": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 80,
    "patch_size": 8,
    "output_channels": 16,
    "window_size": 4,
    "global_attn_indexes": [1],
}
HYBRID = _model("deepseek_vl_hybrid", LLAMA, SIGLIP, high_res_vision_config=SAM)
MLLAMA_TEXT = _text("mllama_text_model", num_hidden_layers=4, cross_attention_layers=[1, 3])
MLLAMA_VISION = _vision(
    "mllama_vision_model",
    attention_heads=4,
    num_global_layers=2,
    intermediate_layers_indices=[0, 2],
    vision_output_dim=144,
    max_num_tiles=4,
)
del MLLAMA_VISION["num_attention_heads"]
LLAMA4_TEXT = _text(
    "llama4_text", intermediate_size_mlp=200, head_dim=16, num_local_experts=4, num_hidden_layers=4, moe_layers=[1, 3]
)
LLAMA4_VISION = _vision(
    "llama4_vision_model",
    intermediate_size=192,
    projector_input_dim=64,
    projector_output_dim=64,
    vision_output_dim=64,
)
EXAONE_VISION = {
    "model_type": "exaone4_5_vision",
    "depth": 4,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "patch_size": 14,
    "window_size": 56,
    "out_hidden_size": 96,
    "fullatt_block_indexes": [1, 3],
}
EXAONE_TEXT = _text("exaone4", sliding_window=12, sliding_window_pattern=4, num_hidden_layers=4)
SIGLIP2 = {k: v for k, v in _vision("siglip2_vision_model", num_patches=16).items() if k != "image_size"}
LFM2_TEXT = _text("lfm2", layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False)
IDEFICS = _vision("idefics3_vision")
OVIS = _vision("ovis2_vision", vocab_size=64, hidden_stride=2)
ARIA_TEXT = _text("aria_text", intermediate_size=40, moe_num_experts=6, moe_topk=2)
FUYU = {
    **{k: v for k, v in _text("fuyu", num_attention_heads=12).items() if k not in ("num_key_value_heads",)},
    "hidden_size": 96,
    "patch_size": 10,
    "dtype": "bfloat16",
}
CLIP = _vision("clip_vision_model")
PIXTRAL = _vision("pixtral", hidden_size=64)

CASES: dict[str, dict[str, Any]] = {
    "llava-clip": _model("llava", LLAMA, CLIP, image_seq_length=16),
    "llava-clip-full": _model(
        "llava", LLAMA, CLIP, vision_feature_select_strategy="full", multimodal_projector_bias=False
    ),
    "llava-clip-layers": _model("llava", LLAMA, CLIP, vision_feature_layer=[-2, -1]),
    "llava-tied-by-text": _model("llava", {**QWEN2, "tie_word_embeddings": True}, CLIP),
    "llava-siglip": _model("llava", LLAMA, SIGLIP, vision_feature_select_strategy="full"),
    "llava-siglip-head": _model("llava", LLAMA, _vision("siglip_vision_model"), vision_feature_select_strategy="full"),
    "llava-pixtral": _model("llava", _text("mistral"), PIXTRAL, vision_feature_select_strategy="full"),
    "llava_next": _model("llava_next", _text("mistral"), CLIP, image_grid_pinpoints=[[56, 112]]),
    "llava_onevision": _model("llava_onevision", QWEN2, SIGLIP, image_grid_pinpoints=[[56, 112]]),
    "llava_onevision-tied": _model(
        "llava_onevision", {**QWEN2, "tie_word_embeddings": True}, SIGLIP, image_grid_pinpoints=[[56, 112]]
    ),
    "llava_next_video": _model("llava_next_video", LLAMA, CLIP, image_grid_pinpoints=[[56, 112]]),
    "vipllava": _model("vipllava", LLAMA, CLIP, vision_feature_layer=[-2, 1]),
    "paligemma": _model(
        "paligemma", _text("gemma", head_dim=16), SIGLIP, projection_dim=96, vocab_size=320, tie_word_embeddings=True
    ),
    "paligemma-2": _model(
        "paligemma",
        _text("gemma2", head_dim=16, sliding_window=64),
        SIGLIP,
        projection_dim=96,
        tie_word_embeddings=True,
    ),
    "cohere2_vision": _model(
        "cohere2_vision", _text("cohere2"), SIGLIP, alignment_intermediate_size=128, tie_word_embeddings=True
    ),
    "internvl": _model("internvl", QWEN2, INTERN),
    "internvl-tied": _model("internvl", QWEN2, INTERN, tie_word_embeddings=True),
    "internvl-rms": _model(
        "internvl",
        _text("qwen3", head_dim=16),
        {**INTERN, "norm_type": "rms_norm", "use_qk_norm": True, "use_mask_token": True, "attention_bias": True},
    ),
    "internvl-pooled": _model("internvl", LLAMA, {**INTERN, "use_mean_pooling": False}),
    "idefics3": _model("idefics3", LLAMA, IDEFICS),
    "idefics3-tied": _model("idefics3", LLAMA, IDEFICS, scale_factor=4, tie_word_embeddings=True),
    "smolvlm": _model("smolvlm", LLAMA, {**IDEFICS, "model_type": "smolvlm_vision"}, scale_factor=2),
    "aya_vision": _model("aya_vision", _text("cohere2", sliding_window=12), SIGLIP, tie_word_embeddings=True),
    "aya_vision-inner": _model(
        "aya_vision", _text("cohere2"), SIGLIP, alignment_intermediate_size=128, tie_word_embeddings=True
    ),
    "lfm2_vl": _model(
        "lfm2_vl", LFM2_TEXT, {**SIGLIP2, "vision_use_head": False}, max_num_patches=16, tie_word_embeddings=True
    ),
    "lfm2_vl-no-norm": _model(
        "lfm2_vl",
        LFM2_TEXT,
        {**SIGLIP2, "vision_use_head": False},
        projector_use_layernorm=False,
        projector_bias=False,
        max_num_patches=16,
        tie_word_embeddings=True,
    ),
    "janus": _model("janus", LLAMA, JANUS, vq_config={**SMALL_VQ, "projection_dim": 96, "image_token_embed_dim": 96}),
    "janus-wide": _model(
        "janus",
        LLAMA,
        {**JANUS, "attention_bias": False, "depth": 3},
        vq_config={"num_res_blocks": 1, "double_latent": True, "num_hidden_layers": 3, "base_channels": 32},
    ),
    "deepseek_vl": _model("deepseek_vl", LLAMA, SIGLIP),
    "deepseek_vl_hybrid": HYBRID,
    "deepseek_vl_hybrid-plain": {
        **HYBRID,
        "high_res_vision_config": {
            **SAM,
            "use_rel_pos": False,
            "use_abs_pos": False,
            "qkv_bias": False,
            "window_size": 5,
        },
    },
    "fuyu": FUYU,
    "ovis2": _model("ovis2", QWEN2, OVIS, hidden_size=96, vocab_size=320, tie_word_embeddings=True),
    "ovis2-bias": _model(
        "ovis2", QWEN2, {**OVIS, "qkv_bias": True, "mlp_bias": True, "hidden_stride": 1}, hidden_size=96, vocab_size=320
    ),
    "exaone4_5": _model("exaone4_5", EXAONE_TEXT, EXAONE_VISION),
    "llama4": _model("llama4", LLAMA4_TEXT, LLAMA4_VISION),
    "mllama": _model("mllama", MLLAMA_TEXT, MLLAMA_VISION),
    "aria": _model("aria", ARIA_TEXT, IDEFICS, projector_patch_to_query_dict={"16": 8, "64": 12}),
    "aria-bias": _model(
        "aria",
        {**ARIA_TEXT, "attention_bias": True, "mlp_bias": True, "moe_num_shared_experts": 1},
        IDEFICS,
        projector_patch_to_query_dict={"4": 2, "16": 8},
    ),
}

#: The same model as "ovis2" under its authors' own keys; transformers does not have it.
OVIS_ORIGINAL = {
    "model_type": "ovis",
    "hidden_size": 96,
    "llm_config": {**QWEN2, "tie_word_embeddings": True},
    "visual_tokenizer_config": {
        "model_type": "aimv2_visual_tokenizer",
        "backbone_config": {**{k: v for k, v in OVIS.items() if k != "vocab_size"}, "model_type": "aimv2"},
        "hidden_stride": 2,
        "vocab_size": 64,
    },
    "dtype": "bfloat16",
}
del CASES["mllama"]["tie_word_embeddings"]


@pytest.fixture(params=CASES)
def small(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A small config whose text family is known."""
    config = CASES[request.param]
    need_text(config["model_type"])
    return config


def build(modules: Any, config: dict[str, Any], device: str = "meta") -> Any:
    """transformers' module, with eager attention so that the counter sees its products."""
    from transformers import AutoModelForImageTextToText

    built = modules.config(config)
    options = {"experts_implementation": "batched_mm"} if config["model_type"] == "aria" else {}
    with modules.torch.device(device):
        return AutoModelForImageTextToText.from_config(
            built, attn_implementation="eager", dtype=modules.torch.float32, **options
        ).eval()


def test_parameters(small, modules) -> None:
    """Unique parameters of the module, and of what is not text."""
    module = build(modules, small)
    read = read_config(small)
    assert totals.params_total(read.arch.tensors()) == sum(p.numel() for p in module.parameters())
    language = ("language_model", "text_model", "lm_head")
    beside = sum(p.numel() for n, p in module.named_parameters() if not any(f"{x}." in n for x in language))
    assert sum(t.params * t.copies for part in read.arch.extras for t in part.tensors()) == beside


def test_saved_by_transformers(small, modules) -> None:
    """A config that transformers wrote in full is read as the same model, and no key of it is unknown."""
    config = modules.config(small)
    saved = json.loads(config.to_json_string(use_diff=False))
    read = read_config(saved)
    assert totals.params_by_group(read.arch.tensors()) == totals.params_by_group(read_config(small).arch.tensors())
    assert [key for key in read.unread if not key.startswith("text_config.block_")] == []  # lfm2's own


def flops_of(config: dict[str, Any], step: Step, extras: bool) -> int:
    """gambrel's FLOPs beside the text, or of the text."""
    read = read_config(config)
    numerics = read.precision.numerics()
    if extras:
        ops = [op for part in read.arch.extras for op in part.ops(step, numerics)]
    else:
        ops = [op for op in read.arch.ops(step, numerics) if op.block != "beside the text"]
    return sum(op.cost.flops * op.count for op in ops)


PICTURES = 3


def pictures(modules: Any, config: dict[str, Any], module: Any) -> tuple[dict[str, Any], int]:
    """What get_image_features is handed, and how many media tokens one sequence then has."""
    torch = modules.torch
    side, kind = 56, config["model_type"]
    pixels = torch.zeros(PICTURES, 3, side, side)
    given: dict[str, Any] = {"pixel_values": pixels}
    if kind in ("idefics3", "smolvlm"):  # those without any pixel are dropped
        given = {"pixel_values": torch.ones(1, PICTURES, 3, side, side)}
    elif kind in ("llava_next", "llava_onevision", "llava_next_video"):
        given = {"pixel_values": pixels[None], "image_sizes": torch.tensor([[56, 112]])}
    elif kind == "lfm2_vl":
        given = {
            "pixel_values": torch.zeros(PICTURES, 16, 3 * 14 * 14),
            "spatial_shapes": torch.tensor([[4, 4]] * PICTURES),
            "pixel_attention_mask": torch.ones(PICTURES, 16, dtype=torch.long),
        }
    elif kind == "deepseek_vl_hybrid":
        given["high_res_pixel_values"] = torch.zeros(PICTURES, 3, 80, 80)
    elif kind == "fuyu":
        return {"pixel_values": torch.zeros(PICTURES, 16, 300)}, 16
    elif kind == "exaone4_5":
        given = {
            "pixel_values": torch.zeros(PICTURES * 64, 3 * 2 * 14 * 14),
            "image_grid_thw": torch.tensor([[1, 8, 8]] * PICTURES),
        }
        return given, 64
    elif config["vision_config"]["model_type"] == "pixtral":
        given["image_sizes"] = torch.tensor([[side, side]] * PICTURES)
    return given, 16


#: Towers whose pictures are sequences of their own here, since a sequence has one picture.
APART = ("fuyu", "exaone4_5")


def unused_head(modules: Any, config: dict[str, Any]) -> int:
    """FLOPs of SigLIP's pooling head, which the module runs although nobody reads it; gambrel does not count it."""
    vision = config.get("vision_config", {})
    if vision.get("model_type") != "siglip_vision_model" or not vision.get("vision_use_head", True):
        return 0
    d, f, patches = vision["hidden_size"], vision["intermediate_size"], 16
    return PICTURES * 2 * (2 * d * d + patches * 2 * d * d + 2 * patches * d + 2 * d * f)


def test_tower_flops(small, modules) -> None:
    """Products of the tower and the projector over three pictures, on the CPU (windows depend on the data).

    Pixtral's module joins all pictures of a batch into one masked sequence; gambrel counts them apart, as a kernel
    with cumulative lengths does, so its scores are a third. SigLIP 2's module resizes its 16 positions to the picture
    by a product; gambrel leaves that out, as every other interpolation.
    """
    from torch.utils.flop_counter import FlopCounterMode

    if small["model_type"] == "mllama":
        pytest.skip("test_mllama")
    module = build(modules, small, "cpu")
    given, tokens = pictures(modules, small, module)
    with FlopCounterMode(display=False) as counted, modules.torch.no_grad():
        inner = module if hasattr(module, "get_image_features") else module.model
        out = inner.get_image_features(**given)
        if small["model_type"] == "llama4":  # the projector runs outside
            module.multi_modal_projector(out.last_hidden_state.reshape(-1, 64))
    right = counted.get_total_flops() - unused_head(modules, small)
    apart = small["model_type"] in APART
    step = Step(PICTURES if apart else 1, 1, 1, media_tokens=tokens if apart else PICTURES * tokens)
    if small.get("vision_config", {}).get("model_type") == "pixtral":
        v = small["vision_config"]
        rows = PICTURES * tokens
        right -= v["num_hidden_layers"] * 4 * v["hidden_size"] * (rows * rows - PICTURES * tokens * tokens)
    if small["model_type"] == "lfm2_vl":
        right -= PICTURES * 2 * 16 * 16 * 48
    assert flops_of(small, step, extras=True) == right


def test_no_media_no_flops(small) -> None:
    """A step of text leaves towers alone."""
    assert flops_of(small, Step(2, 4, 4), extras=True) == 0


@pytest.mark.parametrize("new_tokens", [20, 1])
def test_text_flops(small, modules, new_tokens) -> None:
    """A prefill and a decode step of text, with eager attention over every key; experts are counted elsewhere."""
    from torch.utils.flop_counter import FlopCounterMode

    if small["model_type"] in ("llama4", "lfm2_vl"):
        pytest.skip("the text model is compared where its family is")
    module = build(modules, small, "cpu" if small["model_type"] == "paligemma" else "meta")  # whose mask has values
    cache = None
    if new_tokens == 1:
        cache = modules.forward(module, 11, None, 2).past_key_values
    with FlopCounterMode(display=False) as counted:
        modules.forward(module, new_tokens, cache, 2)
    step = Step(2, new_tokens, 12 if new_tokens == 1 else 20, causal=False, logits="all")
    assert flops_of(small, step, extras=False) == counted.get_total_flops()


def test_streamed_weights(small) -> None:
    """A step of text reads exactly the streamed weights, towers and mllama's cross-attention layers not among them."""
    if small["model_type"] in ("llama4", "aria"):
        pytest.skip("experts are read in part")
    read = read_config(small)
    ops = read.arch.ops(Step(1, 1, 8), read.precision.numerics())
    assert sum(op.cost.weight_bytes * op.count for op in ops) == totals.weight_bytes(read.arch.tensors(), True)


def test_grid(small) -> None:
    """Arrays of batches, media and source tokens cost what their elements cost, zeros among them."""
    np = pytest.importorskip("numpy")
    read = read_config(small)
    numerics = read.precision.numerics()
    batches, tokens = [1, 1, 3, 2], [0, 32, 16, 8]
    options: dict[str, Any] = {"encode": True, "causal": False}

    def cost(batch: Any, media: Any) -> Any:
        step = Step(batch, 4, 4, media_tokens=media, source_tokens=media * 17, **options)
        costs = [(op.cost * op.count).values() for op in read.arch.ops(step, numerics)]
        return [sum(column) for column in zip(*costs, strict=True)]

    whole = cost(np.array(batches), np.array(tokens))
    for i, (batch, media) in enumerate(zip(batches, tokens, strict=True)):
        assert [np.broadcast_to(x, 4)[i] for x in whole] == pytest.approx(cost(batch, media))


# mllama ---------------------------------------------------------------------------------------


def test_mllama(modules) -> None:
    """A prefill with a picture of two tiles, and a decode step behind it.

    The module pads the 17 rows of a tile to 24 in its tower; gambrel does not. So the tower is compared with 24 rows
    a tile where the module pads, and 17 where it does not (patches, projector, cross-attention).
    """
    from torch.utils.flop_counter import FlopCounterMode

    config, torch = CASES["mllama"], modules.torch
    module = build(modules, config, "cpu")
    tiles, new = 4, 5
    keys = tiles * 17
    given = {
        "pixel_values": torch.zeros(1, 1, tiles, 3, 56, 56),
        "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(1, 1, tiles, dtype=torch.long),
        "cross_attention_mask": torch.ones(1, new, 1, tiles, dtype=torch.long),
    }
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        out = module(input_ids=torch.ones(1, new, dtype=torch.long), use_cache=True, **given)
    v = config["vision_config"]
    d, layers = v["hidden_size"], v["num_hidden_layers"] + v["num_global_layers"]
    per_row = 2 * (4 * d * d + 2 * d * v["intermediate_size"])
    padding = layers * ((24 - 17) * tiles * per_row + 4 * d * ((24 * tiles) ** 2 - keys**2))
    mask = 2 * (24 * tiles) ** 2  # the attention mask is made by a product of one column and one row
    step = Step(1, new, new, causal=False, logits="all", source_tokens=keys, encode=True)
    both = flops_of(config, step, True) + flops_of(config, step, False)
    assert both == counted.get_total_flops() - padding - mask
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        mask = {"cross_attention_mask": torch.ones(1, 1, 1, tiles, dtype=torch.long)}
        module(
            input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=out.past_key_values, use_cache=True, **mask
        )
    step = Step(1, 1, new + 1, causal=False, logits="all", source_tokens=keys)
    assert flops_of(config, step, True) == 0
    assert flops_of(config, step, False) == counted.get_total_flops()


def test_mllama_cache() -> None:
    """Two of four layers keep keys and values of the text, the others those of the picture."""
    read = read_config(CASES["mllama"])
    caches = read.arch.caches(read.precision.numerics())
    per_layer = 2 * 3 * 8 * 2
    assert totals.state_bytes(caches, 10) == 10 * 2 * per_layer
    assert totals.state_bytes(caches, 10, source_tokens=17) == (10 + 17) * 2 * per_layer


# Keys that are left out, and broken ones -------------------------------------------------------


def test_class_defaults_of_a_text_config() -> None:
    """llava-1.5-7b's text config says little more than that it is a llama; the tower is CLIP's by default."""
    text = {"model_type": "llama", "vocab_size": 32_064, "max_position_embeddings": 4096}
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
        "projection_dim": 768,
        "vocab_size": 32_000,
    }
    config = {"model_type": "llava", "text_config": text, "vision_config": vision, "torch_dtype": "float16"}
    full = totals.params_total(read_config(config).arch.tensors())
    assert full == 7_063_427_072
    del config["vision_config"]
    assert totals.params_total(read_config(config).arch.tensors()) == full


BROKEN = ("x", 0, -1, None, [], {}, 1.5, True, [1] * 100, 10**8, 10**12, "")


def places(config: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all keys of a config."""
    found = []
    for key, inner in config.items():
        found.append((*path, key))
        if isinstance(inner, dict):
            found += places(inner, (*path, key))
    return found


@pytest.mark.parametrize("kind", CUSTOM)
def test_broken_values(kind: str) -> None:
    """Any key with any wrong value is read or refused in words; there is no traceback."""
    need_text(kind)
    small = next(config for config in (*CASES.values(), OVIS_ORIGINAL) if config["model_type"] == kind)
    for path in places(small):
        for value in BROKEN:
            broken = json.loads(json.dumps(small))
            spot = broken
            for key in path[:-1]:
                spot = spot[key]
            spot[path[-1]] = value
            try:
                read = read_config(broken)
            except ConfigError:
                continue
            list(read.arch.tensors())
            read.arch.ops(Step(1, 4, 4, media_tokens=64, source_tokens=17, encode=True), read.precision.numerics())


def test_dtype_of_the_text_config() -> None:
    """Where the top names no dtype, the text config's holds."""
    config = {k: v for k, v in CASES["internvl"].items() if k != "dtype"}
    read = read_config({**config, "text_config": {**QWEN2, "torch_dtype": "float16"}})
    assert (read.precision.base.name, read.notes) == ("fp16", ())


def test_every_family_has_a_case() -> None:
    """No row of the table is without a small model."""
    assert {config["model_type"] for config in CASES.values()} == {*CUSTOM, *NESTED} - {"ovis"}


def test_ovis_of_its_authors(shared: Any) -> None:
    """The published file of Ovis2-1B has the count of its conversion, and small ones agree in every group."""
    count = lambda config: totals.params_by_group(read_config(config).arch.tensors())
    assert count(published(shared, "AIDC-AI__Ovis2-1B")) == count(published(shared, "thisisiron__Ovis2-1B-hf"))
    assert count(OVIS_ORIGINAL) == count(CASES["ovis2"])
    untied = count({**OVIS_ORIGINAL, "disable_tie_weight": True})
    assert untied["head"] == 320 * 96
