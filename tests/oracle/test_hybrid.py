"""Hybrid and attention-free decoders: published configs against the truth, small ones against the PyTorch modules.

What makes FLOPs comparable with FlopCounterMode, beside what test_flops.py says:

* Depthwise convolutions run on no matrix unit: gambrel has them among the vector FLOPs, the counter among all.
* gambrel counts the step form of every recurrence (see gambrel.model.recurrent). Modules prefill in chunks, padded to
  whole ones, and update states element by element, which the counter does not see; `CORRECTIONS` has the difference
  of each, by the shapes of its products.
* The truth holds K inputs of every convolution, as transformers keeps them; K - 1 are needed, and gambrel keeps them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from compared import GROUPS, assert_refused, counts, gambrel_flops, published, truth

from gambrel.model import arch as totals
from gambrel.model.fields import ConfigError
from gambrel.model.precision import Overrides
from gambrel.model.reader import Reading, read_config
from gambrel.model.recurrent import Again, Recurrence, ShortConvolution
from gambrel.types import Step

if TYPE_CHECKING:
    from pathlib import Path

    from gambrel.model.parts import Part

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

REAL = """
    LiquidAI__LFM2-1.2B LiquidAI__LFM2-24B-A2B MiniMaxAI__MiniMax-M1-40k NX-AI__xLSTM-7b
    Qwen__Qwen3-Coder-Next-Base Qwen__Qwen3-Next-80B-A3B-Instruct-FP8 RWKV__rwkv-4-169m-pile RWKV__rwkv-4-430m-pile
    Zyphra__Zamba-7B-v1 ai21labs__AI21-Jamba-1.5-Mini allenai__Olmo-Hybrid-7B ibm-ai-platform__Bamba-9B-fp8
    ibm-ai-platform__Bamba-9B-v2 ibm-granite__granite-4.0-h-350m ibm-granite__granite-4.0-h-micro-base
    ibm-granite__granite-4.0-h-small mistralai__Mamba-Codestral-7B-v0.1 moonshotai__Kimi-Linear-48B-A3B-Instruct
    nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16
    nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-FP8
    nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16
    nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8 nvidia__NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4
    nvidia__NVIDIA-Nemotron-Nano-12B-v2 nvidia__Nemotron-H-47B-Reasoning-128K nvidia__Nemotron-H-8B-Base-8K
    state-spaces__mamba-1.4b-hf state-spaces__mamba-130m-hf state-spaces__mamba-370m-hf state-spaces__mamba-790m-hf
    tiiuae__Falcon-H1-0.5B-Base tiiuae__falcon-mamba-7b-instruct-4bit
""".split()

#: Text models inside multimodal configs; their towers are counted elsewhere, so "multimodal" is left out of the truth.
INNER = """
    LiquidAI__LFM2-VL-450M Qwen__Qwen3.5-122B-A10B Qwen__Qwen3.5-27B Qwen__Qwen3.5-35B-A3B
    nvidia__Qwen3.5-122B-A10B-NVFP4 nvidia__Qwen3.5-397B-A17B-NVFP4
