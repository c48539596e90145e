"""The families of families/moe.py and families/compressed.py: published configs, and small models against modules.

Small models run on the CPU in PyTorch, experts as a loop ("eager"): each expert multiplies the rows that chose it, so
that FlopCounterMode counts m·k rows whatever the routing. Corrections to what the module does:

* MLA: the module expands the latent for every cached key; gambrel takes the cheaper of that and the absorbed form.
* Llama 4's module runs every expert on every row, zeroed where not chosen, and keeps C - 1 keys of a chunked layer
  whatever chunk they are in; gambrel reads the keys of the query's own chunk.
* LongCat's module multiplies only for the real experts that the routing picks; gambrel counts their mean.
* The indexer's weighted sum over heads is a product in the module (2·h_i per score), a reduction in gambrel.
* DeepSeek-V4's module runs its last hyper-connection on all rows, gambrel on those that reach the output head.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from compared import MLA, base, counts, gambrel_flops, published, truth, without

from gambrel.model import arch as totals
from gambrel.model.families import find
from gambrel.model.fields import ConfigError
from gambrel.model.precision import Overrides
from gambrel.model.reader import read_config
from gambrel.types import Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

BATCH = 2
#: Steps in order: name -> new tokens, rows that go through the output head. The windows of the small models are 12.
STEPS = {"prefill": (20, "all"), "chunk": (5, "all"), "decode": (1, "all"), "last row": (3, "last")}

# Published configs ----------------------------------------------------------------------------

LONGCAT = "truth_note: the module allocates gate and up for the 256 experts that compute nothing"
V4_CACHE = "the module's cache as it grows from one length to the next: see test_v4_cache"
SAME_AS_PRO = "deepseek_ref is DeepSeek-V4-Pro in fp8, so its counts are those of deepseek-ai__DeepSeek-V4-Pro.json"

#: Config -> what the truth has otherwise or lacks, and why: total, active, KV bytes per token in bf16.
EXCEPTIONS: dict[str, dict[str, tuple[int, str]]] = {
    "meituan-longcat__LongCat-Flash-Chat.json": {
        "total": (560_664_958_976, LONGCAT),
        "active": (27_954_796_544, "8 of 12 chosen experts compute under uniform routing: published 27 B"),
    },
    "deepseek-ai__DeepSeek-V4-Flash.json": {"kv_bytes_per_token": (50_912, V4_CACHE)},
    "nvidia__DeepSeek-V4-Flash-NVFP4.json": {"kv_bytes_per_token": (50_912, V4_CACHE)},
    "deepseek-ai__DeepSeek-V4-Pro.json": {"kv_bytes_per_token": (72_312, V4_CACHE)},
    "sgl-project__DeepSeek-V4-Pro-FP8.json": {
        "total": (1_572_997_179_491, SAME_AS_PRO),
        "active": (49_779_058_787, SAME_AS_PRO),
        "kv_bytes_per_token": (72_312, SAME_AS_PRO),
    },
    "jetmoe__jetmoe-8b.json": {
        "kv_bytes_per_token": (196_608, "no module cache was made: 24 layers x 16 heads x 128 x 2 x 2 bytes")
    },
    "deepseek-ai__deepseek-moe-16b-chat.json": {
        "total": (16_375_728_128, "the count of its safetensors; published 16.4 B"),
        "active": (2_828_650_496, "published 2.8 B"),
        "kv_bytes_per_token": (229_376, "28 layers x 16 heads x 128 x 2 x 2 bytes"),
    },
    "inclusionAI__Ling-plus-base.json": {
        "total": (290_602_910_976, "published 290 B"),
        "active": (29_004_170_496, "published 28.8 B"),
        "kv_bytes_per_token": (270_336, "88 layers x 8 heads x 96 x 2 x 2 bytes"),
    },
    "stepfun-ai__step3-text.json": {
        "total": (316_294_538_240, "arXiv:2507.19427: 316 B in the language model"),
        "active": (38_841_328_640, "arXiv:2507.19427: 38 B"),
        "kv_bytes_per_token": (62_464, "61 layers x 1 head x 256 x 2 x 2 bytes"),
    },
}

FILES = """
MiniMaxAI__MiniMax-M2 MiniMaxAI__MiniMax-M2.1 MiniMaxAI__MiniMax-M2.7 nvidia__MiniMax-M2.5-NVFP4
Qwen__Qwen3-VL-30B-A3B-Instruct RedHatAI__Llama-4-Scout-17B-16E-Instruct-FP8-dynamic XiaomiMiMo__MiMo-V2-Flash
arcee-ai__Trinity-Large-Preview arcee-ai__Trinity-Mini baidu__ERNIE-4.5-21B-A3B-PT deepseek-ai__DeepSeek-V3.2-Exp
deepseek-ai__DeepSeek-V4-Flash deepseek-ai__DeepSeek-V4-Pro deepseek-ai__deepseek-moe-16b-chat
ibm-granite__granite-3.0-3b-a800m-base ibm-research__PowerMoE-3b inclusionAI__Ling-plus-base jetmoe__jetmoe-8b
meituan-longcat__LongCat-Flash-Chat microsoft__Phi-3.5-MoE-instruct microsoft__Phi-tiny-MoE-instruct
nvidia__DeepSeek-V3.2-NVFP4 nvidia__DeepSeek-V4-Flash-NVFP4 nvidia__GLM-5-NVFP4 nvidia__GLM-5.1-NVFP4
nvidia__GLM-5.2-NVFP4 odd__fake_dsa_hf_model poolside__Laguna-XS.2-NVFP4 poolside__Laguna-XS.2
rednote-hilab__dots.llm1.base sgl-project__DeepSeek-V4-Pro-FP8 stepfun-ai__step3-text tencent__Hunyuan-A13B-Instruct
tencent__Hy3-preview unsloth__Llama-4-Maverick-17B-128E-Instruct upstage__Solar-Open-100B zai-org__GLM-4.5-Air-Base
zai-org__GLM-4.5-Air-FP8 zai-org__GLM-4.5-Base zai-org__GLM-4.5-FP8 zai-org__GLM-4.5V zai-org__GLM-5
zai-org__GLM-5.1 zai-org__GLM-5.2-FP8 zai-org__GLM-5.2
""".split()


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The text model alone of a multimodal config, whose towers other modules read."""
    outer = {key: config[key] for key in ("tie_word_embeddings", "quantization_config") if key in config}
    return {**config["text_config"], **outer} if "text_config" in config else config


