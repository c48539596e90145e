"""The trace of a captured decode step on a CUDA device, which `gambrel profile MODEL` cannot make: it runs eagerly.

    python scripts/gpu_trace.py MODEL TOKENS FILE

Writes FILE, a Kineto trace (.json.gz) of a few replays, for `gambrel profile --trace FILE --eager EAGER`.
"""

from __future__ import annotations

import sys

from gambrel.measure import build, engines
from gambrel.model.sources import find_config

DEVICE = "cuda:0"
STEPS = 3


def main(model: str, tokens: int, path: str) -> None:
    """Capture a decode step at a context of `tokens`, and trace its replays."""
    built = build.build(find_config(model).config, "bf16", DEVICE)
    torch = built.torch
    graph = engines.engine("graph", torch, DEVICE)
    graph.prepare(engines.Pass(torch, built.module, (1, 1, tokens)))
    graph.run()
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, record_shapes=True) as profiler:
        for _ in range(STEPS):
            with torch.profiler.record_function("decode"):
                graph.run()
                torch.cuda.synchronize()
    profiler.export_chrome_trace(path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