""".split()

#: Configs that must be refused, with words of the refusal: nothing published confirms a count.
REFUSED = {
    "fla-hub__gla-1B-training-config": ("model_type", "gla"),
    "RWKV__rwkv-5-world-3b": ("model_type", "rwkv5"),
}


def parts(reading: Reading) -> Iterator[tuple[Part, int]]:
    """Every part of the layers with its number; a shared one as itself."""
    for block in reading.arch.blocks:
        for part in block.parts:
            yield part.part if isinstance(part, Again) else part, block.count


def state_elements(reading: Reading) -> int:
    """Elements of state of one sequence that do not grow, K inputs of every convolution included."""
    count = 0
    for part, n in parts(reading):
        if isinstance(part, Recurrence | ShortConvolution):
            count += n * part.state_elements
        if isinstance(part, ShortConvolution):
            count += n * part.channels
    return count


def right_counts(row: dict[str, str], towers: int = 0) -> dict[str, int]:
    total = int(row["total_params"])
    return {
        "total": total - towers,
        "active": int(row["active_params"] or total) - towers,
        "kv_bytes_per_token": int(row["kv_bytes_per_token_bf16"] or 0),
        "state_elements": int(row["fixed_state_elems"] or 0),
    }


@pytest.mark.parametrize("name", REAL)
def test_published(name: str, shared: Path) -> None:
    """Total and active parameters, KV bytes per token and elements of fixed state, to the unit."""
    config, row = published(shared, name), truth(shared, name)
    reading = read_config(config, Overrides(kv="bf16"))
    assert {**counts(reading), "state_elements": state_elements(reading)} == right_counts(row)
    assert reading.unread == ()


#: Columns of the truth whose module names its patterns file elsewhere: name -> groups that are not compared.
MISFILED = {
    "NX-AI__xLSTM-7b": ("mlp", "recurrent"),  # the feed-forwards are under ssm_linear_attn
    "Zyphra__Zamba-7B-v1": ("mlp",),  # the projections behind the shared transformer are under other
    "moonshotai__Kimi-Linear-48B-A3B-Instruct": ("attention", "recurrent"),  # latent attention is under ssm_linear_attn
    "ibm-ai-platform__Bamba-9B-fp8": ("recurrent",),  # under other
    "ibm-ai-platform__Bamba-9B-v2": ("recurrent",),  # under other
    "tiiuae__Falcon-H1-0.5B-Base": ("recurrent",),  # under other
}

#: gambrel's groups -> columns of the truth.
OF_ALL = {**GROUPS, "recurrent": "ssm_linear_attn", "latent": "moe_other"}


@pytest.mark.parametrize("name", REAL)
def test_published_groups(name: str, shared: Path) -> None:
    """Parameters by group, where the truth's own patterns sort them alike."""
    config, row = published(shared, name), truth(shared, name)
    got = totals.params_by_group(read_config(config).arch.tensors())
    compared = {group: column for group, column in OF_ALL.items() if group not in MISFILED.get(name, ())}
    assert {g: got.get(g, 0) for g in compared} == {g: int(row[column]) for g, column in compared.items()}


@pytest.mark.parametrize("name", INNER)
def test_published_inside(name: str, shared: Path) -> None:
    """The same for the text models of multimodal configs."""
    config, row = published(shared, name), truth(shared, name)
    text = {key: value for key, value in config["text_config"].items() if key != "architectures"}
    reading = read_config(text, Overrides(kv="bf16"))
    assert {**counts(reading), "state_elements": state_elements(reading)} == right_counts(row, int(row["multimodal"]))
    assert reading.unread == ()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, shared: Path) -> None:
    """What nobody confirms is refused."""
    assert_refused(published(shared, name), REFUSED[name])


def test_qwen3_next_state(shared: Path) -> None:
    """One sequence of 8192 tokens: 0.259 GiB, keys and values in bf16, delta-rule states in fp32."""
    reading = read_config(published(shared, "Qwen__Qwen3-Coder-Next-Base"))
    caches = reading.arch.caches(reading.precision.numerics())
    assert round(totals.state_bytes(caches, 8192) / 2**30, 3) == 0.259
    layers, state, convolution = 36, 32 * 128 * 128 * 4, 8192 * 3 * 2
    assert totals.state_bytes(caches, 0) == layers * (state + convolution)