@pytest.mark.parametrize("name", FILES)
def test_published(name: str, shared: Path) -> None:
    """Total and active parameters and KV bytes per token of every published config, to the unit."""
    row = truth(shared, name)
    right = {key: value for key, (value, _) in EXCEPTIONS.get(row["file"], {}).items()}
    if row["status"] == "ok":
        tower = int(row["multimodal"])
        told = {"total": int(row["total_params"]) - tower, "active": int(row["active_params"]) - tower}
        right = {**told, "kv_bytes_per_token": int(row["kv_bytes_per_token_bf16"] or 0), **right}
    reading = read_config(text_of(published(shared, name)), Overrides(kv="bf16"))
    assert counts(reading) == right
    assert set(reading.unread) <= {"enable_lm_head_fp32"}


@pytest.mark.parametrize(("name", "windows", "sparse", "heavy"), [("Flash", 2, 21, 20), ("Pro", 0, 30, 31)])
def test_v4_cache(name: str, windows: int, sparse: int, heavy: int, shared: Path) -> None:
    """What the truth measured of DeepSeek-V4's cache, and what gambrel has instead, in elements.

    The module stores a window's vector twice in layers without entries, once in the others; the buffer of unfinished
    windows (key and gate) grew by a token in heavily compressed layers; the entries of the others (13 of them) and
    their overlap did not grow from that length to the next. gambrel counts each vector once and spreads an entry over
    the tokens that it stands for; the buffers are fixed state.
    """
    row = truth(shared, f"deepseek-ai__DeepSeek-V4-{name}")
    layers = windows + sparse + heavy
    assert int(row["kv_elems_per_token"]) == 512 * (layers + windows + 2 * heavy)
    overlap, entries = 2 * 4 * (512 + 128), 13 * (512 + 128)
    assert int(row["fixed_state_elems"]) == sparse * (overlap + entries)
    reading = read_config(published(shared, row["file"]), Overrides(kv="bf16"))
    caches = reading.arch.caches(reading.precision.numerics())
    assert totals.kv_bytes_per_token(caches) == 2 * (512 * layers + sparse * (512 + 128) // 4 + heavy * 512 // 128)
    waiting = 2 * (3 * 2 * (512 + 128) * sparse + 127 * 512 * heavy)
    assert sum(cache.fixed_bytes * count for cache, count in caches) == 2 * (overlap * sparse + waiting)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("deepseek-ai__DeepSeek-V4-Flash", 4 + 8 / 32),  # expert_dtype fp4 among fp8 matrices
        ("nvidia__DeepSeek-V4-Flash-NVFP4", 4 + 8 / 16),
        ("sgl-project__DeepSeek-V4-Pro-FP8", 8 + 32 / 128**2),
    ],
)
def test_v4_experts_are_stored_narrow(name: str, bits: float, shared: Path) -> None:
    """Bits of one routed expert's weight, scales included."""
    experts = [tensor for tensor in read_config(published(shared, name)).arch.tensors() if tensor.group == "experts"]
    stored = sum(tensor.stored_bytes * tensor.copies for tensor in experts)
    assert 8 * stored / sum(tensor.params * tensor.copies for tensor in experts) == pytest.approx(bits)


