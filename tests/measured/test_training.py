"""Utilisation as others report it: llm-foundry's and Megatron-Bridge's tables, from shape and tokens/s alone."""

from __future__ import annotations

import csv
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import gambrel
from gambrel.api import Model
from gambrel.cost.training import CONVENTIONS, Rate, Work, recompute, utilisation
from gambrel.model.reader import read_config


def read(shared, name):
    with (shared / "measured" / name).open(newline="") as file:
        return list(csv.DictReader(file))


# llm-foundry ------------------------------------------------------------------------------------


@cache
def mpt(width, heads, layers, vocab, positions):
    """The shape that llm-foundry counts: GPT-2's, with learned positions, biases and a tied table."""
    config = {"model_type": "gpt2", "n_embd": width, "n_head": heads, "n_layer": layers, "vocab_size": vocab}
    config = {**config, "n_positions": positions, "tie_word_embeddings": True}
    return Model("mpt", "test", config, read_config(config))


def test_every_row_of_llm_foundry(shared, tell):
    rows = read(shared, "train_llm_foundry.csv")
    errors = []
    for row in rows:
        shape = (int(row[key]) for key in ("d_model", "n_heads", "n_layers", "vocab", "seq_len"))
        model = mpt(*shape)
        assert model.params_total == int(row["nparams"]), row["model"]
        again = recompute("full" if row["act_ckpt"] == "True" else "none")
        speed = int(row["tokens_s"]) / int(row["gpus"])
        rate = Rate(row["gpu"], float(row["peak_used_tflops"]) * 1e12, row["precision"], speed)
        found = utilisation(Work(model, int(row["seq_len"])), rate, CONVENTIONS["llm-foundry"], again)
        for ours, theirs in ((found.mfu, "reported_mfu_pct"), (found.hfu, "reported_hfu_pct")):
            if row[theirs]:
                assert 100 * ours == pytest.approx(float(row[theirs]), rel=1e-3), row
                errors.append(abs(100 * ours / float(row[theirs]) - 1))
    tell(f"llm-foundry: {len(rows)} rows, {len(errors)} MFU and HFU within {max(errors):.3%}")
    assert len(rows) == 145
    assert len(errors) == 290


# Megatron-Bridge --------------------------------------------------------------------------------

#: Models of the table: ours, and the depth of multi-token prediction that is trained.
BRIDGE = {
    "LLAMA3_8B": ("llama-3-8b", 0),
    "LLAMA3_70B": ("llama-3-70b", 0),
    "LLAMA3.1_405B": ("meta-llama__Llama-3.1-405B-Instruct-FP8.json", 0),
    "DeepSeekV3": ("deepseek-v3", 1),
    "DeepSeekV3 (w/ MTP)": ("deepseek-v3", 1),
    "DeepSeekV3 (tokendrop)": ("deepseek-v3", 1),
    "DeepSeekV3 (w/o MTP)": ("deepseek-v3", 0),
    "Kimi_K2": ("kimi-k2", 0),
    "GPT OSS 120B": ("gpt-oss-120b", 0),
    "Qwen3_235B_a22B": ("qwen3-235b-a22b", 0),
    "Qwen3_235B_a22B (tokendrop)": ("qwen3-235b-a22b", 0),
    "Qwen3_30B_a3B": ("qwen3-30b-a3b", 0),
    "Qwen3_30B_a3B (tokendrop)": ("qwen3-30b-a3b", 0),
}
PACKED = "fine-tuning on packed sequences whose lengths are not published"
HYBRID = "a hybrid whose Mamba layers Megatron-Bridge takes to be 2 x hidden wide, which they are not"
UNKNOWN = "its sparse attention is counted by terms that the table's version does not name"
UNGATED = "counted by a version that took GPT-OSS's experts for ungated and left its windows out"


#: TFLOP/s and tokens/s are averages of their own: how far apart they may be beyond their rounding.
APART = 2e-4
#: Release, model and tokens/s of the one row that the other rows of its model contradict, by 0.2 %.
CONTRADICTED = ("25.11 NeMo Container", "DeepSeekV3 (w/o MTP)", "3139.0")


def reason(row):
    """Why a row is not compared with the convention; None where it is."""
    if row["phase"] != "Pre-Training Performance":
        return PACKED
    if row["model"].startswith("Nemotron"):
        return HYBRID
    if row["model"] not in BRIDGE:
        return UNKNOWN
    if row["model"] == "GPT OSS 120B" and row["precision"] != "MXFP8":
        return UNGATED
    return None


