"""Multimodal families of vision_a and vision_gemma against their true counts, and small ones against PyTorch modules.

Parameters, FLOPs of the text path (prefill, chunk, decode) and FLOPs of the towers are compared exactly, the way
test_flops.py does: products alone, eager attention, experts as batched products, every key (causal=False). Besides:

* Towers run on the CPU, since their grids are read as values. One picture a sequence; convolutions of patches are
  counted by PyTorch as convolutions, by gambrel as products.
* Gemma 4 pools patches by a product with a 0/1 matrix in transformers: a mean, which gambrel counts no FLOPs for.
* AltUp's prediction is a bmm without being attention, so Gemma 3n is compared in total.
* transformers unembeds all hidden states of Gemma 3n in every row; gambrel only rows that need logits.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from compared import MLA, assert_refused, base, counted, gambrel_flops, published, truth

from gambrel.model import arch as totals
from gambrel.model.families import find
from gambrel.model.fields import ConfigError
from gambrel.model.precision import Overrides
from gambrel.model.reader import read_config
from gambrel.types import GambrelError, Step

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

# Published configs ----------------------------------------------------------------------------

REAL = (
    "Qwen__Qwen2.5-VL-3B-Instruct",
    "Qwen__Qwen2.5-VL-72B-Instruct",
    "Qwen__Qwen3-VL-30B-A3B-Instruct",
    "Qwen__Qwen3-VL-32B-Instruct",
    "Qwen__Qwen3-VL-32B-Thinking",
    "Qwen__Qwen3-VL-4B-Instruct",
    "Qwen__Qwen3-VL-4B-Thinking",
    "Qwen__Qwen3-VL-8B-Instruct",
    "Qwen__Qwen3.5-122B-A10B",
    "Qwen__Qwen3.5-27B",
    "Qwen__Qwen3.5-35B-A3B",
    "google__gemma-3n-E4B",
    "google__gemma-4-26B-A4B",
    "google__gemma-4-31B",
    "google__gemma-4-E2B",
    "google__gemma-4-E4B-it-assistant",
    "lkhl__VideoLLaMA3-2B-Image-HF",
    "moonshotai__Kimi-K2.5",
    "nvidia__Gemma-4-26B-A4B-NVFP4",
    "nvidia__Kimi-K2.5-NVFP4",
    "nvidia__Kimi-K2.6-NVFP4",
    "nvidia__Qwen3.5-122B-A10B-NVFP4",
    "nvidia__Qwen3.5-397B-A17B-NVFP4",
    "unsloth__GLM-OCR",
    "zai-org__GLM-4.1V-9B-Thinking",
    "zai-org__GLM-4.5V",
)
BF16 = 2


def numbers(shared: Path, name: str) -> dict[str, int]:
    """The numbers among the true counts."""
    return {key: int(value) for key, value in truth(shared, name).items() if value.lstrip("-").isdigit()}


def groups_of(config: dict[str, Any]) -> dict[str, int]:
    return totals.params_by_group(read_config(config).arch.tensors())


@pytest.mark.parametrize("name", REAL)
def test_published(name: str, shared: Path) -> None:
    """Total, active and tower parameters, cache per token and fixed state of a published config."""
    config = published(shared, name)
    text = config.get("text_config", {}).get("model_type", "")
    if text.startswith("qwen3_5") and find(text) is None:
        pytest.skip("the text model is another module's")
    right, reading = numbers(shared, name), read_config(config, Overrides(kv="bf16"))
    tensors, caches = list(reading.arch.tensors()), reading.arch.caches(reading.precision.numerics())
    assert totals.params_total(tensors) == right["total_params"]
    assert totals.params_active(tensors) == right.get("active_params", right["total_params"])
    assert totals.params_by_group(tensors).get("vision", 0) == right["multimodal"]
    assert totals.kv_bytes_per_token(caches) == right.get("kv_bytes_per_token_bf16", 0)
    if not text.startswith("qwen3_5"):  # the dtype of that state is the other module's to test
        assert sum(cache.fixed_bytes * count for cache, count in caches) == BF16 * right.get("fixed_state_elems", 0)
    assert reading.unread == ()


def test_ernie_vl(shared: Path) -> None:
    """The flat config of ERNIE 4.5 VL, whose type transformers renamed: as many as its own class has of these keys."""
    name = "baidu__ERNIE-4.5-VL-28B-A3B-Base-PT"
    config = published(shared, name)
    reading = read_config(config)
    assert totals.params_total(reading.arch.tensors()) == 29_399_294_336
    assert reading.unread == ()


def test_step_flat(shared: Path) -> None:
    """The class of step3p7 ignores flat keys (its vocabulary is then not the file's), so such a file is refused."""
    config = published(shared, "stepfun-ai__Step-3.7-Flash-FP8")
    with pytest.raises(ConfigError, match="missing key text_config"):
        read_config(config)


def test_kimi_vl() -> None:
    """Kimi-VL-A3B is not in transformers; its files have 16,407,657,776 elements of two bytes.

    That is half the size that two public repositories work with. 26 x 64 are biases of routers, and 27 x 32 rotary
    frequencies stand in the files in four bytes each.
    """
    text = {
        "model_type": "deepseek_v3",
        "vocab_size": 163_840,
        "hidden_size": 2048,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 11_264,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "tie_word_embeddings": False,
    }
    vision = {
        "model_type": "moonvit",
        "patch_size": 14,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "merge_kernel_size": [2, 2],
    }
    config = {"model_type": "kimi_vl", "text_config": text, "vision_config": vision, "torch_dtype": "bfloat16"}
    assert sum(groups_of(config).values()) + 26 * 64 + 2 * 27 * 32 == 16_407_657_776


def test_inner_quantisation(shared: Path) -> None:
    """Kimi-K2.5 states its int4 scheme in the text config: 32 elements share a scale of 16 bit, 4.5 bit an element."""
    config = published(shared, "moonshotai__Kimi-K2.5")
    experts = [t for t in read_config(config).arch.tensors() if t.group == "experts"]
    assert {t.stored_bytes * 16 // t.params for t in experts} == {9}


# Small models ---------------------------------------------------------------------------------


MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}}
WIDE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 4, 8]}}
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 2, 4]}}
MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
VIT: dict[str, Any] = {"depth": 3, "hidden_size": 48, "num_heads": 4, "intermediate_size": 80, "patch_size": 4}
VIT |= {"out_hidden_size": 96}
QWEN2 = {"depth": 2, "embed_dim": 48, "hidden_size": 96, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4}
QWEN2_5 = {**VIT, "window_size": 16, "fullatt_block_indexes": [1]}
QWEN3 = {**VIT, "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]}
DEEPSEEK = base(
    **MLA,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=40,
    n_group=1,
    topk_group=1,
    n_shared_experts=1,
    first_k_dense_replace=1,
    model_type="deepseek_v3",
    tie_word_embeddings=False,
)
MOONVIT = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 4,
    "pos_emb_height": 6,
    "pos_emb_width": 6,
}
GLM = {**VIT, "image_size": 24}
LINEAR = {
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
GEMMA = base(head_dim=16, num_hidden_layers=4, sliding_window=12, tie_word_embeddings=True)
KINDS = ["sliding_attention", "full_attention"]
GEMMA4 = {**GEMMA, "model_type": "gemma4_text", "global_head_dim": 32, "layer_types": 2 * KINDS, "pad_token_id": 0}
GEMMA4_SMALL = {
    **GEMMA4,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 300,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
GEMMA4_LARGE = {
    **GEMMA4,
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 2,
}
GEMMA4_MOE = {**GEMMA4_LARGE, "enable_moe_block": True, "top_k_experts": 3, "num_experts": 8}
GEMMA4_MOE |= {"moe_intermediate_size": 40}
GEMMA4_VISION = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "position_embedding_size": 30,
    "pooling_kernel_size": 2,
}
GEMMA4_AUDIO: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "output_proj_dims": 40,
}
GEMMA4_AUDIO |= {"subsampling_conv_channels": [16, 8], "attention_chunk_size": 6, "attention_context_left": 4}
GEMMA3N = {
    **GEMMA,
    "model_type": "gemma3n_text",
    "intermediate_size": [80, 80, 96, 96],
    "layer_types": 2 * KINDS,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 24,
    "vocab_size_per_layer_input": 300,
    "laurel_rank": 8,
    "altup_num_inputs": 3,
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
}