# Small models ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Small:
    """A small config. extra_params: parameters that the module has and the model does not need."""

    name: str
    config: dict[str, Any]
    extra_params: int = 0

    def __str__(self) -> str:
        return self.name


def small(name: str, extra_params: int = 0, **keys: Any) -> Small:
    config = base(model_type=name.split("-")[0], **{"num_hidden_layers": 4, "pad_token_id": 0, **keys})
    return Small(name, without(config, *(key for key, value in config.items() if value == "absent")), extra_params)


EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 3}
TWO = {"num_local_experts": 8, "num_experts_per_tok": 2}
INDEX = {"index_topk": 64, "index_head_dim": 16, "index_n_heads": 4}
V4 = {
    "intermediate_size": "absent",
    "num_key_value_heads": 1,
    "head_dim": 32,
    "q_lora_rank": 48,
    "o_groups": 4,
    "o_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "sliding_window": 12,
    "compress_ratios": [0, 4, 128, 4],
    "num_hash_layers": 1,
    "hc_mult": 3,
    "compress_rate_hca": 8,
    "num_nextn_predict_layers": 0,
    "n_shared_experts": 1,
    **ROUTED,
    **INDEX,
}
TYPES = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]

SMALL = (
    small("glm4_moe", head_dim=24, attention_bias=True, first_k_dense_replace=2, n_shared_experts=2, **ROUTED),
    small("glm4_moe-norms-tied", head_dim=24, use_qk_norm=True, tie_word_embeddings=True, **ROUTED),
    small("glm4_moe_lite", n_shared_experts=1, **MLA, **ROUTED),
    small(
        "glm4_moe_lite-types",
        mlp_layer_types=["dense", "sparse", "dense", "sparse"],
        attention_bias=True,
        **{**MLA, "q_lora_rank": None},
        **ROUTED,
    ),
    small("dots1", n_shared_experts=2, first_k_dense_replace=1, **ROUTED),
    small(
        "dots1-windows-bias", n_shared_experts=1, sliding_window=12, max_window_layers=2, attention_bias=True, **ROUTED
    ),
    small("ernie4_5_moe", moe_num_experts=8, moe_k=3, moe_intermediate_size=40, moe_num_shared_experts=2),
    small(
        "ernie4_5_moe-bias-interval",
        moe_num_experts=8,
        moe_k=3,
        moe_intermediate_size=40,
        moe_num_shared_experts=0,
        use_bias=True,
        moe_layer_interval=2,
        moe_layer_end_index=2,
        tie_word_embeddings=False,
    ),
    small("granitemoe", attention_bias=True, tie_word_embeddings=True, **LOCAL),
    small("granitemoeshared", shared_intermediate_size=56, **LOCAL),
    small("granitemoeshared-none", shared_intermediate_size=0, **LOCAL),
    small("hunyuan_v1_moe", num_experts=8, moe_topk=3, head_dim=24, attention_bias=True),
    small("hunyuan_v1_moe-lists", head_dim=8, num_experts=8, moe_topk=[3, 3, 3, 3], tie_word_embeddings=True),
    small("hy_v3", head_dim=24, num_shared_experts=2, attention_bias=True, mlp_bias=True, **EXPERTS),
    small("jetmoe", num_key_value_heads=4, num_attention_heads=12, kv_channels=24, **LOCAL),
    small(
        "jetmoe-untied",
        num_key_value_heads=6,
        num_attention_heads="absent",
        kv_channels=16,
        tie_word_embeddings=False,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    small(
        "laguna",
        head_dim=24,
        layer_types=TYPES,
        sliding_window=12,
        num_attention_heads_per_layer=[12, 6, 6, 12],
        shared_expert_intermediate_size=32,
        **EXPERTS,
    ),
    small(
        "laguna-element-bias", gating="per-element", attention_bias=True, shared_expert_intermediate_size=40, **EXPERTS
    ),
    small("afmoe", head_dim=24, sliding_window=12, num_dense_layers=1, num_shared_experts=1, **EXPERTS),
    small("afmoe-types-bias", layer_types=TYPES, sliding_window=12, attention_bias=True, num_dense_layers=2, **EXPERTS),
    small("mimo_v2_flash", head_dim=24, v_head_dim=16, sliding_window=12, **ROUTED),
    small(
        "mimo_v2_flash-bias",
        head_dim=24,
        v_head_dim=16,
        sliding_window_size=11,
        attention_bias=True,
        layer_types=TYPES,
        **ROUTED,
    ),
    small("minimax_m2", head_dim=24, **LOCAL),
    small("phimoe", sliding_window=12, attention_bias=True, lm_head_bias=True, **TWO),
    small("phimoe-plain-tied", head_dim=24, tie_word_embeddings=True, **TWO),
    small("solar_open", head_dim=24, attention_bias=True, n_shared_experts=2, **ROUTED),
    small("olmoe", attention_bias=True, num_experts=8, num_experts_per_tok=3),
    small("flex_olmo", num_experts=8, num_experts_per_tok=3, tie_word_embeddings=True),
    small("qwen3_vl_moe_text-mlp-only", head_dim=24, mlp_only_layers=[1], tie_word_embeddings=False, **EXPERTS),
    small(
        "glm4v_moe_text",
        head_dim=24,
        first_k_dense_replace=1,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e4,
            "mrope_section": [2, 2, 2],
            "partial_rotary_factor": 0.5,
        },
        **ROUTED,
    ),
    small(
        "llama4_text",
        head_dim=24,
        intermediate_size_mlp=200,
        attention_chunk_size=8,
        interleave_moe_layer_step=2,
        **LOCAL,
    ),
    small(
        "llama4_text-full",
        head_dim=24,
        intermediate_size_mlp=200,
        attention_chunk_size=None,
        use_qk_norm=False,
        attention_bias=True,
        **{**LOCAL, "num_experts_per_tok": 1},
    ),
    small(
        "deepseek_v32", n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, **MLA, **ROUTED, **INDEX
    ),
    small(
        "glm_moe_dsa",
        n_shared_experts=2,
        first_k_dense_replace=1,
        attention_bias=True,
        index_topk_freq=2,
        **MLA,
        **ROUTED,
        **INDEX,
    ),
    small(
        "glm_moe_dsa-pattern",
        n_shared_experts=1,
        indexer_types=["full", "shared", "full", "shared"],
        **MLA,
        **ROUTED,
        **INDEX,
    ),
    small(
        "longcat_flash",
        num_hidden_layers="absent",
        num_layers=2,
        ffn_hidden_size=176,
        expert_ffn_hidden_size=40,
        n_routed_experts=8,
        moe_topk=3,
        zero_expert_num=4,
        head_dim=8,
        extra_params=2 * 4 * 2 * 40 * 96,
        **MLA,
    ),
    small("deepseek_v4", **V4),
    small(
        "deepseek_v4-types",
        **{
            **V4,
            "layer_types": ["heavily_compressed_attention"] * 2 + ["sliding_attention"] * 2,
            "compress_ratios": "absent",
            "mlp_bias": True,
        },
    ),
)


