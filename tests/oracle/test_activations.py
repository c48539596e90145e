"""Bytes that autograd saves for one layer, by PyTorch's saved-tensor hooks on the CPU, against the exact terms.

Small models of transformers in fp32. What one layer keeps is the difference between models of three and of two layers:
distinct storages of saved tensors, parameters and buffers left out. The terms count PyTorch's operators one by one
(kernels="eager"). What differs by what the activation function is, is named in EXTRA.
"""

from __future__ import annotations

from typing import Any

import pytest

from gambrel.cost.activations import Kept, layer_terms
from gambrel.model.reader import read_config

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

BATCH, SEQ = 2, 24
LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
GPT2 = {
    "vocab_size": 64,
    "n_embd": 32,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0,
    "embd_pdrop": 0,
    "attn_pdrop": 0,
}
OPT = {"vocab_size": 64, "hidden_size": 32, "ffn_dim": 80, "num_attention_heads": 4, "max_position_embeddings": 64}
CASES = {
    "llama": {"model_type": "llama", **LLAMA},
    "llama as MHA": {"model_type": "llama", **LLAMA, "num_key_value_heads": 4},
    "mistral": {"model_type": "mistral", **LLAMA, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **LLAMA},
    "qwen3": {"model_type": "qwen3", **LLAMA, "head_dim": 16},
    "olmo2": {"model_type": "olmo2", **LLAMA},
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        **LLAMA,
        "head_dim": 4,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 9,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
    },
    "gpt2": {"model_type": "gpt2", **GPT2},
    "opt": {"model_type": "opt", **OPT, "dropout": 0, "word_embed_proj_dim": 32, "do_layer_norm_before": True},
}
#: Vectors of the inner width that an activation function keeps beyond its input: GPT-2's tanh form, spelt out in
#: products, keeps three more; ReLU keeps its output alone, which is the input of the last matrix anyway.
EXTRA = {"gpt2": 3, "opt": -1}
#: PyTorch's fused kernel on the CPU takes keys and values of one width alone; otherwise SDPA stores the scores.
UNFUSED = ("deepseek_v3",)


def config_of(case: str, layers: int) -> dict[str, Any]:
    key = "n_layer" if case == "gpt2" else "num_hidden_layers"
    return {**CASES[case], key: layers}


def saved_bytes(case: str, layers: int, attention: str, checkpoint: bool, modules: Any) -> int:
    """Distinct storages that one training forward pass saves, but for parameters and buffers."""
    torch = modules.torch
    kept = {k: v for k, v in config_of(case, layers).items() if k != "model_type"}
    import transformers

    settings = transformers.AutoConfig.for_model(CASES[case]["model_type"], **kept)
    module = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation=attention).train()
    if checkpoint:
        module.gradient_checkpointing_enable({"use_reentrant": False})
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())}
    storages: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in own:
            storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.zeros(BATCH, SEQ, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = module(input_ids=ids, use_cache=False).logits
    assert out is not None
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def expected(case: str, attention: str) -> dict[str, float]:
    reading = read_config(config_of(case, 2))
    kept = Kept(4, attention, "eager")
    numerics = reading.precision.numerics()
    tokens = BATCH * SEQ
    return {t.name: t.total_bytes(tokens, tokens * SEQ) for t in layer_terms(reading.arch.blocks[0], kept, numerics)}


def per_layer(case: str, attention: str, checkpoint: bool, modules: Any) -> int:
    two, three = (saved_bytes(case, n, attention, checkpoint, modules) for n in (2, 3))
    return three - two


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("small", CASES)
def test_saved_bytes(small: str, attention: str, modules: Any) -> None:
    fused = attention == "sdpa" and small not in UNFUSED
    want = expected(small, "flash" if fused else "materialised")
    inner = {"gpt2": 4 * 32, "opt": 80}.get(small, 0)
    extra = EXTRA.get(small, 0) * BATCH * SEQ * inner * 4
    assert per_layer(small, attention, False, modules) == sum(want.values()) + extra, want


@pytest.mark.parametrize("small", CASES)
def test_saved_bytes_with_checkpointing(small: str, modules: Any) -> None:
    """Full recomputation keeps the layer's input alone."""
    width = CASES[small].get("hidden_size") or CASES[small]["n_embd"]
    assert per_layer(small, "sdpa", True, modules) == BATCH * SEQ * width * 4
