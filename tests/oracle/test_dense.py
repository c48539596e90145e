"""The plain dense decoders of families/dense.py: published configs against the truth, small ones against PyTorch.

Small configs are built by transformers on the meta device; a family that transformers 5.24 does not have is compared
with its twin: the family that has the same layers under other names. FLOPs are FlopCounterMode's, with the corrections
of test_flops.py and those that a case states: the module's attention products are `attention_times` those that are
needed.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from compared import MLA, assert_refused, base, counted, gambrel_flops, truth, without

from gambrel.model import arch as totals
from gambrel.model.families import dense
from gambrel.model.fields import ConfigError
from gambrel.model.precision import Overrides
from gambrel.model.reader import read_config
from gambrel.types import Step

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

# Published configs ----------------------------------------------------------------------------

#: Configs that are refused, with words of the message. GLM-4V's tower is not in the truth's class either.
REFUSED = {"zai-org__glm-4v-9b.json": ("vision_config", "accepted")}

#: Parameters and KV bytes per token where the truth has none: file -> counts, where they come from.
STATED = {
    "nvidia__Llama-3_3-Nemotron-Super-49B-v1.json": (
        49_867_145_216,
        49 * 2 * 8 * 128 * 2,
        "the widths are those of the publisher's configuration code; 49 layers have attention; published as 49B",
    ),
    "OrionStarAI__Orion-14B-Chat.json": (
        14_498_703_360,
        40 * 2 * 5120 * 2,
        "Llama's layers with LayerNorm (vLLM's orion.py); published as 14B",
    ),
    "IEITYuan__Yuan2-2B-hf.json": (
        2_088_724_480,
        24 * 2 * 2048 * 2,
        "the publisher's vLLM model; published as 2.1 billion (abstract of arXiv:2311.15786)",
    ),
}


def of_this_module(shared: Any) -> dict[str, dict[str, Any]]:
    """The published configs of these families by file."""
    found = {}
    for path in sorted((shared / "configs" / "models").glob("*.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        if config.get("model_type") in dense.FAMILIES:
            found[path.name] = config
    return found


def test_published_configs(shared) -> None:
    """Total and active parameters, KV bytes per token and fixed state equal the truth, or the config is refused."""
    wrong = {}
    for file, config in of_this_module(shared).items():
        row = truth(shared, file)
        if file in REFUSED:
            assert_refused(config, REFUSED[file])
            continue
        reading = read_config(config, Overrides(kv="bf16"))
        tensors = list(reading.arch.tensors())
        caches = reading.arch.caches(reading.precision.numerics())
        got = (
            totals.params_total(tensors),
            totals.params_active(tensors),
            totals.kv_bytes_per_token(caches),
            reading.unread,
        )
        if file in STATED:
            total, kv, _ = STATED[file]
            right = (total, total, kv, ())
        else:
            assert row["status"] == "ok", f"{file} is read, but nobody knows the true counts"
            assert int(row["fixed_state_elems"] or 0) == sum(cache.fixed_bytes for cache, _ in caches) == 0
            total = int(row["total_params"])
            right = (total, int(row["active_params"] or total), int(row["kv_bytes_per_token_bf16"]), ())
        if got != right:
            wrong[file] = (got, right)
    assert wrong == {}


def test_yuan_keeps_the_inputs_of_its_convolutions(shared) -> None:
    """Beside keys and values 1.5 hidden widths for each layer, which a decode step reads and writes once."""
    config = json.loads((shared / "configs" / "models" / "IEITYuan__Yuan2-2B-hf.json").read_text(encoding="utf-8"))
    reading = read_config(config)
    numerics = reading.precision.numerics()
    kept = 24 * 3 * 2048 // 2 * 2  # [byte]
    assert sum(cache.fixed_bytes * count for cache, count in reading.arch.caches(numerics)) == kept
    for step, read in ((Step(4, 1, 9), 4 * kept), (Step(4, 9, 9), 0)):
        ops = [op for op in reading.arch.ops(step, numerics) if op.name == "conv1"]
        assert sum(op.cost.kv_read_bytes * op.count for op in ops) == read
        assert sum(op.cost.kv_write_bytes * op.count for op in ops) == 4 * kept


# OpenELM-270M: heads of every layer as converters of the checkpoint list them; multipliers are 16 from 0.5 to 4.
OPENELM = {
    "model_type": "openelm",
    "model_dim": 1280,
    "num_transformer_layers": 16,
    "head_dim": 64,
    "vocab_size": 32000,
    "max_context_length": 2048,
    "ffn_dim_divisor": 256,
    "ffn_multipliers": [0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0],
    "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
    "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4,
    "share_input_output_layers": True,
    "ffn_with_glu": True,
    "normalize_qk_projections": True,
    "torch_dtype": "bfloat16",
}


def test_openelm() -> None:
    """The 270M model by hand: per layer d·(h + 2·kv)·64 + h·64·d + 3·d·f and norms, with a table of 32000 rows."""
    widths = [768, 1024, 1280, 1536, 1792, 2048, 2560, 2816, 3072, 3328, 3584, 3840, 4352, 4608, 4864, 5120]
    heads, kv = OPENELM["num_query_heads"], OPENELM["num_kv_heads"]
    layers = [
        1280 * (h + 2 * k) * 64 + h * 64 * 1280 + 3 * 1280 * f + 2 * 1280 + 2 * 64
        for h, k, f in zip(heads, kv, widths, strict=True)
    ]
    arch = read_config(OPENELM).arch
    assert totals.params_total(arch.tensors()) == sum(layers) + 32000 * 1280 + 1280 == 271_527_168
    assert arch.widths == tuple(widths)


ATTENTION = {"n_heads_in_group": 3, "no_op": False, "replace_with_linear": False}
FEED_FORWARD = {"ffn_mult": 2.0, "no_op": False, "replace_with_linear": False}
NAS: dict[str, Any] = {
    "model_type": "nemotron-nas",
    "vocab_size": 320,
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "num_key_value_heads": None,
    "intermediate_size": None,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
    "block_configs": [
        {"attention": ATTENTION, "ffn": FEED_FORWARD},
        {"attention": {"no_op": True}, "ffn": {**FEED_FORWARD, "ffn_mult": 4.1}},
        {"attention": {**ATTENTION, "n_heads_in_group": 1}, "ffn": {"no_op": True}},
        {"attention": {"replace_with_linear": True}, "ffn": {"replace_with_linear": True}},
    ],
}


# Small configs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Small:
    """A small config; twin: what transformers is given in its place; corrections to what PyTorch counts.

    attention_times: how many times the needed products of attention the module multiplies. roles: whether weight
    GEMMs and attention can be told apart. flops: False where the module has no cache or does not run on the meta
    device, with the reason.
    """

    name: str
    config: dict[str, Any]
    twin: dict[str, Any] | None = None
    attention_times: int = 1
    roles: bool = True
    flops: str = ""
    latent: dict[str, Any] = field(default_factory=dict)


def small(model_type: str, **keys: Any) -> dict[str, Any]:
    own = {"num_hidden_layers": 4, "num_key_value_heads": 4, "torch_dtype": "bfloat16"}
    return base(model_type=model_type, **{**own, **keys})


def gpt(model_type: str, **keys: Any) -> dict[str, Any]:
    base = {"vocab_size": 320, "n_embd": 96, "n_layer": 3, "n_head": 12, "n_positions": 128, "torch_dtype": "bfloat16"}
    return {"model_type": model_type, **base, **keys}


CHATGLM = {
    "model_type": "chatglm",
    "padded_vocab_size": 320,
    "hidden_size": 96,
    "ffn_hidden_size": 176,
    "num_layers": 3,
    "num_attention_heads": 12,
    "kv_channels": 8,
    "multi_query_attention": True,
    "multi_query_group_num": 4,
    "add_qkv_bias": True,
    "seq_length": 128,
    "torch_dtype": "bfloat16",
}
XGLM = {
    "model_type": "xglm",
    "vocab_size": 320,
    "d_model": 96,
    "ffn_dim": 176,
    "num_layers": 3,
    "attention_heads": 12,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
MPT = {
    "model_type": "mpt",
    "vocab_size": 320,
    "d_model": 96,
    "n_layers": 3,
    "n_heads": 12,
    "max_seq_len": 128,
    "torch_dtype": "bfloat16",
}
NEO = {
    "model_type": "gpt_neo",
    "vocab_size": 320,
    "hidden_size": 96,
    "num_layers": 4,
    "num_heads": 12,
    "attention_types": [[["global", "local"], 2]],
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
QWEN = {
    **without(small("qwen", intermediate_size=352), "num_key_value_heads"),
    "kv_channels": 8,
    "no_bias": True,
    "tie_word_embeddings": False,
}
MHA = {"num_key_value_heads": 12}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
BIAS = {"attention_bias": True}
BIASES = {"attention_bias": True, "mlp_bias": True}
WINDOW = {"sliding_window": 12}
MIXED = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
FILLING = "eager attention is given other keys than the windows hold: the module's cache keeps every key"
NO_WINDOW = "the module does not run: it makes a mask for windows that it does not have"
NO_DIM = "num_key_value_heads"

SMALL = (
    Small("apertus", small("apertus", **BIAS)),
    Small("apertus-tied-mha", small("apertus", **TIED, **MHA, hidden_act="silu")),
    Small("arcee", small("arcee", head_dim=16)),
    Small("arcee-biases-tied", small("arcee", **BIASES, **TIED)),
    Small("baichuan", without(small("baichuan"), NO_DIM), small("llama", **MHA)),
    Small("biogpt", without(small("biogpt"), NO_DIM)),
    Small("biogpt-untied", without(small("biogpt", **UNTIED), NO_DIM)),
    Small("bitnet", small("bitnet")),
    Small("bitnet-bias-tied", small("bitnet", **BIAS, **TIED)),
    Small("chatglm", CHATGLM, small("glm", num_hidden_layers=3, head_dim=8, attention_bias=True, pad_token_id=0)),
    Small(
        "chatglm-mha-no-bias",
        {**without(CHATGLM, "add_qkv_bias"), "multi_query_attention": False},
        small("glm", num_hidden_layers=3, head_dim=8, attention_bias=False, **MHA, pad_token_id=0),
    ),
    Small("codegen", gpt("codegen", rotary_dim=4)),
    Small("codegen-inner-tied", gpt("codegen", n_inner=80, rotary_dim=4, **TIED)),
    Small("cohere", small("cohere", pad_token_id=0)),
    Small("cohere-norms-untied", small("cohere", use_qk_norm=True, **UNTIED, **BIAS, pad_token_id=0)),
    Small("cohere2", small("cohere2", **WINDOW, pad_token_id=0)),
    Small("cohere2-pattern", small("cohere2", **WINDOW, **BIAS, sliding_window_pattern=2, pad_token_id=0)),
    Small("cohere2-layer-types-untied", small("cohere2", **WINDOW, **UNTIED, layer_types=MIXED, pad_token_id=0)),
    Small("ctrl", gpt("ctrl", dff=176)),
    Small("ctrl-untied", gpt("ctrl", dff=176, **UNTIED)),
    Small("cwm", small("cwm", **WINDOW, head_dim=16)),
    Small("cwm-layer-types-bias", small("cwm", **WINDOW, mlp_bias=True, head_dim=16, layer_types=MIXED)),
    Small("diffllama", small("diffllama"), attention_times=2),
    Small("diffllama-bias-tied", small("diffllama", **BIAS, **TIED, head_dim=16), attention_times=2),
    Small("doge", small("doge")),
    Small("doge-biases-tied", small("doge", **BIASES, **TIED)),
    Small("doge-moe", small("doge", is_moe=True, num_experts=90, num_experts_per_tok=5), roles=False),
    Small("ernie4_5", small("ernie4_5")),
    Small("ernie4_5-bias-untied", small("ernie4_5", use_bias=True, head_dim=16, **UNTIED)),
    Small("ernie4_5-null", small("ernie4_5", num_key_value_heads=None, head_dim=None)),
    Small("exaone", without(small("exaone", num_layers=4), "num_hidden_layers", NO_DIM) | {"num_attention_heads": 16}),
    Small("exaone-biases-tied", small("exaone", **BIASES, **TIED)),
    Small("exaone4", small("exaone4", **WINDOW, head_dim=16)),
    Small("exaone4-layer-types", small("exaone4", **WINDOW, head_dim=16, layer_types=MIXED, **TIED)),
    Small("exaone4-no-window", small("exaone4", head_dim=16, sliding_window=None, layer_types=["full_attention"] * 4)),
    Small("glm", small("glm", head_dim=16, pad_token_id=0)),
    Small("glm-no-bias-tied", small("glm", head_dim=16, attention_bias=False, **TIED, pad_token_id=0)),
    Small("glm4", small("glm4", head_dim=16, pad_token_id=0)),
    Small("gpt_bigcode", gpt("gpt_bigcode")),
    Small("gpt_bigcode-mha-untied", gpt("gpt_bigcode", multi_query=False, n_inner=80, **UNTIED)),
    Small("gpt_neo", {**NEO, "window_size": 64}),
    Small("gpt_neo-window", {**NEO, "window_size": 12, "intermediate_size": 80}, flops=FILLING),
    Small("gptj", gpt("gptj", rotary_dim=4)),
    Small("gptj-inner-tied", gpt("gptj", rotary_dim=4, n_inner=80, **TIED)),
    Small("granite", small("granite")),
    Small("granite-biases-tied", small("granite", **BIASES, **TIED)),
    Small("granite_swa", small("granite_swa", **WINDOW)),
    Small("granite_swa-biases-untied", small("granite_swa", **WINDOW, **BIASES, **UNTIED, layer_types=MIXED)),
    Small("helium", small("helium", head_dim=8)),
    Small("helium-biases-tied", small("helium", **BIASES, **TIED, head_dim=8)),
    Small("hunyuan_v1_dense", small("hunyuan_v1_dense", head_dim=16)),
    Small("hunyuan_v1_dense-bias-tied", small("hunyuan_v1_dense", **BIAS, **TIED, head_dim=8)),
    Small("hyperclovax", small("hyperclovax")),
    Small("hyperclovax-no-post-norm", small("hyperclovax", use_post_norm=False, head_dim=16, **BIASES, **TIED)),
    Small("internlm", without(small("internlm"), NO_DIM), small("llama", **MHA, **BIAS)),
    Small("internlm2", small("internlm2", bias=False), small("llama")),
    Small("internlm3", small("internlm3", head_dim=16)),
    Small("internlm3-biases", small("internlm3", head_dim=16, qkv_bias=True, bias=True)),
    Small("iquestcoder", small("iquestcoder", head_dim=16)),
    Small("jais2", small("jais2")),
    Small("jais2-no-bias-tied", small("jais2", attention_bias=False, mlp_bias=False, **TIED)),
    Small("mimo", small("mimo", attention_bias=True, num_nextn_predict_layers=1), small("qwen2")),
    Small("minicpm", small("minicpm", **UNTIED), small("llama")),
    Small("minicpm-tied", small("minicpm", scale_emb=12, dim_model_base=256), small("llama", **TIED)),
    Small(
        "minicpm-experts",
        small("minicpm", num_experts=6, num_experts_per_tok=2, **UNTIED),
        small("mixtral", num_local_experts=6, num_experts_per_tok=2),
        flops="checked for mixtral in test_flops.py",
    ),
    Small("minicpm3", small("minicpm3", **MLA), latent=MLA),
    Small("minicpm3-default-value", small("minicpm3", **without(MLA, "v_head_dim")), latent={**MLA, "v_head_dim": 8}),
    Small("minicpm3-no-q-rank", small("minicpm3", **{**MLA, "q_lora_rank": None}, **BIASES, **UNTIED), latent=MLA),
    Small("ministral", small("ministral", **WINDOW, head_dim=16)),
    Small("ministral-no-window-tied", small("ministral", sliding_window=None, head_dim=8, **TIED), flops=NO_WINDOW),
    Small("mpt", MPT),
    Small("nanochat", small("nanochat")),
    Small("nanochat-bias-tied", small("nanochat", **BIAS, **TIED)),
    Small("nemotron", small("nemotron")),
    Small("nemotron-biases-tied", small("nemotron", **BIASES, **TIED, head_dim=16)),
    Small("olmo", small("olmo", clip_qkv=8.0, pad_token_id=0)),
    Small("olmo-bias-tied", small("olmo", **BIAS, **TIED, pad_token_id=0)),
    Small("olmo3", small("olmo3", **WINDOW, pad_token_id=0)),
    Small("olmo3-layer-types-bias-tied", small("olmo3", **WINDOW, **BIAS, **TIED, layer_types=MIXED, pad_token_id=0)),
    Small("olmo_1124", small("olmo_1124"), small("olmo2", pad_token_id=0)),
    Small("orion", small("orion"), small("stablelm")),
    Small("persimmon", without(small("persimmon"), NO_DIM)),
    Small("persimmon-no-norm-tied", without(small("persimmon", qk_layernorm=False, **TIED), NO_DIM)),
    Small("phi", small("phi")),
    Small("phi-norms-tied", small("phi", qk_layernorm=True, **TIED)),
    Small(
        "phi-msft",
        gpt("phi-msft", n_inner=None, n_head_kv=4),
        small("phi", num_hidden_layers=3, intermediate_size=384),
    ),
    Small("qwen", QWEN, small("qwen2", **MHA)),
    Small("seed_oss", small("seed_oss", head_dim=16)),
    Small("seed_oss-out-mlp-bias-tied", small("seed_oss", attention_out_bias=True, mlp_bias=True, head_dim=16, **TIED)),
    Small("smollm3", small("smollm3", pad_token_id=0)),
    Small("smollm3-window", small("smollm3", use_sliding_window=True, **WINDOW, **BIASES, **UNTIED, pad_token_id=0)),
    Small("smollm3-null", small("smollm3", no_rope_layers=[1, 0, 1, 0], num_key_value_heads=None, pad_token_id=0)),
    Small("stablelm", small("stablelm")),
    Small(
        "stablelm-norms-parallel", small("stablelm", qk_layernorm=True, use_parallel_residual=True, use_qkv_bias=True)
    ),
    Small("starcoder2", small("starcoder2")),
    Small("starcoder2-window-untied", small("starcoder2", **WINDOW, **UNTIED, use_bias=False)),
    Small("vaultgemma", small("vaultgemma", **WINDOW, head_dim=16)),
    Small("vaultgemma-bias-untied", small("vaultgemma", **WINDOW, head_dim=16, **BIAS, **UNTIED)),
    Small("xglm", XGLM),
    Small("xglm-untied", {**XGLM, **UNTIED}),
    Small("youtu", small("youtu", **MLA), latent=MLA),
    Small("youtu-no-q-rank-bias", small("youtu", **{**MLA, "q_lora_rank": None}, **BIAS, **UNTIED), latent=MLA),
)

#: Families without a class or a twin in transformers 5.24: held by the published configs above.
ALONE = {"nemotron-nas", "openelm", "yuan"}
#: New tokens of each step in order; the windows of the small models are 12.
STEPS = {"prefill": 20, "chunk": 5, "decode": 1}
BATCH = 2


@pytest.fixture(params=SMALL, ids=[s.name for s in SMALL])
def one(request) -> Small:
    return request.param


def built(one: Small, modules: Any) -> Any:
    return modules.build(modules.config(one.twin or one.config))


def test_every_family_has_a_small_config() -> None:
    """None is left out."""
    assert {s.config["model_type"] for s in SMALL} | ALONE == set(dense.FAMILIES)


def test_parameters(one, modules) -> None:
    """Every parameter of the module, tied ones once."""
    arch = read_config(one.config).arch
    assert totals.params_total(arch.tensors()) == sum(p.numel() for p in built(one, modules).parameters())


def test_saved_by_transformers(one, modules) -> None:
    """A config with every key that transformers writes is read as the same model, and no key is unknown."""
    if one.twin is not None:
        pytest.skip("transformers has no such class")
    saved = json.loads(modules.config(one.config).to_json_string(use_diff=False))
    reading = read_config(saved)
    assert totals.params_by_group(reading.arch.tensors()) == totals.params_by_group(
        read_config(one.config).arch.tensors()
    )
    assert reading.unread == ()


def test_cache(one, modules) -> None:
    """The elements that the module caches of 2 sequences of 8 tokens."""
    if one.flops == NO_WINDOW:
        pytest.skip(one.flops)
    cached = modules.forward(built(one, modules), 8).past_key_values
    cached = getattr(cached, "self_attention_cache", cached)
    elements = sum(layer.keys.numel() + layer.values.numel() for layer in cached.layers)
    reading = read_config(one.config)
    assert 2 * totals.state_bytes(reading.arch.caches(reading.precision.numerics()), 8) == 2 * elements


BROKEN = (None, "many", 0, -3, 2.5, True, [], ["x"], {}, {"x": 1}, 10**12, [[None, 1]])


def check_refusals(config: dict[str, Any]) -> None:
    """Whatever stands under a key, the config is read or refused with a ConfigError."""
    for key in config:
        if key != "model_type":
            for value in BROKEN:
                with contextlib.suppress(ConfigError):
                    reading = read_config({**config, key: value})
                    arch, numerics = reading.arch, reading.precision.numerics()
                    assert totals.params_total(arch.tensors()) > 0
                    assert all(op.cost.flops >= 0 for op in arch.ops(Step(1, 1, 8), numerics))


def test_broken_values(one) -> None:
    """No traceback, however broken a value is."""
    check_refusals(one.config)


@pytest.mark.parametrize("changes", [{key: value} for key in ("attention", "ffn") for value in BROKEN])
def test_broken_blocks(changes) -> None:
    """The same of the blocks of a searched model, and of OpenELM's lists."""
    check_refusals({**NAS, "block_configs": [{**NAS["block_configs"][0], **changes}, *NAS["block_configs"][1:]]})
    check_refusals(OPENELM)