def test_kimi_linear_as_published() -> None:
    """With the layer lists of the published config the count is the hub's, less the 6,656 router corrections."""
    full = [4, 8, 12, 16, 20, 24, 27]
    config = {
        "model_type": "kimi_linear",
        "vocab_size": 163_840,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 72,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "linear_attn_config": {
            "full_attn_layers": full,
            "kda_layers": [i for i in range(1, 28) if i not in full],
            "head_dim": 128,
            "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
        "dtype": "bfloat16",
    }
    assert totals.params_total(read_config(config).arch.tensors()) == 49_122_681_728 - 26 * 256


# Small models -----------------------------------------------------------------------------------

PREFILL, BATCH = 64, 2

#: What a module may call its cache.
CACHES = ("state", "cache", "cache_params", "past_key_values")

#: FLOPs to add to a module's count of one recurrent layer: (config, sequences, new tokens) -> FLOPs.
Correction = Callable[[dict[str, Any], int, int], int]


@dataclass(frozen=True)
class Case:
    """A small config; `layers` of it are recurrent, with `correction` each. flops: whether the module can decode."""

    name: str
    config: dict[str, Any]
    layers: int = 0
    correction: Correction | None = None
    flops: bool = True


def selective_scan(inner: str, state: str) -> Correction:
    """The update of Mamba's states, an outer product, is element-wise in the module."""
    return lambda c, batch, q: 2 * c[inner] * c[state] * batch * q


def dual(heads: int, head: int, state: int, chunk: int) -> Correction:
    """SSD: the module's chunks have scores and their products, and carry states from every chunk to every later one."""

    def correction(_: dict[str, Any], batch: int, q: int) -> int:
        if q == 1:
            return 2 * heads * head * state * batch  # the update is element-wise
        chunks = -(-q // chunk)
        within = chunks * 2 * chunk * chunk * (state + head) * heads
        between = 2 * (chunks + 1) ** 2 * heads * head * state
        padding = (chunks * chunk - q) * 4 * heads * head * state
        return -batch * (within + between + padding)

    return correction


def delta(heads: int, d_k: int, d_v: int, per_pair: int, chunk: int = 64) -> Correction:
    """The delta rule: element-wise in the module's step, `per_pair` FLOPs for each pair of a chunk's positions."""

    def correction(_: dict[str, Any], batch: int, q: int) -> int:
        if q == 1:
            return 6 * heads * d_k * d_v * batch
        chunks = -(-q // chunk)
        return -batch * heads * (chunks * chunk * chunk * per_pair + 6 * (chunks * chunk - q) * d_k * d_v)

    return correction


def lightning(heads: int, d: int, block: int) -> Correction:
    """Lightning attention: scores and their products within a block."""
    return lambda c, batch, q: 0 if q == 1 else -batch * heads * (q // block) * 4 * block * block * d


def none(config: dict[str, Any], batch: int, q: int) -> int:
    """The module computes as gambrel counts, or element by element."""
    return 0


def _small(model_type: str, **keys: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "vocab_size": 320,
        "hidden_size": 96,
        "num_hidden_layers": 4,
        "torch_dtype": "bfloat16",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **keys,
    }


def _attending(model_type: str, **keys: Any) -> dict[str, Any]:
    heads = {"num_attention_heads": 12, "num_key_value_heads": 3, "intermediate_size": 176}
    return _small(model_type, **{**heads, "max_position_embeddings": 128, **keys})


MAMBA = _small("mamba", state_size=8, intermediate_size=192)
MAMBA2 = _small("mamba2", num_heads=12, head_dim=16, state_size=8, n_groups=3, chunk_size=16)
KEYS2 = {"mamba_n_heads": 12, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 3, "mamba_chunk_size": 16}
SSD = dual(12, 16, 8, 16)
JAMBA = _attending(
    "jamba",
    mamba_d_state=8,
    attn_layer_period=3,
    attn_layer_offset=1,
    expert_layer_period=2,
    expert_layer_offset=1,
    num_experts=6,
    num_experts_per_tok=2,
    inner=192,
)
BAMBA = _attending("bamba", attn_layer_indices=[1, 3], **KEYS2)
GRANITE = _attending(
    "granitemoehybrid",
    layer_types=["mamba", "attention", "mamba", "mamba"],
    shared_intermediate_size=72,
    num_local_experts=6,
    num_experts_per_tok=2,
    **KEYS2,
)
FALCON_H1 = _attending("falcon_h1", mamba_d_ssm=192, **KEYS2)
ZAMBA = _attending(
    "zamba",
    num_key_value_heads=12,
    attention_head_dim=16,
    layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
    mamba_d_state=8,
    inner=192,
)
ZAMBA2 = _attending(
    "zamba2",
    num_key_value_heads=12,
    num_hidden_layers=5,
    layers_block_type=["hybrid", "mamba", "hybrid", "hybrid", "mamba"],
    mamba_d_state=8,
    mamba_ngroups=3,
    n_mamba_heads=12,
    chunk_size=16,
    adapter_rank=10,
    num_mem_blocks=2,
)
NEMOTRON = _attending(
    "nemotron_h",
    num_hidden_layers=5,
    head_dim=24,
    hybrid_override_pattern="M*-EM",
    mamba_num_heads=12,
    mamba_head_dim=16,
    ssm_state_size=8,
    n_groups=3,
    chunk_size=16,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=40,
    moe_shared_expert_intermediate_size=56,
)
LINEAR = {
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
GDN = delta(6, 16, 24, 4 * 16 + 2 * 24)
SHARED_MOE = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
}
QWEN3_NEXT = _attending("qwen3_next", head_dim=32, **LINEAR, **SHARED_MOE)
QWEN3_5 = _attending("qwen3_5_text", head_dim=32, **LINEAR)
QWEN3_5_MOE = _attending("qwen3_5_moe_text", head_dim=32, **LINEAR, **SHARED_MOE)
OLMO = _attending("olmo_hybrid", **LINEAR)
KIMI = _attending(
    "kimi_linear",
    num_key_value_heads=12,
    kv_lora_rank=40,
    q_lora_rank=None,
    qk_nope_head_dim=24,
    qk_rope_head_dim=8,
    v_head_dim=16,
    num_experts=8,
    num_experts_per_token=3,
    moe_intermediate_size=40,
    num_shared_experts=2,
    linear_attn_config={
        "full_attn_layers": [2],
        "kda_layers": [1, 3, 4],
        "num_heads": 6,
        "head_dim": 16,
        "short_conv_kernel_size": 3,
    },
)
KDA = delta(6, 16, 16, 2 * 16 + 4 * 16)
MINIMAX = _attending("minimax", num_local_experts=6, num_experts_per_tok=2, head_dim=24, block_size=16)
LFM2 = _attending("lfm2", full_attn_idxs=[1], block_multiple_of=16, block_ff_dim=264)
LFM2_MOE = _attending(
    "lfm2_moe",
    layer_types=["conv", "full_attention", "conv", "conv"],
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=40,
    num_dense_layers=1,
)
RWKV = _small("rwkv", context_length=128)
XLSTM = _small("xlstm", hidden_size=256, num_heads=4, ffn_round_up_to_multiple_of=16, chunk_size=128)
GRIFFIN = _attending("recurrent_gemma", num_key_value_heads=1, attention_window_size=100)


def _clean(config: dict[str, Any]) -> dict[str, Any]:
    """Without what only a correction needs."""
    return {key: value for key, value in config.items() if key != "inner"}


CASES = (
    Case("mamba", MAMBA, 4, selective_scan("intermediate_size", "state_size")),
    Case(
        "mamba-bias-untied",
        {**MAMBA, "use_bias": True, "use_conv_bias": False, "time_step_rank": 5, "tie_word_embeddings": False},
        4,
        selective_scan("intermediate_size", "state_size"),
    ),
    Case(
        "falcon_mamba",
        {**MAMBA, "model_type": "falcon_mamba", "conv_kernel": 3},
        4,
        selective_scan("intermediate_size", "state_size"),
    ),
    Case("mamba2", MAMBA2, 4, SSD),
    Case("mamba2-bias-tied", {**MAMBA2, "use_bias": True, "tie_word_embeddings": True, "conv_kernel": 2}, 4, SSD),
    Case("jamba", JAMBA, 3, selective_scan("inner", "mamba_d_state")),
    Case(
        "jamba-dense-bias",
        {**JAMBA, "num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_dt_rank": 7},
        3,
        selective_scan("inner", "mamba_d_state"),
    ),
    Case("bamba", BAMBA, 2, SSD),
    Case(
        "bamba-bias-tied",
        {**BAMBA, "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True, "tie_word_embeddings": True},
        2,
        SSD,
    ),
    Case("granite", GRANITE, 3, SSD),
    Case(
        "granite-dense-rope",
        {
            **GRANITE,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "mamba_d_head": "auto",
            "position_embedding_type": "rope",
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
        3,
        SSD,
    ),
    Case("falcon_h1", FALCON_H1, 4, SSD),
    Case(
        "falcon_h1-all-biases",
        {
            **FALCON_H1,
            "mamba_rms_norm": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
        4,
        SSD,
    ),
    Case("falcon_h1-expand", {**FALCON_H1, "mamba_d_ssm": None, "mamba_d_head": "auto"}, 4, SSD),
    Case("zamba", ZAMBA, 4, selective_scan("inner", "mamba_d_state")),
    Case(
        "zamba-three-heads",
        {**ZAMBA, "n_mamba_heads": 3, "mamba_proj_bias": True, "mamba_conv_bias": False},
        4,
        selective_scan("inner", "mamba_d_state"),
    ),
    Case("zamba2", ZAMBA2, 5, SSD),
    Case(
        "zamba2-adapters-one-block",
        {
            **ZAMBA2,
            "use_shared_attention_adapter": True,
            "num_mem_blocks": 1,
            "use_mem_rope": True,
            "add_bias_linear": True,
        },
        5,
        SSD,
    ),
    Case("nemotron_h", NEMOTRON, 2, SSD),
    Case(
        "nemotron_h-latent-bias",
        {**NEMOTRON, "moe_latent_size": 32, "mlp_bias": True, "use_bias": True, "use_conv_bias": False},
        2,
        SSD,
    ),
    Case(
        "nemotron_h-listed",
        {
            **{key: value for key, value in NEMOTRON.items() if key != "hybrid_override_pattern"},
            "layers_block_type": ["moe", "mamba", "attention", "moe", "mlp"],
        },
        1,
        SSD,
    ),
    Case("qwen3_next", QWEN3_NEXT, 3, GDN),
    Case(
        "qwen3_next-interval-dense",
        {
            **QWEN3_NEXT,
            "full_attention_interval": 2,
            "mlp_only_layers": [3],
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        2,
        GDN,
    ),
    Case("qwen3_next-sparse-step", {**QWEN3_NEXT, "decoder_sparse_step": 2, "linear_conv_kernel_dim": 2}, 3, GDN),
    Case("qwen3_5_text", QWEN3_5, 3, GDN),
    Case(
        "qwen3_5_text-types-tied",
        {
            **QWEN3_5,
            "layer_types": ["full_attention", "linear_attention", "full_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
        1,
        GDN,
    ),
    Case("qwen3_5_moe_text", QWEN3_5_MOE, 3, GDN),
    Case("olmo_hybrid", OLMO, 3, GDN),
    Case(
        "olmo_hybrid-defaults",
        {k: v for k, v in OLMO.items() if k not in LINEAR},
        3,
        delta(12, 6, 12, 4 * 6 + 2 * 12),
    ),
    Case("kimi_linear", KIMI, 3, KDA),
    Case(
        "kimi_linear-q-rank-types",
        {
            **{k: v for k, v in KIMI.items() if k != "linear_attn_config"},
            "q_lora_rank": 48,
            "layer_types": ["linear_attention", "full_attention", "full_attention", "linear_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
            "linear_num_heads": 6,
            "linear_head_dim": 16,
        },
        2,
        KDA,
    ),
    Case("minimax", MINIMAX, 2, lightning(12, 24, 16)),
    Case(
        "minimax-types-tied",
        {
            **{k: v for k, v in MINIMAX.items() if k != "head_dim"},
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
        3,
        lightning(12, 8, 16),
    ),
    Case("lfm2", LFM2, 3, none),
    Case("lfm2-not-adjusted", {**LFM2, "block_auto_adjust_ff_dim": False, "conv_bias": True}, 3, none),
    Case(
        "lfm2-multiplier-untied",
        {
            **{k: v for k, v in LFM2.items() if k != "block_ff_dim"},
            "block_ffn_dim_multiplier": 1.3,
            "tie_word_embeddings": False,
            "conv_L_cache": 5,
        },
        3,
        none,
    ),
    Case("lfm2_moe", LFM2_MOE, 3, none),
    Case("rwkv", RWKV, 4, none),
    Case("rwkv-inner-tied", {**RWKV, "intermediate_size": 72, "tie_word_embeddings": True}, 4, none),
    Case("xlstm", XLSTM, 4, none),
    Case("xlstm-bias-factors", {**XLSTM, "use_bias": True, "qk_dim_factor": 0.25, "v_dim_factor": 0.5}, 4, none),
    Case("xlstm-fused", {**XLSTM, "weight_mode": "fused", "ffn_proj_factor": 2.0}, 4, none),
    Case("recurrent_gemma", GRIFFIN, 3, none),
    Case(
        "recurrent_gemma-wide",
        {
            **GRIFFIN,
            "lru_width": 144,
            "attention_bias": True,
            "block_types": ["attention", "recurrent"],
            "tie_word_embeddings": False,
            "num_key_value_heads": 12,
        },
        2,
        none,
        flops=False,  # its convolution state is as wide as the hidden state
    ),
)

CASE = pytest.mark.parametrize("small", CASES, ids=[case.name for case in CASES])


@CASE
def test_parameters(small: Case, modules: Any) -> None:
    """As many as the module has, tied ones once."""
    config = _clean(small.config)
    module = build(modules, config)
    right = sum(parameter.numel() for parameter in module.parameters())
    reading = read_config(config)
    assert totals.params_total(reading.arch.tensors()) == right
    assert reading.unread == ()


@CASE
def test_saved_by_transformers(small: Case, modules: Any) -> None:
    """A config that transformers wrote is read as the same model, and warns of no key."""
    config = modules.config(_clean(small.config))
    module = modules.build(config)
    saved = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [type(module).__name__]}
    reading = read_config(saved)
    right = sum(parameter.numel() for parameter in module.parameters())
    assert totals.params_total(reading.arch.tensors()) == right
    assert reading.unread == ()


def build(modules: Any, config: dict[str, Any]) -> Any:
    """The module on the meta device, with experts whose products the counter sees, whatever the config calls them."""
    made = modules.config(config)
    made.experts_implementation = made._experts_implementation = "batched_mm"
    return modules.build(made)


def module_flops(module: Any, new_tokens: int, cache: Any, modules: Any, batch: int = BATCH) -> tuple[int, Any]:
    """FLOPs of one pass but for convolutions, and the cache after it."""
    from torch.utils.flop_counter import FlopCounterMode

    ids = modules.torch.zeros(batch, new_tokens, dtype=modules.torch.long, device=module.device)
    if cache is None and module.config.model_type == "recurrent_gemma":  # it returns none
        from transformers import DynamicCache

        cache = DynamicCache(config=module.config)
    given = next(name for name in CACHES if name in inspect.signature(module.forward).parameters)
    with FlopCounterMode(display=False) as counted, modules.torch.no_grad():
        out = module(input_ids=ids, use_cache=True, **{given: cache})
    by_operator = counted.get_flop_counts()["Global"]
    flops = sum(flops for operator, flops in by_operator.items() if "convolution" not in str(operator))
    return flops, next((out[name] for name in CACHES if out.get(name) is not None), cache)


def latent_change(config: dict[str, Any], new_tokens: int, context: int) -> int:
    """What the cheaper form of latent attention differs from the module's, which expands every cached key."""
    h, c = config["num_attention_heads"], config["kv_lora_rank"]
    n, r, v = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    scores = BATCH * new_tokens * context
    expanded = 2 * c * h * (n + v) * BATCH * context + 2 * h * (n + r + v) * scores
    absorbed = 2 * c * h * (n + v) * BATCH * new_tokens + 2 * h * (2 * c + r) * scores
    layers = len(config.get("linear_attn_config", {}).get("full_attn_layers", ())) or config["layer_types"].count(
        "full_attention"
    )
    return layers * (min(absorbed, expanded) - expanded)


@CASE
def test_flops(small: Case, modules: Any) -> None:
    """A prefill of 64 tokens and a decode step after it: FLOPs of the module, corrected, are gambrel's."""
    config = _clean(small.config)
    if not small.flops:
        pytest.skip("the module cannot decode this one")
    module = build(modules, config)
    batch = 1 if config["model_type"] == "rwkv" else BATCH  # its shifted tokens are broadcast over the whole batch
    cache, context = None, 0
    right, got = [], []
    assert small.correction is not None
    for new_tokens in (PREFILL, 1):
        context += new_tokens
        flops, cache = module_flops(module, new_tokens, cache, modules, batch)
        flops += small.layers * small.correction(small.config, batch, new_tokens)
        if "kv_lora_rank" in config:
            flops += latent_change(config, new_tokens, context)
        right.append(flops)
        step = Step(batch, new_tokens, context, causal=False, logits="all")
        got.append(sum(gambrel_flops(config, step).values()))
    assert got == right


@CASE
def test_state(small: Case, modules: Any) -> None:
    """Elements that the module keeps of fixed size: K inputs of every convolution (one fewer in the Griffin)."""
    if small.config["model_type"] in ("rwkv", "xlstm", "recurrent_gemma", "minimax"):
        pytest.skip("keeps its state elsewhere than in layers of a cache; published configs check it")
    config = _clean(small.config)
    module = build(modules, config)
    _, cache = module_flops(module, PREFILL, None, modules)
    kept = 0
    for layer in cache.layers:
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
            kept += sum(state.numel() for state in states.values() if state is not None)
    assert BATCH * state_elements(read_config(config)) == kept


@CASE
def test_weights_are_read_once(small: Case) -> None:
    """The operators of a step read what streams, of experts those that the tokens use at the least."""
    reading = read_config(_clean(small.config))
    numerics = reading.precision.numerics()
    tensors = list(reading.arch.tensors())
    ops = reading.arch.ops(Step(1, 1, 8), numerics)
    streamed = sum(t.stored_bytes * t.copies * t.used[0] // t.used[1] for t in tensors if t.streamed)
    assert sum(op.cost.weight_bytes * op.count for op in ops) == streamed


@CASE
def test_state_traffic(small: Case) -> None:
    """The state is read once and written once per sequence and step; none of it with context 0."""
    reading = read_config(_clean(small.config))
    numerics = reading.precision.numerics()
    fixed = totals.state_bytes(reading.arch.caches(numerics), 0)
    assert fixed > 0

    def traffic(step: Step) -> tuple[float, float]:
        ops = [op for op in reading.arch.ops(step, numerics) if op.name not in ("attention", "attention (window 100)")]
        return (
            sum(op.cost.kv_read_bytes * op.count for op in ops),
            sum(op.cost.kv_write_bytes * op.count for op in ops),
        )

    assert traffic(Step(3, 1, 50)) == (3 * fixed, 3 * fixed)
    assert traffic(Step(2, 16, 16) + Step(3, 1, 50)) == (5 * fixed, 5 * fixed)
    assert traffic(Step(3, 1, 0)) == (0, 0)


@CASE
def test_grid(small: Case) -> None:
    """A grid of steps costs what its steps cost one by one."""
    numpy = pytest.importorskip("numpy")
    reading = read_config(_clean(small.config))
    numerics = reading.precision.numerics()
    batches, contexts = numpy.array([[1.0], [4.0]]), numpy.array([0.0, 1.0, 40.0])
    grid = reading.arch.ops(Step(batches, 1, contexts), numerics)
    for i, batch in enumerate((1, 4)):
        for j, context in enumerate((0, 1, 40)):
            for many, one in zip(grid, reading.arch.ops(Step(batch, 1, context), numerics), strict=True):
                values = [numpy.broadcast_to(value, (2, 3))[i, j] for value in many.cost.values()]
                assert values == pytest.approx(one.cost.values())


# Broken configs -----------------------------------------------------------------------------------

WRONG: tuple[Any, ...] = ("many", -1, 0, None, 1.5, [], {}, True, [1, 2, 3, 4, 5, 6, 7], [None] * 4, [[]] * 4, 10**30)


@CASE
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_broken(small: Case, wrong: Any) -> None:
    """Whatever a key holds, a config is read or refused with a ConfigError that names a key."""
    config = _clean(small.config)
    for key in (*config, "linear_attn_config", "n_groups", "head_dim", "layers_block_type", "hybrid_layer_ids"):
        if key == "model_type":
            continue
        try:
            reading = read_config({**config, key: wrong})
        except ConfigError:
            continue
        assert totals.params_total(reading.arch.tensors()) > 0