class Runner:
    """Builds the module of a small config on the CPU and counts a forward pass."""

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch", reason="needs CPU PyTorch (pip install gambrel[oracle])")
        transformers = pytest.importorskip("transformers", reason="needs transformers (pip install gambrel[oracle])")
        transformers.logging.set_verbosity_error()
        self.torch.set_num_threads(1)  # the matrices are tiny

    def build(self, config: dict[str, Any], device: str = "cpu") -> Any:
        """The module in evaluation mode, attention and experts as plain products."""
        from transformers import AutoConfig, AutoModelForCausalLM

        copy = json.loads(json.dumps(config))
        made = AutoConfig.for_model(copy.pop("model_type"), **copy)
        made._attn_implementation = "eager"
        made._experts_implementation = "eager"
        self.torch.manual_seed(0)
        with self.torch.device(device):
            return TEXT_MODELS.get(config["model_type"], AutoModelForCausalLM.from_config)(made).eval()

    def run(self, module: Any, new_tokens: int, cache: Any, **options: Any) -> tuple[int, Any]:
        """FLOPs of one forward pass, and what it gave."""
        from torch.utils.flop_counter import FlopCounterMode

        ids = self.torch.randint(0, 300, (BATCH, new_tokens))
        with self.torch.no_grad(), FlopCounterMode(display=False) as counted:
            out = module(input_ids=ids, past_key_values=cache, use_cache=True, **options)
        return counted.get_total_flops(), out


