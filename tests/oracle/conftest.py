"""Small models of every family, and the PyTorch modules that they are compared with.

A case is a config.json of a small model; gambrel and transformers are handed the same one. Nothing here imports
torch: the modules are built on the meta device by fixtures that skip where torch or transformers is absent.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests beside this file can import compared.py

from compared import MLA, base, without


@dataclass(frozen=True)
class Case:
    """One small config."""

    name: str
    config: dict[str, Any]

    @property
    def family(self) -> str:
        """The model type."""
        return self.config["model_type"]

    @property
    def text(self) -> dict[str, Any]:
        """The keys of the text model."""
        return self.config.get("text_config", self.config)


def _base(**keys: Any) -> dict[str, Any]:
    return base(torch_dtype="bfloat16", **keys)


LLAMA = _base(model_type="llama")
MISTRAL = _base(model_type="mistral", sliding_window=12)
MINISTRAL = _base(model_type="ministral3", head_dim=24, sliding_window=None)
MIXTRAL = _base(model_type="mixtral", num_local_experts=6, num_experts_per_tok=2)
QWEN2 = _base(model_type="qwen2", max_window_layers=2)
QWEN3 = _base(model_type="qwen3", head_dim=32)
QWEN2_MOE = _base(
    model_type="qwen2_moe",
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=40,
    shared_expert_intermediate_size=72,
)
QWEN3_MOE = _base(model_type="qwen3_moe", head_dim=32, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40)
GEMMA = _base(model_type="gemma", head_dim=32, num_key_value_heads=1)
GEMMA2 = _base(model_type="gemma2", head_dim=32, num_hidden_layers=4, sliding_window=12, query_pre_attn_scalar=32)
GEMMA3 = _base(model_type="gemma3_text", head_dim=32, num_hidden_layers=4, sliding_window=12, sliding_window_pattern=3)
PHI3 = _base(model_type="phi3", pad_token_id=0)
OLMO2 = _base(model_type="olmo2")
DEEPSEEK = _base(
    **MLA,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=40,
    n_shared_experts=1,
    first_k_dense_replace=1,
)
DEEPSEEK2 = {**DEEPSEEK, "model_type": "deepseek_v2", "n_shared_experts": 2}
DEEPSEEK3 = {**DEEPSEEK, "model_type": "deepseek_v3", "n_group": 4, "topk_group": 2}
GPT_OSS = _base(
    model_type="gpt_oss",
    head_dim=32,
    num_hidden_layers=4,
    num_local_experts=6,
    num_experts_per_tok=2,
    sliding_window=12,
    attention_bias=True,
)
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 320,
    "n_embd": 96,
    "n_layer": 3,
    "n_head": 12,
    "n_positions": 128,
    "torch_dtype": "bfloat16",
}
OPT = {
    "model_type": "opt",
    "vocab_size": 320,
    "hidden_size": 96,
    "ffn_dim": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 96,
    "torch_dtype": "bfloat16",
}
FALCON = {
    "model_type": "falcon",
    "vocab_size": 320,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "torch_dtype": "bfloat16",
}
FALCON_NEW = {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 3}
NEOX = without(_base(model_type="gpt_neox"), "num_key_value_heads")
BLOOM = {
    "model_type": "bloom",
    "vocab_size": 320,
    "hidden_size": 96,
    "n_layer": 3,
    "n_head": 12,
    "torch_dtype": "bfloat16",
}
TOWER = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
}
GEMMA3_VISION = {
    "model_type": "gemma3",
    "text_config": without(GEMMA3, "torch_dtype"),
    "vision_config": {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
    "mm_tokens_per_image": 4,
    "torch_dtype": "bfloat16",
}
MISTRAL3 = {
    "model_type": "mistral3",
    "text_config": without(MISTRAL, "torch_dtype"),
    "vision_config": {"model_type": "pixtral", **TOWER},
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


CASES = (
    Case("llama", LLAMA),
    Case("llama-tied", {**LLAMA, "tie_word_embeddings": True}),
    Case("llama-mha", without(LLAMA, "num_key_value_heads")),
    Case("llama-mqa-wide-head", {**LLAMA, "num_key_value_heads": 1, "head_dim": 48}),
    Case("llama-biases", {**LLAMA, "attention_bias": True, "mlp_bias": True}),
    Case("mistral", MISTRAL),
    Case("mistral-no-window", {**MISTRAL, "sliding_window": None}),
    Case("mistral-defaults", without({**MISTRAL, "num_attention_heads": 16}, "num_key_value_heads", "sliding_window")),
    Case("mistral-tied-wide-head", {**MISTRAL, "tie_word_embeddings": True, "head_dim": 32}),
    Case("ministral3", MINISTRAL),
    Case("mixtral", MIXTRAL),
    Case("mixtral-window-tied", {**MIXTRAL, "sliding_window": 12, "tie_word_embeddings": True}),
    Case("mixtral-all-experts", {**MIXTRAL, "num_experts_per_tok": 6, "head_dim": 32}),
    Case("qwen2", QWEN2),
    Case("qwen2-windows", {**QWEN2, "use_sliding_window": True, "sliding_window": 12}),
    Case("qwen2-windows-off", {**QWEN2, "use_sliding_window": False, "sliding_window": 12}),
    Case(
        "qwen2-layer-types",
        {
            **QWEN2,
            "use_sliding_window": True,
            "sliding_window": 12,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
    ),
    Case("qwen2-tied", {**QWEN2, "tie_word_embeddings": True}),
    Case("qwen3", QWEN3),
    Case("qwen3-tied-bias", {**QWEN3, "tie_word_embeddings": True, "attention_bias": True}),
    Case("qwen3-default-head", without(QWEN3, "head_dim")),
    Case("qwen3-windows", {**QWEN3, "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
    Case("qwen2_moe", QWEN2_MOE),
    Case("qwen2_moe-no-qkv-bias", {**QWEN2_MOE, "qkv_bias": False}),
    Case("qwen2_moe-sparse-step", {**QWEN2_MOE, "num_hidden_layers": 4, "decoder_sparse_step": 2}),
    Case("qwen2_moe-mlp-only", {**QWEN2_MOE, "num_hidden_layers": 4, "mlp_only_layers": [0, 3]}),
    Case(
        "qwen2_moe-windows",
        {**QWEN2_MOE, "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 3},
    ),
    Case("qwen3_moe", QWEN3_MOE),
    Case("qwen3_moe-bias-tied", {**QWEN3_MOE, "attention_bias": True, "tie_word_embeddings": True}),
    Case("qwen3_moe-no-head-dim", without(QWEN3_MOE, "head_dim")),
    Case(
        "qwen3_moe-mlp-only-step",
        {**QWEN3_MOE, "num_hidden_layers": 4, "mlp_only_layers": [1], "decoder_sparse_step": 2},
    ),
    Case("qwen3_moe-windows", {**QWEN3_MOE, "use_sliding_window": True, "sliding_window": 12}),
    Case("gemma", GEMMA),
    Case("gemma-untied-bias", {**GEMMA, "tie_word_embeddings": False, "attention_bias": True}),
    Case("gemma2", GEMMA2),
    Case("gemma2-untied-bias", {**GEMMA2, "tie_word_embeddings": False, "attention_bias": True}),
    Case(
        "gemma2-layer-types",
        {**GEMMA2, "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"]},
    ),
    Case("gemma3_text", GEMMA3),
    Case("gemma3_text-default-pattern", {**without(GEMMA3, "sliding_window_pattern"), "num_hidden_layers": 7}),
    Case(
        "gemma3_text-layer-types-bias",
        {
            **without(GEMMA3, "sliding_window_pattern"),
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    Case("gemma3-vision", GEMMA3_VISION),
    Case(
        "gemma3-vision-default-tower",
        {
            **GEMMA3_VISION,
            "text_config": {**GEMMA3_VISION["text_config"], "attention_bias": True},
            "vision_config": {"vision_use_head": False, "num_hidden_layers": 2},
        },
    ),
    Case("mistral3-vision", MISTRAL3),
    Case("mistral3-vision-merge", {**MISTRAL3, "spatial_merge_size": 4, "multimodal_projector_bias": True}),
    Case("phi3", PHI3),
    Case("phi3-mha-tied", {**without(PHI3, "num_key_value_heads"), "tie_word_embeddings": True}),
    Case("phi3-window", {**PHI3, "sliding_window": 12}),
    Case("phi3-partial-rotary", {**PHI3, "partial_rotary_factor": 0.75}),
    Case("deepseek_v2", DEEPSEEK2),
    Case("deepseek_v2-no-q-rank", {**DEEPSEEK2, "q_lora_rank": None}),
    Case("deepseek_v2-dense-layers", {**DEEPSEEK2, "first_k_dense_replace": 2, "n_shared_experts": 1}),
    Case("deepseek_v2-all-sparse", without(DEEPSEEK2, "first_k_dense_replace")),
    Case("deepseek_v2-bias-tied", {**DEEPSEEK2, "attention_bias": True, "tie_word_embeddings": True}),
    Case("deepseek_v2-small-latent", {**DEEPSEEK2, "kv_lora_rank": 16}),
    Case(
        "deepseek_v2-mlp-bias",
        {**DEEPSEEK2, "mlp_bias": True},
    ),
    Case("deepseek_v3", DEEPSEEK3),
    Case("deepseek_v3-no-q-rank-bias", {**DEEPSEEK3, "q_lora_rank": None, "attention_bias": True}),
    Case("deepseek_v3-shared", {**DEEPSEEK3, "n_shared_experts": 3, "first_k_dense_replace": 0}),
    Case("gpt_oss", GPT_OSS),
    Case("gpt_oss-no-bias-tied", {**GPT_OSS, "attention_bias": False, "tie_word_embeddings": True}),
    Case("gpt_oss-default-head", without(GPT_OSS, "head_dim", "attention_bias")),
    Case("olmo2", OLMO2),
    Case(
        "olmo2-mha-bias-tied",
        {**without(OLMO2, "num_key_value_heads"), "attention_bias": True, "tie_word_embeddings": True},
    ),
    Case("gpt2", GPT2),
    Case("gpt2-inner", {**GPT2, "n_inner": 96}),
    Case("gpt2-untied", {**GPT2, "tie_word_embeddings": False}),
    Case("opt", OPT),
    Case("opt-350m-like", {**OPT, "word_embed_proj_dim": 24, "do_layer_norm_before": False}),
    Case("opt-no-bias-no-affine", {**OPT, "enable_bias": False, "layer_norm_elementwise_affine": False}),
    Case("opt-no-final-norm-untied", {**OPT, "_remove_final_layer_norm": True, "tie_word_embeddings": False}),
    Case("opt-narrow-untied", {**OPT, "word_embed_proj_dim": 24, "tie_word_embeddings": False}),
    Case("falcon-7b-like", {**FALCON, "num_kv_heads": 12, "multi_query": True}),
    Case("falcon-mha", {**FALCON, "multi_query": False}),
    Case("falcon-rw-like", {**FALCON, "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}),
    Case("falcon-40b-like", FALCON_NEW),
    Case("falcon-11b-like", {**FALCON_NEW, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 96}),
    Case("falcon-new-bias-untied", {**FALCON_NEW, "bias": True, "tie_word_embeddings": False}),
    Case("falcon-old-names", {**without(FALCON, "hidden_size"), "n_embed": 96}),
    Case("gpt_neox", NEOX),
    Case("gpt_neox-sequential-tied", {**NEOX, "use_parallel_residual": False, "tie_word_embeddings": True}),
    Case("gpt_neox-no-bias", {**NEOX, "attention_bias": False, "rotary_pct": 1.0}),
    Case("bloom", BLOOM),
    Case("bloom-untied", {**BLOOM, "tie_word_embeddings": False}),
    Case("bloom-old-names", {**without(BLOOM, "hidden_size"), "n_embed": 96}),
    Case(
        "bloom-inner",
        {**BLOOM, "n_inner": 96},
    ),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `case` once for every small config."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[case.name for case in CASES])


class Modules:
    """Builds the module of a config on the meta device, from code that is installed here and never from the hub."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch", reason="needs CPU PyTorch (pip install gambrel[oracle])")
        transformers = pytest.importorskip("transformers", reason="needs transformers (pip install gambrel[oracle])")
        transformers.logging.set_verbosity_error()

    def config(self, config: dict[str, Any]) -> Any:
        """The configuration object; transformers changes the dictionary that it is given, so it gets a copy."""
        from transformers import AutoConfig

        copy = json.loads(json.dumps(config))
        return AutoConfig.for_model(copy.pop("model_type"), **copy)

    def build(self, config: Any, device: str = "meta") -> Any:
        """The module, in evaluation mode, with operators that the counter sees.

        "eager" attention has QK^T and PV as products of their own; "batched_mm" experts gather the weights of every
        token's experts and multiply them batched, whose shapes (unlike the loop's) do not depend on the data.
        """
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        auto = AutoModelForImageTextToText if config.model_type == "mistral3" else AutoModelForCausalLM
        implementations = {"attn_implementation": "eager"}
        if "num_experts_per_tok" in config.to_dict():
            implementations["experts_implementation"] = "batched_mm"
        with self.torch.device(device):
            return auto.from_config(config, **implementations).eval()

    def forward(self, module: Any, new_tokens: int, cache: Any = None, batch: int = 2, **options: Any) -> Any:
        """One forward pass of `batch` sequences over what the cache holds."""
        ids = self.torch.zeros(batch, new_tokens, dtype=self.torch.long, device=module.device)
        with self.torch.no_grad():
            return module(input_ids=ids, past_key_values=cache, use_cache=True, **options)


@pytest.fixture(scope="session")
def modules() -> Modules:
    """The builder of modules; skips where torch or transformers is absent."""
    return Modules()


@pytest.fixture(scope="session")
def cases() -> tuple[Case, ...]:
    """All small configs."""
    return CASES
