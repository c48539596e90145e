"""Bound / measured for every published measurement, printed and written to docs/measured.md.

python tests/measured/report.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import rows as measured
import serving
import silicon

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "measured.md"

HEAD = """# Bounds against published measurements

Written by `python tests/measured/report.py`; `tests/measured/` asserts the same. Every number below is computed from
measurements that other people published, and from the bounds of gambrel for the same work on the same device at its
datasheet's peak and bandwidth.

*bound / measured* is the share of the possible speed that was reached. Above 1 the measurement would be faster than
the bound, so either the bound or the measurement would be wrong. *rows* counts the rows compared; *min*, *10 %*,
*median*, *90 %*, *max* are the distribution of bound / measured over them.
"""

SILICON = """## Kernels

One kernel a row: a GEMM (m rows, sizes by m), attention (sizes by tokens of KV over the whole batch), a fused
mixture-of-experts layer (sizes by tokens m). The bound of a GEMM or an attention kernel is that of gambrel's operator:
its FLOPs against the peak of the dtype that is multiplied, or its inputs, weights, cache and outputs, each once,
against the bandwidth, whichever takes longer. Weight-only formats multiply in bf16. Scores over an fp8 cache count as
fp8 products, whatever the kernel did: the faster, so the bound holds. Inputs and outputs count as bf16. The bound of a
MoE layer reads the fewest experts that the routing can need (all tokens agree) and leaves activations out; under
expert parallelism 1/ep of the token-expert pairs arrive, at least one.
"""

SERVING = """## Served models

The bound of a step is max(ΣFLOPs / peak, Σbytes / bandwidth) over the whole model, without communication, with the
fewest experts. A request is one prefill and one decode step for each further token, over the growing context; all
requests of a batch at once, which is the least work, also where their cache did not fit. A throughput is compared as
the time of one token at the largest batch that the whole memory holds with requests half done on average; prefills
overlap with decoding. TTFT is compared with the prompt alone; TPOT with the running batch by Little's law where one
worker served every request and the cache of all fits, with batch 1 elsewhere, since concurrency is not the running
batch. ITL is compared with batch 1. LLM-Inference-Bench counts as 16 bit and tensor parallel over the devices named
(llama.cpp: pooled), elsewhere n devices count as one with n times the peak, bandwidth and memory, so the bound holds
however the work was split. Where a precision leaves room, the fewest bytes and the fastest products are taken, and
where a device's variant is not named, the fastest. In LLM-Inference-Bench the number of sequences follows from a
row's own throughput, sequences · (in + out) / latency: in the rows of llama.cpp it is one, whatever the batch column
says.
"""

RULES = {
    silicon.A100_DECODE: "`generation_attention_a100_sxm.csv`, every row of that framework and version, fast or not: "
    "they imply up to {worst:.2f} times the bandwidth of the memory ({over} of them are above the bound)",
    silicon.H100_INT8: "rows of that dtype and device that imply more than peak FLOP/s (this copy of the data holds no "
    "int8_wo rows of the H100)",
    serving.STOPPED: "`serve_llm_inference_bench.csv`: the lengths asked for exceed what the engine or the model takes, "
    "so that only the prompt was processed",
    serving.UNKNOWN_MODEL: "gambrel has no config of it",
    serving.UNKNOWN_DEVICE: "Intel PVC and Max 1550, SambaNova SN40L",
}

SOURCES = """## Sources and licences

| data | from | licence |
|---|---|---|
| GEMM, attention, MoE kernels on A100, H100, H200, B200 | ai-dynamo/aiconfigurator, systems/data | Apache-2.0 |
| TTFT and TPOT by configuration | ai-dynamo/aiconfigurator, silicon_sample | Apache-2.0 |
| throughput, TTFT and ITL tables | NVIDIA/TensorRT-LLM, docs, performance overview | see the repository |
| latency of 7B to 70B models | argonne-lcf/LLM-Inference-Bench | BSD-3-Clause |