def _llama4(config: Any) -> Any:
    from transformers import Llama4ForCausalLM

    return Llama4ForCausalLM(config)


def _with_head(name: str, stem: str) -> Any:
    """A text model that has no causal class of its own, with an output head."""

    def build(config: Any) -> Any:
        import importlib

        import torch

        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")

        class WithHead(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.config = config
                self.model = getattr(module, f"{stem}TextModel")._from_config(config)
                self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

            def forward(self, input_ids: Any, logits_to_keep: int = 0, **options: Any) -> Any:
                out = self.model(input_ids=input_ids, **options)
                out["logits"] = self.lm_head(out.last_hidden_state[:, -logits_to_keep:])
                return out

        return WithHead()

    return build


TEXT_MODELS = {
    "llama4_text": _llama4,
    "qwen3_vl_moe_text": _with_head("qwen3_vl_moe", "Qwen3VLMoe"),
    "glm4v_moe_text": _with_head("glm4v_moe", "Glm4vMoe"),
}


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner()


def mla_saving(config: dict[str, Any], rows: int, keys: int, layers: int) -> int:
    """FLOPs by which the absorbed form is cheaper than the expanded one, which the module takes; 0 where it is not."""
    h, c, n = config["num_attention_heads"], config["kv_lora_rank"], config["qk_nope_head_dim"]
    r, v = config["qk_rope_head_dim"], config["v_head_dim"]
    up = 2 * c * h * (n + v)
    expanded = keys * up + 2 * h * (n + r + v) * rows * keys
    absorbed = rows * up + 2 * h * (2 * c + r) * rows * keys
    return BATCH * layers * max(expanded - absorbed, 0)


def corrected(variant: Small, counted: int, new: int, context: int, logits: str, real: int) -> float:
    """The module's FLOPs as gambrel counts them; see the head of this file."""
    c, kind = variant.config, variant.config["model_type"]
    rows, layers = BATCH * new, c.get("num_hidden_layers", 2)
    total: float = counted
    if "kv_lora_rank" in c:
        total -= mla_saving(c, new, context, 2 * layers if kind == "longcat_flash" else layers)
    if kind in ("deepseek_v32", "glm_moe_dsa"):
        full = {"glm_moe_dsa": 3, "glm_moe_dsa-pattern": 2}.get(variant.name, layers)
        total -= full * 2 * c["index_n_heads"] * rows * context
    if kind == "longcat_flash":
        mean = layers * rows * c["moe_topk"] * 8 / 12
        total += (mean - real) * 6 * c["hidden_size"] * c["expert_ffn_hidden_size"]
    if kind == "llama4_text":
        sparse = layers // c.get("interleave_moe_layer_step", 1)
        total -= sparse * rows * (8 - c["num_experts_per_tok"]) * 6 * c["hidden_size"] * c["intermediate_size"]
        if chunk := c.get("attention_chunk_size"):
            kept, own = min(context, chunk + new - 1), context - (context - new) // chunk * chunk
            total -= 3 * rows * (kept - own) * 4 * c["num_attention_heads"] * c["head_dim"]
    if kind == "deepseek_v4" and logits == "last":
        total -= 2 * (rows - BATCH) * c["hc_mult"] ** 2 * c["hidden_size"]
    return total


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("variant", SMALL, ids=str)
def test_parameters(variant: Small, runner: Runner) -> None:
    """Parameters equal the module's; weight bytes of the operators equal the streamed weights where all are dense."""
    module = runner.build(variant.config, "meta")
    reading = read_config(variant.config)
    right = sum(p.numel() for p in module.parameters()) - variant.extra_params
    assert totals.params_total(reading.arch.tensors()) == right


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("variant", SMALL, ids=str)
def test_flops(variant: Small, runner: Runner) -> None:
    """FLOPs of a prefill, a chunk, a decode step and a last row, exactly."""
    module = runner.build(variant.config)
    picked: list[int] = []
    if variant.config["model_type"] == "longcat_flash":
        for layer in module.model.layers:
            layer.mlp.router.register_forward_hook(lambda _, __, out: picked.append(int((out[2] < 8).sum())))
    cache, context = None, 0
    right, got = {}, {}
    for name, (new, logits) in STEPS.items():
        context += new
        picked.clear()
        counted, out = runner.run(module, new, cache, logits_to_keep=0 if logits == "all" else 1)
        cache = out.past_key_values
        right[name] = corrected(variant, counted, new, context, logits, sum(picked))
        step = Step(BATCH, new, context, causal=False, logits=logits)
        got[name] = sum(gambrel_flops(variant.config, step).values())
    assert got == right


def scores_of(config: dict[str, Any], step: Step) -> float:
    """Attention FLOPs of the kernels alone; an indexer's scores apart."""
    reading = read_config(config)
    found = reading.arch.ops(step, reading.precision.numerics())
    kernels = [op for op in found if op.role == "attention" and op.name != "index_scores"]
    return sum(op.cost.flops * op.count for op in kernels)


#: Variants whose scores depend on a choice or a pattern, and a head's widths (keys and values) that FLOPs count.
CHOICES = {
    "deepseek_v32": (24 + 8 + 16, 2 * 40 + 8),
    "glm_moe_dsa": (24 + 8 + 16, 2 * 40 + 8),
    "deepseek_v4": (32 + 32,),
    "deepseek_v4-types": (32 + 32,),
    "mimo_v2_flash": (24 + 16,),
    "laguna": (24 + 24,),
    "afmoe": (24 + 24,),
    "llama4_text": (24 + 24,),
    "phimoe": (8 + 8,),
    "dots1-windows-bias": (8 + 8,),
}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHOICES)
def test_causal_scores(name: str, runner: Runner) -> None:
    """As many scores as the module has probabilities above 0, under masks, windows, chunks and a choice of 3 keys."""
    config = next(variant.config for variant in SMALL if variant.name == name)
    config = {**config, "index_topk": 3} if "index_topk" in config else config
    module = runner.build(config)
    cache, context = None, 0
    for new in (20, 5, 1, 3):
        context += new
        _, out = runner.run(module, new, cache, output_attentions=True)
        cache = out.past_key_values
        scores = sum(int((probabilities > 0).sum()) for probabilities in out.attentions)
        assert scores_of(config, Step(BATCH, new, context)) in {2 * scores * width for width in CHOICES[name]}