def test_searched_layers() -> None:
    """A slot that is left out has neither norm nor weights nor cache; a matrix may stand for either."""
    arch = read_config(NAS).arch
    d, head, width = 96, 8, 256  # 2/3 · 2.0 · 96 = 128, up to a multiple of 256
    full = 2 * 12 * head * d + 2 * 4 * head * d + 3 * d * width + 2 * d
    no_attention, no_ffn = 3 * d * 512 + d, 2 * 12 * head * d + 2 * 12 * head * d + d
    matrices = 2 * d * d + 2 * d
    assert totals.params_total(arch.tensors()) == full + no_attention + no_ffn + matrices + 2 * 320 * d + d
    assert totals.kv_bytes_per_token(arch.caches(read_config(NAS).precision.numerics())) == 2 * 2 * head * (4 + 12)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**NEO, "attention_types": [[["global", "local"], 3]]}, ("attention_types", "6", "4 layers")),
        ({**CHATGLM, "pre_seq_len": 128}, ("pre_seq_len", "128")),
        ({**CHATGLM, "quantization_bit": 4}, ("quantization_bit", "4")),
        ({**QWEN, "visual": {"width": 1664}}, ("visual",)),
        ({**MPT, "attn_config": {"attn_type": "grouped_query_attention"}}, ("attn_config.attn_type", "grouped")),
        ({**MPT, "no_bias": False}, ("no_bias", "True")),
        (small("minicpm", sparse_config={"topk": 64}), ("sparse_config",)),
        (small("diffllama", num_key_value_heads=3), ("num_key_value_heads", "3", "even")),
        (small("exaone4", sliding_window_pattern="LXG"), ("sliding_window_pattern", "LXG", "L and G")),
        (small("cohere2", head_dim=16), ("head_dim", "16", "8")),
        (gpt("gpt_bigcode", add_cross_attention=True), ("add_cross_attention",)),
        ({**without(OPENELM, "num_kv_heads")}, ("num_kv_heads",)),
    ],
)
def test_refused(config, words) -> None:
    """What is not counted is refused by key."""
    assert_refused(config, words)


