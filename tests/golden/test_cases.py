"""Inputs that other tools got wrong, with the right value (the source is the project's list of cases)."""

from __future__ import annotations

import json

import pytest

import gambrel
from gambrel import GambrelError, Step, load_device
from gambrel.api import Model
from gambrel.cost.report import RESERVE_BYTES, Options, capacity
from gambrel.model.precision import Overrides
from gambrel.model.reader import read_config

GIB = 2**30


def from_config(config, **overrides):
    return Model("test", "test", config, read_config(config, Overrides(**overrides)))


def changed(name, **keys):
    config = {**gambrel.load_model(name).config, **keys}
    return from_config({key: value for key, value in config.items() if value is not ...})


@pytest.mark.parametrize(
    ("batch", "bound_ms", "fits"), [(1, 4.80, True), (8, 7.04, True), (64, 24.99, False), (295, 99.0, False)]
)
def test_llama_decode(batch, bound_ms, fits):
    row = gambrel.load_model("llama-3-8b").report("h100-sxm", batches=(batch,)).decode[0]
    assert row.bound_s * 1e3 == pytest.approx(bound_ms, rel=1e-3)
    assert row.fits is fits


@pytest.mark.parametrize(("tokens", "bound_s"), [(8192, 0.1334), (131072, 6.40)])
def test_llama_prefill(tokens, bound_s):
    row = gambrel.load_model("llama-3-8b").report("h100-sxm", prefills=(tokens,)).prefill[0]
    assert row.causal
    assert row.bound_s == pytest.approx(bound_s, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("deepseek-v3", 671_026_404_352),
        ("qwen2.5-0.5b", 494_032_768),
        ("gpt-oss-20b", 20_914_757_184),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma-3-27b", 27_432_406_640),
        ("qwen3-next-80b-a3b", 79_674_391_296),
    ],
)
def test_parameters(name, params):
    assert gambrel.load_model(name).params_total == params


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("llama-3-8b", 1.000),
        ("deepseek-v3", 0.536),
        ("gpt-oss-20b", 0.190),
        ("gemma-3-27b", 1.031),
        ("qwen3-30b-a3b", 0.750),
        ("qwen3-next-80b-a3b", 0.259),
    ],
)
def test_kv_of_one_sequence(name, gib):
    model = gambrel.load_model(name, kv_dtype="bf16")
    assert model.state_bytes(8192) / GIB == pytest.approx(gib, abs=5e-4)


def test_gpt_oss_windowed_and_reserved():
    model = gambrel.load_model("gpt-oss-20b")
    assert 32 * model.state_bytes(8192) / GIB == pytest.approx(6.09, abs=0.005)
    assert 32 * model.state_bytes(8192, reserved=True) / GIB == 12.0


def test_gpt_oss_120b_receipt():
    """An engine reported 5.38 GiB = 78,384 tokens."""
    model = gambrel.load_model("gpt-oss-120b")
    assert model.kv_bytes_per_token == model.kv_bytes_per_token_reserved == 73_728
    assert 78_384 * model.kv_bytes_per_token_reserved / GIB == pytest.approx(5.38, abs=0.005)


def test_gemma_4_receipt():
    """An engine reported 24.54 GiB = 26,800 tokens."""
    model = gambrel.load_model("gemma-4-31b")
    assert model.kv_bytes_per_token_reserved == 983_040
    assert 26_800 * model.kv_bytes_per_token_reserved / GIB == pytest.approx(24.54, abs=0.005)


@pytest.mark.parametrize(("batch", "expected_ms"), [(8, 9.64), (64, 33.15)])
def test_expert_bytes_grow_with_batch(batch, expected_ms):
    row = gambrel.load_model("qwen3-30b-a3b").report("h100-sxm", batches=(batch,)).decode[0]
    assert row.expected_bound_s * 1e3 == pytest.approx(expected_ms, rel=1e-3)
    assert row.bound_s < row.expected_bound_s


def test_mixtral_reads_all_experts():
    row = gambrel.load_model("mixtral-8x7b").report("h100-sxm", batches=(64,), contexts=(0,), tp=2).decode[0]
    assert row.expected_bound_s >= 13.85e-3


def test_gemma_window_at_32k():
    assert gambrel.load_model("gemma-3-27b").state_bytes(32768) / 2**20 == pytest.approx(2976, abs=1)