def interval(row):
    """GFLOP per token that the printed TFLOP/s and tokens/s leave possible.

    Rows of one model and length contradict each other beyond their printed digits, since tokens/s were made from a
    number rounded before: whole sequences a second of the whole cluster (26.04.01, 26.06.01, 26.08), or a step time in
    hundredths of a second (all others); every row is consistent with one of the two.
    """
    gpus, speed, sequences = int(row["gpus"]), float(row["tokens_s_gpu"]), int(row["gbs"])
    rate, seq = float(row["tflops_gpu"]) * 1e3, int(row["seq"])
    each_second = gpus * speed / seq
    if each_second == round(each_second):
        low, high = ((each_second + side / 2) * seq / gpus for side in (-1, 1))
    else:
        step_s = sequences * seq / (gpus * speed)
        slack = 0.005 + step_s / speed / 2
        assert abs(round(step_s, 2) - step_s) < 1.05 * step_s / speed / 2, row
        low, high = (sequences * seq / gpus / (step_s + side * slack) for side in (1, -1))
    return (rate - 500) / high * (1 - APART), (rate + 500) / low * (1 + APART)


@cache
def per_token(name, mtp, seq):
    work = Work(gambrel.load_model(name), seq, mtp=mtp)
    return CONVENTIONS["megatron-bridge"].count(work).flops / 1e9


def bridge(row, shared):
    name, mtp = BRIDGE[row["model"]]
    name = str(shared / "configs" / "models" / name) if name.endswith(".json") else name
    return per_token(name, mtp, int(row["seq"]))


def test_every_row_of_megatron_bridge_whose_model_is_known(shared, tell):
    rows = read(shared, "train_megatron_bridge.csv")
    aside = Counter(reason(row) for row in rows if reason(row))
    outside = []
    for row in rows:
        if reason(row) is None:
            low, high = interval(row)
            ours = bridge(row, shared)
            if not low <= ours <= high:
                outside.append((row["release"], row["model"], row["tokens_s_gpu"]))
    assert outside == [CONTRADICTED]
    tell(f"Megatron-Bridge: {len(rows) - sum(aside.values())} rows within their rounding; set aside: {dict(aside)}")
    assert len(rows) == 158
    assert sum(aside.values()) == 71


def test_gpt_oss_as_older_versions_counted_it(shared):
    """Two matrices an expert instead of three, and half of all keys in every layer: the rows come out."""
    config = gambrel.load_model("gpt-oss-120b").config
    layers, d = config["num_hidden_layers"], config["hidden_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    third = 6 * layers * config["num_experts_per_tok"] * d * config["intermediate_size"]
    rows = [row for row in read(shared, "train_megatron_bridge.csv") if reason(row) == UNGATED]
    for row in rows:
        seq = int(row["seq"])
        work = Work(gambrel.load_model("gpt-oss-120b"), seq)
        ours = CONVENTIONS["megatron-bridge"].count(work).weights - third + 6 * layers * heads * seq
        low, high = interval(row)
        assert low <= ours / 1e9 <= high, row
    assert len(rows) == 15


def test_nemotron_nano_with_mamba_layers_as_wide_as_megatron_bridge_takes_them(shared):
    """Inner width 2d instead of heads x head_dim, and 7 FLOPs for each element of state: the rows come out."""
    model = gambrel.load_model("nemotron-3-nano-30b-a3b")
    c, seq = model.config, 8192
    d, state = c["hidden_size"], c["ssm_state_size"]
    mamba = c["hybrid_override_pattern"].count("M")
    projected = 2 * 2 * d + 2 * c["n_groups"] * state + c["mamba_num_heads"]
    theirs = 3 * mamba * (2 * d * projected + 7 * 2 * d * state + 2 * 2 * d * d)
    work = Work(model, seq)
    own = [op for op in work.ops() if op.name in ("in_proj", "out_proj", "state_space")]
    ours = CONVENTIONS["megatron-bridge"].count(work).flops - 3 * sum(op.cost.flops * op.count for op in own) / seq
    rows = [row for row in read(shared, "train_megatron_bridge.csv") if row["model"] == "Nemotron_3_Nano"]
    inside = [low <= (ours + theirs) / 1e9 <= high for low, high in map(interval, rows)]
    assert sum(inside) >= 12
    assert len(rows) == 15


def test_peak_memory_beside_published_figures(shared):
    """No estimate is above what was reserved, those without a pipeline are within a third; the docs show the table."""
    import memory

    found = list(zip(memory.ROWS, memory.estimates(shared), strict=True))
    assert all(ours <= row[-1] for row, ours in found)
    assert all(ours >= 0.66 * row[-1] for row, ours in found if row[5].pp == 1)
    assert memory.table(shared) in (Path(__file__).parents[2] / "docs" / "training.md").read_text()