def _model(model_type: str, text: dict[str, Any], vision: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {"model_type": model_type, "text_config": text, "vision_config": vision, "torch_dtype": "bfloat16", **keys}


SMALL: dict[str, dict[str, Any]] = {
    "qwen2_vl": _model("qwen2_vl", {**base(), **MROPE}, QWEN2),
    "qwen2_vl-tied-below": _model("qwen2_vl", {**base(tie_word_embeddings=True), **MROPE}, {**QWEN2, "mlp_ratio": 4}),
    "qwen2_vl-flat": {
        **base(),
        "model_type": "qwen2_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    }
    | {"vision_config": QWEN2, "torch_dtype": "bfloat16", "tie_word_embeddings": True},
    "qwen2_5_vl": _model("qwen2_5_vl", {**base(), **MROPE}, QWEN2_5),
    "qwen2_5_vl-windows": _model(
        "qwen2_5_vl",
        {**base(use_sliding_window=True, sliding_window=12, max_window_layers=1), **MROPE},
        {**QWEN2_5, "spatial_merge_size": 1, "window_size": 8},
    ),
    "qwen3_vl": _model("qwen3_vl", {**base(head_dim=32), **WIDE}, QWEN3, tie_word_embeddings=True),
    "qwen3_vl-bias": _model("qwen3_vl", {**base(head_dim=32, attention_bias=True), **WIDE}, QWEN3),
    "qwen3_vl_moe": _model("qwen3_vl_moe", {**base(**MOE, head_dim=32), **WIDE}, QWEN3, tie_word_embeddings=False),
    "qwen3_vl_moe-mixed": _model(
        "qwen3_vl_moe",
        {**base(**MOE, mlp_only_layers=[0], decoder_sparse_step=2, attention_bias=True), **MROPE},
        {**QWEN3, "deepstack_visual_indexes": [1]},
        tie_word_embeddings=True,
    ),
    "qwen3_5": _model("qwen3_5", {**base(**LINEAR), "model_type": "qwen3_5_text"}, QWEN3),
    "glm4v": _model("glm4v", {**base(), **MROPE}, GLM),
    "glm4v-bias-tied": _model("glm4v", {**base(tie_word_embeddings=True), **MROPE}, {**GLM, "attention_bias": True}),
    "glm4v_moe": _model(
        "glm4v_moe",
        {**base(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=40, head_dim=32), **HALF},
        GLM,
    ),
    "glm46v": _model("glm46v", {**base(), **MROPE, "model_type": "glm4v_text"}, {**GLM, "model_type": "glm4v_vision"}),
    "glm_ocr": _model("glm_ocr", {**base(head_dim=32), **WIDE}, VIT),
    "glm_ocr-no-bias": _model("glm_ocr", {**base(), **MROPE}, {**VIT, "attention_bias": False}),
    "kimi_k25": _model("kimi_k25", DEEPSEEK, MOONVIT, projection_hidden_size=48, tie_word_embeddings=False),
    "video_llama_3": _model(
        "video_llama_3",
        {**base(), "model_type": "qwen2"},
        {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 4},
    ),
    "gemma4": _model("gemma4", GEMMA4_LARGE, {**GEMMA4_VISION, "standardize": True}),
    "gemma4-moe": _model("gemma4", GEMMA4_MOE, GEMMA4_VISION),
    "gemma4-small": _model("gemma4", GEMMA4_SMALL, GEMMA4_VISION, audio_config=GEMMA4_AUDIO),
    "gemma4_text": {**GEMMA4, "hidden_size_per_layer_input": 0, "attention_bias": True, "torch_dtype": "bfloat16"},
    "gemma4_text-untied": {**GEMMA4_SMALL, "num_kv_shared_layers": 0, "tie_word_embeddings": False},
    "gemma3n_text": {**GEMMA3N, "torch_dtype": "bfloat16"},
    "gemma3n_text-one-width": {**GEMMA3N, "intermediate_size": 64, "num_kv_shared_layers": 0, "attention_bias": True},
}
ERNIE = {
    **base(moe_intermediate_size=[40, 24], moe_k=3, moe_num_experts=8, moe_num_shared_experts=2, use_bias=False),
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]},
}
ERNIE_VISION = {"depth": 2, "hidden_size": 48, "num_heads": 4, "intermediate_size": 192, "patch_size": 4}
STEP = {
    **base(num_hidden_layers=5, head_dim=16, sliding_window=12, num_sliding_attention_heads=6),
    "layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "share_expert_dim": 56,
}
STEP_VISION = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2.5, "patch_size": 4}
STEP_VISION |= {"image_size": 24}
SMALL |= {
    "ernie4_5_vl_moe": _model("ernie4_5_vl_moe", ERNIE, ERNIE_VISION, tie_word_embeddings=True),
    "ernie4_5_vl_moe-bias": _model("ernie4_5_vl_moe", {**ERNIE, "use_bias": True}, ERNIE_VISION)
    | {"tie_word_embeddings": False},
    "step3p7": _model("step3p7", STEP, STEP_VISION),
    "step3p7-older-keys": _model(
        "step3p7",
        {key: value for key, value in STEP.items() if key != "num_sliding_attention_heads"}
        | {
            "layer_types": [*STEP["layer_types"], "sliding_attention", "full_attention"],
            "num_nextn_predict_layers": 2,
            "moe_layers_enum": "2,3,4",
            "attention_other_setting": {"num_attention_heads": 9, "num_attention_groups": 3, "head_dim": 16},
        },
        {"width": 48, "layers": 1, "heads": 4, "mlp_ratio": 2.0, "patch_size": 4, "image_size": 16},
    ),
    "step3p7-bias": _model(
        "step3p7",
        {**STEP, "attention_bias": True, "mlp_layer_types": ["sparse", "dense"] * 2 + ["sparse"], "mlp_bias": True},
        {**STEP_VISION, "num_hidden_layers": 1},
        projector_bias=True,
    ),
}
ASSISTANT: dict[str, Any] = {
    "model_type": "gemma4_assistant",
    "text_config": {**GEMMA4, "num_kv_shared_layers": 4, "hidden_size_per_layer_input": 0}
    | {"vocab_size_per_layer_input": 0},
    "backbone_hidden_size": 128,
    "use_ordered_embeddings": True,
    "num_centroids": 16,
    "centroid_intermediate_top_k": 3,
    "torch_dtype": "bfloat16",
}
SIDE = 8
PATCHES = SIDE * SIDE