@pytest.mark.parametrize("variant", SMALL, ids=str)
def test_weights_are_read_once(variant: Small) -> None:
    """Over many rows every expert is hit, and the operators read exactly the streamed weights."""
    reading = read_config(variant.config)
    found = reading.arch.ops(Step(1, 10**6, 10**6), reading.precision.numerics())
    read = sum(op.cost.expected_weight_bytes * op.count for op in found)
    assert read == pytest.approx(totals.weight_bytes(reading.arch.tensors(), streamed_only=True), rel=1e-12)


@pytest.mark.parametrize("variant", SMALL, ids=str)
def test_grid_is_scalar(variant: Small) -> None:
    """A grid of workloads costs what each of its points costs."""
    np = pytest.importorskip("numpy")
    reading = read_config(variant.config)
    numerics = reading.precision.numerics()
    new, context = np.array([1.0, 5.0, 40.0, 1.0]), np.array([0.0, 25.0, 40.0, 300.0])
    grid = [op.cost.values() for op in reading.arch.ops(Step(3, new, context), numerics)]
    for i in range(4):
        point = [op.cost.values() for op in reading.arch.ops(Step(3, int(new[i]), int(context[i])), numerics)]
        for left, right in zip(grid, point, strict=True):
            assert [float(np.broadcast_to(x, 4)[i]) for x in left] == pytest.approx([float(x) for x in right])