def test_pattern_in_letters() -> None:
    """EXAONE 4's "LLLG": three local layers, one global, and the last always global."""
    arch = read_config(small("exaone4", num_hidden_layers=6, sliding_window_pattern="LLLG", **WINDOW)).arch
    assert [(block.name, block.count) for block in arch.blocks] == [("layers 0-2, 4", 4), ("layers 3, 5", 2)]


def test_doge_keeps_the_best_keys() -> None:
    """Beyond keep_window_size a query meets that many keys; values of all keys are read, keys of the kept."""
    config = small("doge", keep_window_size=10)
    numerics = read_config(config).precision.numerics()
    kernel = next(op for op in read_config(config).arch.ops(Step(1, 1, 30), numerics) if op.role == "attention")
    d, heads, kv, element = 8, 12, 4, 2
    assert kernel.cost.flops == 4 * heads * d * 10
    assert kernel.cost.kv_read_bytes == element * kv * d * (10 + 30)
    assert kernel.cost.kv_write_bytes == element * kv * d * 2


def test_grid_is_the_scalars(one) -> None:
    """A grid of steps costs what its steps cost."""
    import numpy as np

    reading = read_config(one.config)
    arch, numerics = reading.arch, reading.precision.numerics()
    shapes = [(1, 1, 5), (3, 1, 40), (2, 7, 40), (2, 20, 20)]
    grid = arch.ops(Step(*(np.array(column) for column in zip(*shapes, strict=True))), numerics)
    for i, shape in enumerate(shapes):
        for op, point in zip(arch.ops(Step(*shape), numerics), grid, strict=True):
            values = [np.broadcast_to(value, len(shapes))[i] for value in point.cost.values()]
            assert values == pytest.approx([float(value) for value in op.cost.values()], rel=1e-12), op.name