def known(name: str) -> dict[str, Any]:
    """The small config, unless its text model is in no table yet."""
    config = SMALL[name]
    inner = config.get("text_config", {}).get("model_type")
    if inner and find(inner) is None:
        pytest.skip(f"{inner} is in no table")
    return config


def build(modules: Any, config: dict[str, Any], device: str = "meta") -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    beside = "vision_config" in config
    auto = AutoModelForImageTextToText if beside else AutoModelForCausalLM
    options = {"attn_implementation": "eager", "experts_implementation": "batched_mm"}
    with modules.torch.device(device):
        return auto.from_config(modules.config(config), **options).float().eval()


#: Names of what belongs to towers; VideoLLaMA's projector ("model.projector") counts as embedding.
TOWERS = re.compile("visual|vision(?!_moe)|audio|mm_projector|multi_modal_projector|resampler")


def parameters(module: Any) -> dict[str, int]:
    """Unique parameters: all, and those of towers."""
    named = list(module.named_parameters())
    return {
        "all": sum(p.numel() for _, p in named),
        "vision": sum(p.numel() for name, p in named if TOWERS.search(name)),
    }


@pytest.mark.parametrize("name", SMALL)
def test_parameters(name: str, modules: Any) -> None:
    """All parameters and the towers'."""
    config = known(name)
    right, got = parameters(build(modules, config)), groups_of(config)
    assert {"all": sum(got.values()), "vision": got.get("vision", 0)} == right


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("whole", [True, False])
def test_saved_by_transformers(name: str, whole: bool, modules: Any) -> None:
    """The same model from a config that transformers wrote, with every key or those that it changed."""
    config = known(name)
    saved = json.loads(modules.config(config).to_json_string(use_diff=not whole))
    assert groups_of(saved) == groups_of(config)