The data themselves are not part of gambrel.
"""


def _table(head, lines):
    marks = ["---" if i < len(head) - 6 else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, marks, *lines))


def _distributions(rows, names, fields):
    lines = []
    for key, group in measured.groups(rows, *fields).items():
        numbers = measured.quantiles([row.ratio for row in group])
        lines.append([*key, f"{len(group):,}", *(f"{value:.{3 if value >= 0.01 else 5}f}" for value in numbers)])
    return _table([*names, "rows", "min", "10 %", "median", "90 %", "max"], lines)


def _order(rows):
    """By kind, then device, then size."""
    gpus = list(silicon.NAMES.values())
    sizes = [*measured.labels(silicon.M_LIMITS, "m"), *measured.labels(silicon.KV_LIMITS)]
    return sorted(rows, key=lambda row: (row.kind, gpus.index(row.gpu), sizes.index(row.size)))


def _summary(found):
    lines = []
    for name, rows in found.items():
        top = measured.best(rows)
        lines.append(
            [
                name,
                f"{len(rows):,}",
                f"{sum(bool(row.aside) for row in rows):,}",
                f"{len(measured.compared(rows)):,}",
                f"**{len(measured.faster(rows))}**",
                f"{top.ratio:.3f}",
                f"{top.gpu}, {top.text}",
            ]
        )
    head = ["measurements", "rows", "set aside", "compared", "faster than the bound", "nearest", "which"]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] + ["---:"] * 5 + ["---"], *lines))


def _rules(rows):
    counts = dict.fromkeys(RULES, 0) | measured.asides(rows)
    aside = [row for row in rows if row.aside == silicon.A100_DECODE]
    over = sum(row.ratio > 1 for row in aside)
    worst = max((row.ratio for row in aside), default=0)
    lines = [[rule, f"{counts[rule]:,}", text.format(worst=worst, over=over)] for rule, text in RULES.items()]
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in (["rule", "rows", "why"], ["---", "---:", "---"], *lines)
    )


def _shared_heads(row):
    heads, kv_heads = re.search(r"(\d+) heads, (\d+) KV", row.text).groups()
    return heads != kv_heads


def _bad_file(rows):
    """What is wrong with the file that is set aside: its largest caches, by whether query heads share KV heads."""
    large = [row for row in rows if row.gpu == silicon.NAMES["a100_sxm"] and row.size.startswith(">")]
    median = lambda found: f"{measured.quantiles([row.ratio for row in found])[2]:.2f}"
    bad = [row for row in large if row.aside]
    return (
        f"The decode attention that is set aside is wrong in the rows whose query heads share KV heads: with more than "
        f"{silicon.KV_LIMITS[-1]:,} tokens of KV their median of bound / measured is "
        f"{median([row for row in bad if _shared_heads(row)])}, that of the other rows of the same file "
        f"{median([row for row in bad if not _shared_heads(row)])}, that of the other engines on the A100 "
        f"{median(measured.compared(large))}. They are as fast as if half of the cache had been read."
    )


def _notes(found):
    kernels = [
        row for kind in ("GEMM", "prefill attention", "decode attention") for row in measured.compared(found[kind])
    ]
    small = [row for row in kernels if row.fits_l2 and row.binding == "memory"]
    balanced = [row for row in found["MoE"] if "balanced" in row.text and row.expected_s > row.measured_s]
    skewed = [row for row in found["MoE"] if "balanced" not in row.text and row.expected_s > row.measured_s]
    top = max(small, key=lambda row: row.ratio)
    lines = [
        _bad_file(found["decode attention"]),
        f"Kernels benchmarked in a loop could find their operands in the L2 cache and beat the bound on memory traffic. "
        f"None did: of {len(small):,} memory-bound rows whose operands all fit in the L2, the nearest reached "
        f"{top.ratio:.3f} ({top.gpu}, {top.text}). So no rule about the L2 is needed.",
        f"Reading the experts that uniform routing would touch is an expectation, not a bound: {len(skewed):,} MoE rows "
        f"with power-law routing are faster than it.",
    ]
    if balanced:
        listed = "; ".join(f"{row.gpu}, {row.text}, {row.measured_s * 1e6:.0f} µs" for row in balanced)
        lines.append(
            f"With balanced routing it should hold, and {len(balanced)} rows are faster than it: {listed}. Those kernels "
            f"cannot have read the experts that balanced routing touches. They are below the least bound, and stay in."
        )
    return "\n".join(f"* {line}" for line in lines)


def page(shared):
    """The page as text."""
    kernels = {kind: read(shared / "measured" / "silicon") for kind, read in silicon.READERS.items()}
    served = {name: read(shared / "measured") for name, read in serving.READERS.items()}
    found = {**kernels, **served, "single cases of TensorRT-LLM": serving.case_rows()}
    everything = [row for rows in found.values() for row in rows]
    parts = [HEAD, _summary(found), "\n## Rows set aside\n", _rules(everything), f"\n{SILICON}"]
    for kind, rows in kernels.items():
        parts += [f"### {kind}\n", _distributions(_order(rows), ["kind", "GPU", "size"], ["kind", "gpu", "size"]), ""]
    parts += ["### Notes\n", _notes(found), f"\n{SERVING}"]
    for name, rows in served.items():
        ordered = sorted(rows, key=lambda row: (row.kind, row.gpu, row.size))
        parts += [
            f"### {name}\n",
            _distributions(ordered, ["measured", "device", "engine"], ["kind", "gpu", "size"]),
            "",
        ]
    cases = [
        [row.text, f"{row.bound_s:.4g}", f"{row.measured_s:.4g}", f"{row.ratio:.3f}"] for row in serving.case_rows()
    ]
    head = ["single case, A100 SXM 80 GB, fp16", "bound, s", "measured, s", "bound / measured"]
    rows = (head, ["---", "---:", "---:", "---:"], *cases)
    parts += ["### Single cases\n", "\n".join("| " + " | ".join(line) + " |" for line in rows), f"\n{SOURCES}"]
    return "\n".join(parts)


if __name__ == "__main__":
    text = page(Path(os.environ.get("GAMBREL_SHARED", ROOT.parent / "shared")))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    print(text)
