"""Writes docs/configs.md: every shared config, what gambrel reads in it, and how that compares with PyTorch's modules.

python tests/oracle/configs_table.py [--no-trace]    needs the shared configs, and the extra `torch` for the traces.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import warnings
from pathlib import Path

from gambrel import GambrelError, units
from gambrel.api import Model
from gambrel.model.precision import Overrides
from gambrel.model.reader import read_config

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("GAMBREL_SHARED", ROOT.parent / "shared")) / "configs"
PAGE = ROOT / "docs" / "configs.md"
TOKENS = 512
#: Where the true count itself is explained away, by file: the trap that the data's notes name.
V4_CACHE = "equal but for the cache: the truth counts buffers as growing, tests/oracle/test_moe.py"
TRAPS = {
    "deepseek-ai__DeepSeek-V4-Flash.json": V4_CACHE,
    "deepseek-ai__DeepSeek-V4-Pro.json": V4_CACHE,
    "nvidia__DeepSeek-V4-Flash-NVFP4.json": V4_CACHE,
    "meituan-longcat__LongCat-Flash-Chat.json": "equal but for 256 zero-compute experts that transformers allocates",
    "tiiuae__falcon-40b.json": "equal; the module's cache holds broadcast heads, 8 are needed",
}
STEP_FORM = (
    "differs: a recurrence is counted in its step form and its convolution as vector work, the module runs chunks and "
    "products; equal once corrected, tests/oracle/test_hybrid.py"
)
BEST_KEYS = (
    "differs: the indexer's scores are causal and attention meets the best keys alone, the module multiplies all and "
    "masks; equal once corrected, tests/oracle/test_moe.py"
)
NO_SOURCE = "differs: the causal class is traced, which has no source to attend to; tests/oracle/test_encdec.py"
#: Why FLOPs differ from the trace's, by model type; each is checked on small models by the test that it names.
DIFFERS = {
    **dict.fromkeys(
        "mamba mamba2 falcon_mamba falcon_h1 bamba zamba jamba nemotron_h granitemoehybrid qwen3_next qwen3_5 "
        "qwen3_5_moe olmo_hybrid kimi_linear lfm2 lfm2_moe lfm2_vl minimax minimax_m1 xlstm rwkv".split(),
        STEP_FORM,
    ),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), BEST_KEYS),
    **dict.fromkeys(("bart", "mbart", "pegasus", "whisper"), NO_SOURCE),
    "deepseek_v4": "equal in all; index scores count as attention here and as products there, tests/oracle/test_moe.py",
    "llama4": "differs: the module multiplies every token by every expert; tests/oracle/test_moe.py",
    "gpt_neo": "differs: the module's cache keeps every key of window layers; tests/oracle/test_dense.py",
    "diffllama": "differs: the two maps' difference meets V once, in the module each does; tests/oracle/test_dense.py",
}
INTRO = """# Every config, read

Written by `python tests/oracle/configs_table.py`. One row per config file of the shared collection: parameters, active
parameters, KV cache of one token in bf16 with every layer counted as growing, state that does not grow, and how these
compare with the modules of transformers 5.24 on the meta device. *FLOPs* compares matrix products and attention of a
prefill of {tokens} tokens and of the decode step after it, every key and every row through the head, with a trace of
the module's own code: equal to the unit, or what differs.

{summary}

| config | model type | parameters | active | KV a token | fixed state | count | FLOPs, prefill and decode |
| --- | --- | ---: | ---: | ---: | ---: | --- | --- |
"""


def truths():
    with (SHARED / "truth.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def right_total(truth):
    """The true count; untied where the note says that transformers ties by mistake."""
    note = truth["truth_note"]
    return truth["total_params_if_untied"] if note.startswith("transformers 5.24.0 ties") else truth["total_params"]


def count_verdict(truth, model):
    """Equal, or the reason why not."""
    if truth["file"] in TRAPS:
        return TRAPS[truth["file"]]
    if truth["status"] != "ok":
        return f"no module to compare with ({truth['reason'].split(':')[-1].strip()[:60]})"
    wrong = []
    if str(model.params_total) != right_total(truth):
        wrong.append(f"parameters {truth['total_params']}")
    if truth["active_params"] and str(model.params_active) != truth["active_params"]:
        wrong.append(f"active {truth['active_params']}")
    if truth["kv_bytes_per_token_bf16"] and str(model.kv_bytes_per_token) != truth["kv_bytes_per_token_bf16"]:
        wrong.append(f"KV {truth['kv_bytes_per_token_bf16']}")
    if not wrong:
        return "equal, untied as published" if "ties" in truth["truth_note"] else "equal"
    return f"module has {', '.join(wrong)}"


def flops_verdict(model):
    """Equal, or what differs between the table and the trace."""
    from gambrel.cost.verify import verify

    try:
        result = verify(model, 1, TOKENS)
    except GambrelError as error:
        return f"not traced: {str(error)[:90]}"
    differs = [
        f"{row['phase']} {row['role']} {row['difference']:+,} ({row['operator'][:60]})"
        for row in result.rows
        if row["difference"]
    ]
    if not differs:
        return "equal"
    return DIFFERS.get(model.reading.model_type, "; ".join(differs)[:300])


def row(truth, traced):
    config = json.loads((SHARED / "models" / truth["file"]).read_text())
    name, kind = truth["file"].removesuffix(".json").replace("__", "/"), config.get("model_type", "-")
    try:
        reading = read_config(config, Overrides(kv="bf16"))
    except GambrelError as error:
        return [name, kind, "", "", "", "", f"refused: {error}", ""]
    model = Model(name, "shared", config, reading)
    flops = flops_verdict(model) if traced and truth["status"] == "ok" else ""
    return [
        name,
        kind,
        f"{model.params_total:,}",
        f"{model.params_active:,}",
        f"{model.kv_bytes_per_token:,} B",
        units.binary(model.fixed_state_bytes) if model.fixed_state_bytes else "",
        count_verdict(truth, model),
        flops,
    ]


def summary(rows):
    counts = [cells[6] for cells in rows]
    equal = sum(verdict.startswith("equal") for verdict in counts)
    refused = sum(verdict.startswith("refused") for verdict in counts)
    missing = sum(verdict.startswith("no module") for verdict in counts)
    flops, differ = (sum(cells[7].startswith(word) for cells in rows) for word in ("equal", "differs"))
    untraced = sum(cells[7].startswith("not traced") for cells in rows)
    others = len(rows) - equal - refused - missing
    return (
        f"{len(rows)} configs: {equal} equal to the unit (the trap named where there is one), {missing} without a "
        f"module to compare with, {refused} refused, {others} otherwise. FLOPs equal to the trace's: {flops}; "
        f"different for a stated reason: {differ}; not traced: {untraced}."
    )


def main():
    warnings.simplefilter("ignore")
    traced = "--no-trace" not in sys.argv
    rows = []
    for index, truth in enumerate(truths(), 1):
        rows.append(row(truth, traced))
        if sys.stderr.isatty():
            print(f"\r{index} {truth['file'][:60]:60}", end="", file=sys.stderr)
    lines = ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |" for cells in rows]
    PAGE.write_text(INTRO.format(tokens=TOKENS, summary=summary(rows)) + "\n".join(lines) + "\n")
    print(summary(rows))


if __name__ == "__main__":
    main()