TEXTS = [name for name in SMALL if name not in ("kimi_k25", "qwen3_5")]  # those text models are tested elsewhere


@pytest.mark.parametrize("name", TEXTS)
def test_text_flops(name: str, modules: Any) -> None:
    """A prefill, a chunk and a decode step of text; the windows of the small models are 12."""
    config = known(name)
    if "vision_config" in config and config["model_type"] == "gemma4":
        config = {**config["text_config"], "torch_dtype": "bfloat16"}
    # the loop over experts of Step-3.7, which alone clamps them, needs values
    device = "cpu" if config["model_type"] == "step3p7" else "meta"
    module = build(modules, config, device)
    cache, context, right, got = None, 0, {}, {}
    for new in (20, 5, 1):
        context += new
        ids = modules.torch.zeros(2, new, dtype=modules.torch.long, device=device)
        places = modules.torch.arange(context - new, context, device=device).expand(2, -1)
        options = {"input_ids": ids, "cache": cache, "use_cache": True}
        options |= {"position_ids": places} if cache is not None else {}
        with modules.torch.no_grad():
            right[new], out = counted(partial(module, **options))
        cache = out.cache
        got[new] = gambrel_flops(config, Step(2, new, context, causal=False, logits="all"))
        if "gemma3n" in name:
            right[new], got[new] = ({"all": sum(x.values())} for x in (right[new], got[new]))
    assert got == right


