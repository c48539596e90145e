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
    silicon.A100_DECODE: "every row of that framework and version in `generation_attention_a100_sxm.csv`, fast or not; "
    "they imply up to {worst:.2f} times the bandwidth of the memory, and {over} of them are above the bound",
    silicon.H100_INT8: "those rows of that dtype and device; 0 where the files hold no such row",
    serving.STOPPED: "in `serve_llm_inference_bench.csv`, 2,048 tokens in and out: the latency is that of a prefill",
    serving.UNKNOWN_MODEL: "`gambrel models` does not list it",
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


def _table(head, lines, left=1):
    """A markdown table; `left` columns are of words, the rest of numbers."""
    marks = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, marks, *lines))


def _share(value):
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def _distributions(rows, names, fields):
    lines = [
        [*key, f"{len(group):,}", *map(_share, measured.quantiles([row.ratio for row in group]))]
        for key, group in measured.groups(rows, *fields).items()
    ]
    return _table([*names, "rows", "min", "10 %", "median", "90 %", "max"], lines, len(names))


def _order(rows):
    """By kind, then device, then size."""
    gpus = list(silicon.NAMES.values())
    sizes = [*measured.labels(silicon.M_LIMITS, "m"), *measured.labels(silicon.KV_LIMITS)]
    return sorted(rows, key=lambda row: (row.kind, gpus.index(row.gpu), sizes.index(row.size)))


def _summary(found):
    lines = [_summary_line(name, rows) for name, rows in found.items()]
    gemm = [row for row in found["GEMM"] if row.kind.removeprefix("GEMM ") in silicon.HALF]
    lines.insert(1, _summary_line("of these in bf16 and fp8", gemm))
    head = ["measurements", "nearest to its bound", "rows", "set aside", "compared", "faster than the bound", "nearest"]
    return _table(head, lines, 2)


def _summary_line(name, rows):
    top, aside = measured.best(rows), sum(bool(row.aside) for row in rows)
    counts = [len(rows), aside, len(measured.compared(rows)), len(measured.faster(rows))]
    return [name, f"{top.gpu}, {top.text}", *(f"{count:,}" for count in counts), _share(top.ratio)]


def _rules(rows):
    counts = dict.fromkeys(RULES, 0) | measured.asides(rows)
    aside = [row for row in rows if row.aside == silicon.A100_DECODE]
    worst, over = max(row.ratio for row in aside), sum(row.ratio > 1 for row in aside)
    lines = [[rule, text.format(worst=worst, over=over), f"{counts[rule]:,}"] for rule, text in RULES.items()]
    return _table(["rule", "what and why", "rows"], lines, 2)


def _bad_file(rows):
    """What is wrong with the file that is set aside: its largest caches, by whether query heads share KV heads."""
    large = [row for row in rows if row.gpu == silicon.NAMES["a100_sxm"] and row.size.startswith(">")]
    median = lambda chosen: f"{measured.quantiles([row.ratio for row in chosen])[2]:.2f}"
    bad = [row for row in large if row.aside]
    shares = {row: len(set(re.search(r"(\d+) heads, (\d+) KV", row.text).groups())) == 2 for row in bad}
    return (
        "The decode attention that is set aside is too fast where query heads share KV heads. With more than "
        f"{silicon.KV_LIMITS[-1]:,} tokens of KV, the median of bound / measured is "
        f"{median([row for row in bad if shares[row]])} for those rows, "
        f"{median([row for row in bad if not shares[row]])} for the other rows of that file and "
        f"{median(measured.compared(large))} for the other engines on the same GPU: about as if half of the cache had "
        "been read."
    )


def _in_cache(found):
    kinds = ("GEMM", "prefill attention", "decode attention")
    kernels = [row for kind in kinds for row in measured.compared(found[kind])]
    small = [row for row in kernels if row.fits_l2 and row.binding == "memory"]
    top = measured.best(small)
    return (
        "A kernel benchmarked in a loop could find its operands in the L2 cache and beat a bound on memory traffic. "
        f"None did: of the {len(small):,} memory-bound rows whose operands all fit in the L2, the nearest reached "
        f"{top.ratio:.3f} ({top.gpu}, {top.text}). So there is no rule about the L2."
    )


def _expected(rows):
    """Where the expected weights of a MoE layer take longer than was measured."""
    over = [row for row in rows if row.expected_s > row.measured_s]
    balanced = [row for row in over if ", balanced, " in row.text]
    listed = "; ".join(f"{row.gpu}, {row.text}, {row.measured_s * 1e6:.0f} µs" for row in balanced)
    yield (
        "Reading the experts that uniform routing would touch is an expectation, not a bound: "
        f"{len(over) - len(balanced):,} MoE rows with power-law routing are faster than it."
    )
    if balanced:
        yield (
            f"With balanced routing it should hold, and {len(balanced)} rows are faster than it: {listed}. Those "
            "kernels cannot have read all the experts that balanced routing touches. They stay in: the least bound "
            "lies below them."
        )


def _section(title, body):
    return f"### {title}\n\n{body}\n"


def page(shared):
    """The page as text."""
    kernels = {kind: read(shared / "measured" / "silicon") for kind, read in silicon.READERS.items()}
    served = {name: read(shared / "measured") for name, read in serving.READERS.items()}
    cases = serving.case_rows()
    found = {**kernels, **served, "single cases": cases}
    everything = [row for rows in found.values() for row in rows]
    parts = [HEAD, f"{_summary(found)}\n", f"## Rows set aside\n\n{_rules(everything)}\n", SILICON]
    for kind, rows in kernels.items():
        parts.append(_section(kind, _distributions(_order(rows), ["kind", "GPU", "size"], ["kind", "gpu", "size"])))
    notes = [_bad_file(found["decode attention"]), _in_cache(found), *_expected(found["MoE"])]
    parts += [_section("Notes", "\n".join(f"* {note}" for note in notes)), SERVING]
    for name, rows in served.items():
        ordered = sorted(rows, key=lambda row: (row.kind, row.gpu, row.size))
        names = ["measured", "device", "engine"]
        parts.append(_section(name, _distributions(ordered, names, ["kind", "gpu", "size"])))
    numbers = [[row.text, f"{row.bound_s:.4g}", f"{row.measured_s:.4g}", _share(row.ratio)] for row in cases]
    head = ["A100 SXM 80 GB, TensorRT-LLM, fp16", "bound, s", "measured, s", "bound / measured"]
    parts += [_section("Single cases", _table(head, numbers)), SOURCES]
    return "\n".join(parts)


if __name__ == "__main__":
    text = page(Path(os.environ.get("GAMBREL_SHARED", ROOT.parent / "shared")))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    print(text)
