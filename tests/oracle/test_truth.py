"""Every published config against its true counts: parameters, active parameters, KV bytes per token.

The truth is shared/configs/truth.csv (unique parameters and cache tensors of the transformers 5.24.0 modules); nothing
here needs torch. A config is read with exactly those counts or refused; there is no third way.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from compared import GROUPS, assert_refused, counts, published, truth

from gambrel.model import arch as totals
from gambrel.model.fields import ConfigError
from gambrel.model.precision import Overrides
from gambrel.model.reader import Reading, read_config

#: The families that must be read; a config of any other may be refused (but not misread).
FAMILIES = frozenset(
    """
    llama mistral mixtral qwen2 qwen3 qwen3_moe qwen2_moe gemma gemma2 gemma3 gemma3_text phi3 deepseek_v2 deepseek_v3
    gpt_oss olmo2 gpt2 opt falcon gpt_neox bloom
    """.split()
)

#: Configs whose architectures contradict their model_type: refused, with these words.
CONTRADICTORY = {"QuantTrio__MiniMax-M2-AWQ.json": ("contradictory", "MiniMaxM2ForCausalLM", "mixtral")}

#: Where the truth is the module's and not the model's: file -> KV bytes per token in bf16, reason.
TRUE_KV_BYTES = {
    **dict.fromkeys(
        ("deepseek-ai__DeepSeek-V4-Flash.json", "nvidia__DeepSeek-V4-Flash-NVFP4.json"),
        (50_912, "tests/oracle/test_moe.py: compressed layers keep one entry for several tokens"),
    ),
    "deepseek-ai__DeepSeek-V4-Pro.json": (72_312, "the same"),
    "tiiuae__falcon-40b.json": (
        122_880,
        "the module broadcasts its 8 KV heads before caching; distinct are 60 layers x 8 heads x 64 x 2 x 2 bytes",
    ),
}

#: Files whose module allocates what no token uses; tests/oracle/test_moe.py has the right count.
ZERO_EXPERTS = {
    "meituan-longcat__LongCat-Flash-Chat.json": "the module allocates gate and up of 256 zero-compute experts"
}

#: Rows whose note begins so count a separate output head in total_params_if_untied alone.
TIED_BY_MISTAKE = "transformers 5.24.0 ties"

#: Files found in the wild that are broken or unusual: how many parameters, or which words the refusal must have.
ODD: dict[str, int | tuple[str, ...]] = {
    "odd__EleutherAI-gpt-neo-1.3B-llm-analysis-keys.json": 1_315_575_808,
    "odd__Kimi-K2-tt-forge-96-keys.json": 1_026_408_209_408,
    "odd__Qwen3-235B-A22B-FP8-model_type-qwen2_moe.json": ("contradictory", "Qwen3MoeForCausalLM", "qwen2_moe"),
    "odd__deepseek-inference-config_16B.json": ("missing key model_type", "--types"),
    "odd__deepseek-inference-config_671B.json": ("missing key model_type", "--types"),
    "odd__fake_dsa_hf_model.json": 671_877_929_216,
    "odd__fake_hf_model.json": 596_049_920,
    "odd__fake_mla_hf_model.json": 671_026_404_352,
    "odd__gpu_poor-EleutherAI-pythia-12b.json": ("missing key model_type", "GPTNeoXForCausalLM"),
    "odd__gpu_poor-NousResearch-Llama-2-13b-hf.json": ("missing key model_type", "LlamaForCausalLM"),
    "odd__gpu_poor-microsoft-phi-1_5.json": ("missing key model_type", "MixFormerSequentialForCausalLM"),
    "odd__gpu_poor-tiiuae-falcon-7b.json": ("missing key model_type", "RWForCausalLM"),
    "odd__llama3-70b-architecture-Llama3ForCausalLM.json": 70_553_706_496,
    "odd__mistral-7b-apex_plus-edited.json": 7_013_142_528,
}

#: Odd files that lack only their model_type: who follows the message gets the model's own count.
ODD_WITH_TYPE = {
    "odd__gpu_poor-EleutherAI-pythia-12b.json": ("gpt_neox", 11_846_072_320),
    "odd__gpu_poor-NousResearch-Llama-2-13b-hf.json": ("llama", 13_015_864_320),
    "odd__gpu_poor-tiiuae-falcon-7b.json": ("falcon", 6_921_720_704),
}

#: Groups of parameters that mean the same: gambrel's name -> column of the truth.
SAME_GROUP = {**GROUPS, "vision": "multimodal"}

SHARED = Path(os.environ.get("GAMBREL_SHARED", Path(__file__).resolve().parents[3] / "shared"))
CONFIGS = SHARED / "configs"
ABSENT = pytest.param("", marks=pytest.mark.skip(reason=f"no shared configs at {CONFIGS} (set GAMBREL_SHARED)"))
FILES = sorted(path.name for path in (CONFIGS / "models").glob("*.json")) or [ABSENT]


def untied_head(row: dict[str, str]) -> int:
    """Parameters of an output head that the module ties although the config does not."""
    if not row["truth_note"].startswith(TIED_BY_MISTAKE):
        return 0
    return int(row["total_params_if_untied"]) - int(row["total_params"])


def true_counts(file: str, row: dict[str, str]) -> dict[str, int]:
    """Total and active parameters, parameters by group, KV bytes per token."""
    head = untied_head(row)
    right = {
        "total": int(row["total_params"]) + head,
        "active": int(row["active_params"] or row["total_params"]) + head,
    }
    if row["kv_bytes_per_token_bf16"]:
        right["kv_bytes_per_token"], _ = TRUE_KV_BYTES.get(file, (int(row["kv_bytes_per_token_bf16"]), ""))
    if (
        published(SHARED, file).get("model_type") not in FAMILIES
        or int(row["ssm_linear_attn"])
        or int(row["moe_other"])
    ):
        return right  # groups without a counterpart, or which the tests of their own table compare
    right |= {group: int(row[column]) for group, column in SAME_GROUP.items()}
    # The truth has learned positions under "embed_other", OPT's projections from and to a narrow table under "other".
    right["embedding and head"] = int(row["embed_params"]) + int(row["embed_other"]) + int(row["other"]) + head
    right["embedding and head"] += 0 if int(row["lm_head_tied"]) else int(row["lm_head_params"])
    return right


def counts_of(reading: Reading) -> dict[str, float]:
    """The same of a config as gambrel reads it."""
    groups = totals.params_by_group(reading.arch.tensors())
    return {
        **counts(reading),
        "embedding and head": sum(groups.get(name, 0) for name in ("embedding", "head", "other")),
        **{group: groups.get(group, 0) for group in SAME_GROUP},
    }


@pytest.mark.parametrize("file", FILES)
def test_config(file: str) -> None:
    """A config is read with exactly its true counts, or refused; the listed families are never refused."""
    config = published(SHARED, file)
    must_be_read = config.get("model_type") in FAMILIES and not file.startswith("odd__") and file not in CONTRADICTORY
    try:
        reading = read_config(config, Overrides(kv="bf16"))
    except ConfigError:
        if must_be_read:
            raise
        return
    row = truth(SHARED, file)
    if file in ZERO_EXPERTS:
        pytest.skip(ZERO_EXPERTS[file])
    if row["status"] != "ok":
        pytest.skip(f"read, but nobody knows the true counts: {row['reason']}")
    right = true_counts(file, row)
    got = counts_of(reading)
    assert {name: got[name] for name in right} == right


def test_every_listed_family_has_a_config(shared: Path) -> None:
    """The truth covers the listed families, Qwen2-MoE alone excepted (its only config is an odd one)."""
    files = (path.name for path in (shared / "configs" / "models").glob("*.json"))
    found = {published(SHARED, file).get("model_type") for file in files if not file.startswith("odd__")}
    assert found >= FAMILIES - {"qwen2_moe"}


@pytest.mark.parametrize("file", [*ODD, *CONTRADICTORY])
def test_odd_config(file: str, shared: Path) -> None:
    """A broken or unusual config is refused with words that name the trouble, or read with exactly the true count."""
    config = published(shared, file)
    expected = ODD[file] if file in ODD else CONTRADICTORY[file]
    if isinstance(expected, int):
        assert totals.params_total(read_config(config).arch.tensors()) == expected
        return
    assert_refused(config, expected)


def test_odd_table_is_complete(shared: Path) -> None:
    """No odd file is left out."""
    assert {path.name for path in (shared / "configs" / "models").glob("odd__*.json")} == set(ODD)


@pytest.mark.parametrize("file", ODD_WITH_TYPE)
def test_odd_config_with_the_missing_type(file: str, shared: Path) -> None:
    """Who adds the model_type that the refusal asks for gets the model's own count, not a default's."""
    config = published(shared, file)
    model_type, params = ODD_WITH_TYPE[file]
    assert totals.params_total(read_config({**config, "model_type": model_type}).arch.tensors()) == params