def picture(modules: Any, module: Any, config: dict[str, Any]) -> Any:
    """Runs the vision tower and its projector over one picture of SIDE x SIDE patches."""
    torch, kind, vision = modules.torch, config["model_type"], config["vision_config"]
    grid = torch.tensor([[1, SIDE, SIDE]])
    inputs = 3 * vision["patch_size"] ** 2
    with torch.no_grad():
        if kind == "gemma4":
            places = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE))[None]
            return module.model.get_image_features(torch.zeros(1, PATCHES, inputs), places)
        if kind == "kimi_k25":
            pixels = torch.zeros(PATCHES, 3, vision["patch_size"], vision["patch_size"])
            return module.model.get_image_features(pixels, grid)
        if kind == "video_llama_3":
            return module.model.get_image_features(torch.zeros(PATCHES, inputs), grid, torch.tensor([1]))
        if kind == "step3p7":
            side = SIDE * vision["patch_size"]
            return module.model.get_image_features(torch.zeros(1, 3, side, side))
        if kind == "ernie4_5_vl_moe":
            return module.model.get_image_features(torch.zeros(PATCHES, inputs), grid)
        return module.model.get_image_features(torch.zeros(PATCHES, 2 * inputs), grid)


@pytest.mark.parametrize("name", [name for name, config in SMALL.items() if "vision_config" in config])
def test_tower_flops(name: str, modules: Any) -> None:
    """The vision tower over one picture: what a step with media has more than one without."""
    config = known(name)
    module = build(modules, config, "cpu")
    right, _ = counted(lambda: picture(modules, module, config))
    if config["model_type"] == "gemma4":
        vision = config["vision_config"]
        right["attention"] -= 2 * PATCHES * PATCHES // vision["pooling_kernel_size"] ** 2 * vision["hidden_size"]
    without, media = gambrel_flops(config, Step()), gambrel_flops(config, Step(media_tokens=PATCHES))
    assert {role: media[role] - without[role] for role in media} == right
    assert gambrel_flops(config, Step(3, 2, 2, media_tokens=PATCHES))["gemm"] == (
        gambrel_flops(config, Step(3, 2, 2))["gemm"] + 3 * right["gemm"]
    )


def test_audio_flops(modules: Any) -> None:
    """Gemma 4's audio tower over 12 frames behind its convolutions: what a pass that encodes has more."""
    config = SMALL["gemma4-small"]
    module = build(modules, config, "cpu")
    frames, bins = 12, GEMMA4_AUDIO["subsampling_conv_channels"][0]
    sound = modules.torch.zeros(1, 4 * frames, bins)
    mask = modules.torch.ones(1, 4 * frames, dtype=modules.torch.bool)
    with modules.torch.no_grad():
        right, _ = counted(lambda: module.model.get_audio_features(sound, mask))
    without, source = gambrel_flops(config, Step()), gambrel_flops(config, Step(source_tokens=frames, encode=True))
    assert sum(source.values()) - sum(without.values()) == sum(right.values())


@pytest.mark.parametrize("ordered", [True, False])
def test_assistant(ordered: bool, modules: Any) -> None:
    """Gemma 4's drafter: parameters, and FLOPs of one draft over a target's cache of 20 tokens (window 12)."""
    torch = modules.torch
    config = {**ASSISTANT, "use_ordered_embeddings": ordered}
    with torch.device("cpu"):
        from transformers import AutoModelForCausalLM

        module = AutoModelForCausalLM.from_config(modules.config(config), attn_implementation="eager").float().eval()
    assert sum(groups_of(config).values()) == sum(p.numel() for p in module.parameters())
    if ordered:
        module.masked_embedding.token_ordering.copy_(torch.arange(320))
    full, near = (torch.zeros(1, 3, n, d) for n, d in ((20, 32), (12, 16)))
    kept = {"full_attention": (full, full), "sliding_attention": (near, near)}
    places = torch.tensor([[20]])
    with torch.no_grad():
        right, _ = counted(
            lambda: module(inputs_embeds=torch.zeros(1, 1, 256), shared_kv_states=kept, position_ids=places)
        )
    got = gambrel_flops(config, Step(1, 1, 20))
    assert sum(got.values()) == sum(right.values())
    reading = read_config(config)
    assert reading.arch.caches(reading.precision.numerics()) == []