def test_streamed_weights(one) -> None:
    """A step reads every streamed byte once, unless it picks experts."""
    arch = read_config(one.config).arch
    if arch.experts or one.config.get("is_moe"):
        pytest.skip("reads the picked experts alone")
    numerics = read_config(one.config).precision.numerics()
    read = sum(op.cost.weight_bytes * op.count for op in arch.ops(Step(1, 1, 8), numerics))
    assert read == totals.weight_bytes(arch.tensors(), streamed_only=True)


def latent_change(one: Small, new_tokens: int, context: int) -> dict[str, int]:
    """What the cheaper form of latent attention costs more than the expanded one, which the module computes.

    h heads, c latent, n and r widths of a head without and with rotation, v of its values; q new tokens, s keys.
    """
    if not one.latent:
        return {"gemm": 0, "attention": 0}
    h, c, n, r, v = (
        12,
        *(one.latent[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")),
    )
    q, s = BATCH * new_tokens, BATCH * new_tokens * context
    expanded = (2 * BATCH * context * c * h * (n + v), 2 * s * h * (n + r + v))
    absorbed = (2 * q * c * h * (n + v), 2 * s * h * (2 * c + r))
    form = min(absorbed, expanded, key=sum)
    layers = one.config["num_hidden_layers"]
    return {"gemm": layers * (form[0] - expanded[0]), "attention": layers * (form[1] - expanded[1])}


def test_flops(one, modules) -> None:
    """Weight GEMMs and attention of a prefill, a chunk and a decode step over the cache, exactly."""
    if one.flops:
        pytest.skip(one.flops)
    module = built(one, modules)
    cache, context = None, 0
    right, got = {}, {}
    for name, new_tokens in STEPS.items():
        context += new_tokens
        flops, out = counted(lambda n=new_tokens, cache=cache: modules.forward(module, n, cache, BATCH))
        cache, change = out.past_key_values, latent_change(one, new_tokens, context)
        right[name] = {
            "gemm": flops["gemm"] + change["gemm"],
            "attention": flops["attention"] // one.attention_times + change["attention"],
        }
        step = Step(BATCH, new_tokens, context, causal=False, logits="all")
        got[name] = gambrel_flops(one.config, step)
    if not one.roles:
        got, right = ({name: sum(roles.values()) for name, roles in side.items()} for side in (got, right))
    assert got == right


WINDOWED = [s for s in SMALL if s.config.get("sliding_window") or s.config.get("window_size")]


@pytest.mark.parametrize("windowed", WINDOWED, ids=[s.name for s in WINDOWED])
def test_causal_scores(windowed, modules) -> None:
    """Attention FLOPs under the causal mask and the windows: as many scores as the module has probabilities above 0."""
    module = modules.build(modules.config(windowed.config), "cpu")
    width = 2 * (windowed.config.get("head_dim") or 8)  # of keys and values
    cache, context = None, 0
    for new_tokens in STEPS.values():
        context += new_tokens
        out = modules.forward(module, new_tokens, cache, BATCH, output_attentions=True)
        cache = out.past_key_values
        scores = sum(int((probabilities > 0).sum()) for probabilities in out.attentions)  # of all heads and sequences
        got = gambrel_flops(windowed.config, Step(BATCH, new_tokens, context))["attention"]
        assert got == 2 * scores * width
