"""Traces and counters of one model on a CUDA device: prefill and decode, eager and as a graph.

    python scripts/gpu_trace.py MODEL TOKENS FOLDER

Writes FOLDER/PHASE-ENGINE.json.gz, Kineto traces for `gambrel profile --trace`, and FOLDER/counters.json, what the
counters said while each was repeated for two seconds. A machine that cannot give a counter says which and why.
"""

from __future__ import annotations

import json
import os
import sys
import time

from gambrel.measure import build, engines
from gambrel.model.sources import find_config

DEVICE = "cuda:0"
COUNTED_S = 2.0
STEPS = 3


def traced(torch, run, phase, path):
    """A few repetitions under the profiler, with shapes, modules and a range for the phase."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, record_shapes=True, with_stack=True) as profiler:
        for _ in range(STEPS):
            with torch.profiler.record_function(phase):
                run()
                torch.cuda.synchronize()
    profiler.export_chrome_trace(path)


def counted(torch, run):
    """What the counters say while it is repeated; None where this gambrel has none."""
    try:
        from gambrel.measure.counters import Counters, document
    except ImportError:
        return None
    with Counters(DEVICE) as counters:
        end = time.perf_counter() + COUNTED_S
        steps = 0
        while time.perf_counter() < end:
            run()
            steps += 1
            if steps % 20 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
    return {"steps": steps, "readings": document(counters.readings)}


def main(model: str, tokens: int, folder: str) -> None:
    """Every phase with both engines."""
    built = build.build(find_config(model).config, "bf16", DEVICE)
    torch, told = built.torch, {}
    for phase, shape in (("prefill", (1, tokens, tokens)), ("decode", (1, 1, tokens))):
        step = engines.Pass(torch, built.module, shape)
        for name in ("torch", "graph"):
            kind = engines.engine(name, torch, DEVICE)
            kind.prepare(step)
            kind.run()
            told[f"{phase}-{name}"] = counted(torch, kind.run)
            traced(torch, kind.run, phase, os.path.join(folder, f"{phase}-{name}.json.gz"))
    with open(os.path.join(folder, "counters.json"), "w", encoding="utf-8") as file:
        json.dump(told, file, indent=1)
    for name, found in told.items():
        for key, reading in (found or {"readings": {}})["readings"].items():
            print(name, key, reading["value"], reading.get("reason") or reading.get("source") or "")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
