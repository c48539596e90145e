"""Peak memory of training as torchtitan publishes it, beside gambrel's estimate: rows and the table of the docs."""

from __future__ import annotations

import gambrel
from gambrel.cost.footprint import OPTIMIZERS, Plan, footprint
from gambrel.cost.parallel import Layout
from gambrel.cost.training import recompute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

#: torchtitan benchmarks, H100 with 96 GB, torch and torchtitan of 2024-12: tables 2, 4, 5, 6 (full recomputation).
SOURCE = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"
LLAMA_405B = "meta-llama__Llama-3.1-405B-Instruct-FP8.json"
#: Model, what, sequence, micro-batch, micro-batches, layout, published GiB. Local batches of a pipeline are 8
#: micro-batches, as many as stages.
ROWS = (
    ("llama-3.1-8b", "FSDP 8", 32768, 1, 1, Layout(dp=8), 83.9),
    ("llama-3.1-8b", "FSDP 4, CP 2", 65536, 1, 1, Layout(dp=4, cp=2), 84.2),
    ("llama-3.1-8b", "FSDP 2, CP 4", 131072, 1, 1, Layout(dp=2, cp=4), 84.0),
    ("llama-3.1-8b", "CP 8", 262144, 1, 1, Layout(cp=8), 84.5),
    ("llama-3.1-70b", "FSDP 32, TP 8", 8192, 16, 1, Layout(dp=32, tp=8), 71.9),
    (LLAMA_405B, "FSDP 8, TP 8, PP 8", 8192, 4, 8, Layout(8, 8, 8), 82.5),
    (LLAMA_405B, "the same, interleaved", 8192, 4, 8, Layout(8, 8, 8, virtual=2), 72.7),
    (LLAMA_405B, "FSDP 8, TP 8, PP 8", 32768, 1, 8, Layout(8, 8, 8), 75.3),
    (LLAMA_405B, "FSDP 4, CP 2, TP 8, PP 8", 65536, 1, 8, Layout(4, 8, 8, 2), 75.9),
    (LLAMA_405B, "FSDP 2, CP 4, TP 8, PP 8", 131072, 1, 8, Layout(2, 8, 8, 4), 77.1),
    (LLAMA_405B, "CP 8, TP 8, PP 8", 262144, 1, 8, Layout(1, 8, 8, 8), 84.9),
)


def estimates(shared: Path) -> list[float]:
    """GiB of each row by gambrel: fp32 weights sharded, bf16 while gathered."""
    found = []
    for name, _, seq, micro_batch, micro_batches, layout, _ in ROWS:
        path = str(shared / "configs" / "models" / name) if name.endswith(".json") else name
        model, rule = gambrel.load_model(path), OPTIMIZERS["adamw-fp32"]
        plan = Plan(model, seq, micro_batch, micro_batches, layout, 3, recompute("full"), rule)
        found.append(footprint(plan).total_bytes / 2**30)
    return found


def table(shared: Path) -> str:
    """The table of docs/training.md."""
    lines = ["| model | devices share | tokens | batch | published GiB | estimate GiB | error |"]
    lines.append("|---|---|---:|---:|---:|---:|---:|")
    for row, ours in zip(ROWS, estimates(shared), strict=True):
        name = "llama-3.1-405b" if row[0] == LLAMA_405B else row[0]
        error = f"{ours / row[-1] - 1:+.0%}"
        lines.append(f"| {name} | {row[1]} | {row[2]:,} | {row[3]} | {row[-1]} | {ours:.1f} | {error} |")
    return "\n".join(lines)