def test_mla_latent_is_replicated():
    model = gambrel.load_model("deepseek-v3")
    fit = model.report("h100-sxm", tp=16, reserve_bytes=0).capacity
    assert fit.sequence_bytes(8192) == model.state_bytes(8192)
    assert fit.max_batch(8192) == pytest.approx(61, abs=4)


def test_kv_heads_are_replicated_beyond_their_number():
    model = gambrel.load_model("llama-3-70b")
    per_card = [model.report("h100-sxm", tp=n).capacity.sequence_bytes(8192) for n in (8, 16)]
    assert per_card[0] == per_card[1] == model.state_bytes(8192) / 8


def test_tp_that_does_not_divide_is_refused():
    with pytest.raises(GambrelError, match=r"possible here: 1, 2, 4, 8, 16, 32"):
        gambrel.load_model("llama-3-8b").report("h100-sxm", tp=3)


def test_context_beyond_the_maximum_is_said():
    report = gambrel.load_model("qwen3-30b-a3b").report("h100-sxm", contexts=(120_000,))
    assert report.decode[0].beyond_max_context
    assert not report.decode[0].possible
    assert "40,960" in str(report)


def test_keys_of_another_tool_are_named():
    config = {
        "model_type": "llama",
        "num_layers": 80,
        "n_head": 64,
        "hidden_dim": 8192,
        "ffn_embed_dim": 28672,
        "vocab_size": 32000,
    }
    with pytest.raises(GambrelError, match=r"hidden_size.*ffn_embed_dim, hidden_dim, n_head, num_layers"):
        read_config(config)


def test_gemma3_with_flat_text_keys():
    model = changed("gemma-3-1b", model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"])
    assert model.params_total == 999_885_952


def test_unused_sliding_window():
    model = changed("qwen2.5-7b", use_sliding_window=False, sliding_window=32768)
    assert model.state_bytes(131_072) == 131_072 * model.kv_bytes_per_token


def test_mistral_window():
    assert gambrel.load_model("mistral-7b-v0.1").state_bytes(32768) == GIB // 2


def test_head_dim_is_not_hidden_over_heads():
    model = gambrel.load_model("qwen3-4b")
    assert model.config["hidden_size"] / model.config["num_attention_heads"] == 80
    assert model.kv_bytes_per_token == 2 * 36 * 8 * 128 * 2


def test_attention_at_128k_is_quadratic():
    ops = gambrel.load_model("llama-3.1-8b").ops(Step(1, 131_072, 131_072, causal=False, logits="all"))
    assert sum(op.cost.flops * op.count for op in ops) == pytest.approx(10.97e15, rel=1e-3)


def test_capacity_of_a_4090():
    """vLLM 0.19 had 41,408 tokens in fact; weights alone subtracted give 54,400 with 24 GiB."""
    room = capacity(gambrel.load_model("llama-3.1-8b"), load_device("rtx-4090"), Options())
    assert room.usable_bytes == 25_250_627_584
    assert room.reserve_bytes == RESERVE_BYTES
    assert room.max_tokens() == pytest.approx(41_408, rel=0.001)


def test_int4_is_four_and_a_quarter_bits():
    model = gambrel.load_model("llama-3-8b", weight_dtype="int4")
    assert 8 * model.weight_bytes() / model.params_total == pytest.approx(4.25, abs=0.001)
    assert model.ops(Step(1, 1, 1))[2].dtype == "bf16"


def test_fp8_blocks_and_what_stays():
    """DeepSeek-V3's release: experts in fp8 with 128 x 128 blocks; router, head, embedding in bf16."""
    model = gambrel.load_model("deepseek-v3")
    dtypes = {op.name: op.dtype for op in model.ops(Step(1, 1, 1)) if op.role == "gemm"}
    assert dtypes["down_proj"] == "fp8"
    assert dtypes["gate"] == dtypes["lm_head"] == "bf16"
    fp8 = sum(t.stored_bytes * t.copies for t in model.tensors if t.group == "experts")
    assert fp8 == model.params_by_group["experts"] * (1 + 4 / 128**2)


def test_contradictory_layer_list():
    config = dict(gambrel.load_model("gpt-oss-20b").config)
    config["layer_types"] = [*config["layer_types"], "full_attention"]
    with pytest.raises(GambrelError, match="layer_types has 25 entries for 24 layers"):
        read_config(config)


def test_documents_are_json():
    document = gambrel.load_model("qwen3-30b-a3b").report("h100-sxm").to_dict()
    assert json.loads(json.dumps(document, allow_nan=False))["schema_version"] == 1