# What gambrel promises of every model ---------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_weights_are_read_once(name: str) -> None:
    """The operators of a decode step read what is streamed; with experts, no more than that."""
    reading = read_config(known(name))
    read = sum(op.cost.weight_bytes * op.count for op in reading.arch.ops(Step(1, 1, 9), reading.precision.numerics()))
    streamed = totals.weight_bytes(reading.arch.tensors(), streamed_only=True)
    assert read < streamed if reading.arch.experts else read == streamed


def test_borrowed_keys_are_read_and_not_written() -> None:
    """A borrowing layer reads the lender's cache: 4 layers read, 2 write and keep."""
    config = {**GEMMA4_SMALL, "torch_dtype": "bfloat16"}
    reading = read_config(config)
    numerics = reading.precision.numerics()
    caches = reading.arch.caches(numerics)
    per_token = {16: 3 * 2 * 16 * BF16, 32: 3 * 2 * 32 * BF16}  # sliding and full layers, 3 KV heads
    assert totals.kv_bytes_per_token(caches) == sum(per_token.values())
    ops = reading.arch.ops(Step(1, 1, 40), numerics)
    assert sum(op.cost.kv_write_bytes * op.count for op in ops) == sum(per_token.values())
    assert sum(op.cost.kv_read_bytes * op.count for op in ops) == 2 * (12 * per_token[16] + 40 * per_token[32])


@pytest.mark.parametrize("name", SMALL)
def test_grids(name: str) -> None:
    """A grid of batches and contexts gives what each of its points gives."""
    np = pytest.importorskip("numpy")
    config, batches, contexts = known(name), np.array([[1.0], [4.0]]), np.array([16.0, 64.0])
    grid = gambrel_flops(config, Step(batches, 1, contexts, media_tokens=16))
    for i, batch in enumerate((1, 4)):
        for j, context in enumerate((16, 64)):
            point = gambrel_flops(config, Step(batch, 1, context, media_tokens=16))
            assert {role: np.broadcast_to(x, (2, 2))[i, j] for role, x in grid.items()} == point


BAD: tuple[Any, ...] = (None, 0, -1, 1.5, "x", [], [0], ["x"], {}, True, 10**9, 10**12, [7] * 99)


@pytest.mark.parametrize("name", [*SMALL, "assistant"])
def test_broken_values(name: str) -> None:
    """Whatever stands in a key, the config is read or refused in words."""
    config = ASSISTANT if name == "assistant" else known(name)
    inner = [key for key, value in config.items() if isinstance(value, dict)]
    for bad in BAD:
        for key in config:
            quietly({**config, key: bad})
        for part in inner:
            for key in config[part]:
                quietly({**config, part: {**config[part], key: bad}})


def quietly(config: dict[str, Any]) -> None:
    """Read a config and take its counts; a refusal is fine, a traceback is not."""
    try:
        reading = read_config(config)
    except GambrelError:
        return
    totals.params_total(reading.arch.tensors())
    reading.arch.ops(Step(1, 2, 4, media_tokens=16), reading.precision.numerics())


def test_no_vision_config() -> None:
    """Without a vision config the text model is counted, and said to be."""
    config = {key: value for key, value in SMALL["qwen3_vl"].items() if key != "vision_config"}
    reading = read_config(config)
    assert "vision" not in totals.params_by_group(reading.arch.tensors())
    assert any("vision_config" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("name", "part", "change", "words"),
    [
        ("qwen2_vl", "vision_config", {"num_heads": 5}, ("vision_config", "heads", "divisor")),
        ("qwen3_vl", "vision_config", {"deepstack_visual_indexes": [9]}, ("deepstack_visual_indexes", "9")),
        ("gemma4-small", "text_config", {"num_kv_shared_layers": 3}, ("num_kv_shared_layers", "3")),
        ("gemma4", "text_config", {"use_bidirectional_attention": "all"}, ("use_bidirectional_attention", "vision")),
        ("gemma4", "text_config", {"layer_types": ["chunked_attention"] * 4}, ("layer_types", "chunked_attention")),
    ],
)
def test_refusals(name: str, part: str, change: dict[str, Any], words: tuple[str, ...]) -> None:
    """A refusal names the key and what is accepted."""
    config = SMALL[name]
    assert_refused({**config, part: {**config[part], **change}}, words)