def test_a_chunk_is_a_difference_of_prefills() -> None:
    """Scores with entries: a prefill of s is a prefill of c and a chunk of s - c, whatever the choice."""
    from gambrel.model.compressed import entry_scores

    for top_k in (None, 1, 3):
        whole = entry_scores(Step(2, 57, 57), 4, top_k)
        assert whole == entry_scores(Step(2, 31, 31), 4, top_k) + entry_scores(Step(2, 26, 57), 4, top_k)
        assert whole == 2 * sum(t // 4 if top_k is None else min(t // 4, top_k) for t in range(1, 58))


STRANGE = ("7", 0, -3, None, [1, 2], {}, 2.5, True, 10**12)


@pytest.mark.parametrize("variant", SMALL, ids=str)
def test_broken_configs_are_refused(variant: Small) -> None:
    """Whatever stands behind a key, it is read or refused with a ConfigError; nothing else comes out."""
    for key in variant.config:
        if key != "model_type":
            for value in STRANGE:
                _read({**variant.config, key: value})
            _read({k: v for k, v in variant.config.items() if k != key})


def _read(config: dict[str, Any]) -> None:
    try:
        reading = read_config(config)
    except ConfigError:
        return
    assert totals.params_total(reading.arch.tensors()) > 0
    reading.arch.ops(Step(1, 4, 8), reading.precision.numerics())
    reading.arch.caches(reading.precision.numerics())


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("hunyuan_v1_moe", {"use_cla": True}, "use_cla"),
        ("minimax_m2", {"attn_type_list": [1, 0, 1, 1]}, "attn_type_list"),
        ("minimax_m2", {"shared_intermediate_size": 64}, "shared_intermediate_size"),
        ("deepseek_v4", {"compress_ratios": [0, 4, 64, 4]}, "compress_ratios"),
        ("deepseek_v4", {"compress_ratios": [0, 4]}, "compress_ratios"),
        ("deepseek_v4", {"n_shared_experts": 2}, "n_shared_experts"),
        ("glm_moe_dsa", {"indexer_types": ["shared", "full", "full", "full"]}, "indexer_types"),
        ("laguna", {"num_attention_heads_per_layer": [12, 6]}, "num_attention_heads_per_layer"),
        ("laguna", {"gating": "per-word"}, "gating"),
        ("jetmoe", {"num_attention_heads": 7}, "num_attention_heads"),
        ("glm4_moe", {"num_experts_per_tok": 9}, "9 experts per token of 8"),
        ("glm4_moe", {"num_experts": 9}, "contradictory"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok"),
    ],
)
def test_refusals_name_the_key(name: str, change: dict[str, Any], words: str) -> None:
    config = next(variant.config for variant in SMALL if variant.name == name)
    with pytest.raises(ConfigError, match=words):
        read_config({**config, **change})


def test_every_family_has_a_small_model() -> None:
    """Every type of the two modules that transformers has is among the small models."""
    from gambrel.model.families import compressed, moe

    types = {*moe.FAMILIES, *compressed.FAMILIES}
    assert all(find(name) is not None for name in types)
    # hunyuan and deepseek_ref are other names; the rest is not in transformers 5.24
    others = {"hunyuan", "deepseek_ref", "deepseek", "bailing_moe", "step3_text"}
    assert types - {variant.config["model_type"] for variant in SMALL} == others
