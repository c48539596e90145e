"""How fast gambrel itself is, as ratios to a baseline measured in the same run: python bench/speed.py.

Machines are shared and noisy, so each figure is the best of several runs taken in turn with its baseline.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import gambrel
from gambrel import Step, load_device
from gambrel.model.reader import read_config

REPORT = ["-m", "gambrel", "report", "llama-3-8b", "--device", "h100-sxm"]
POINTS = 1000
LAYER_SUMS = 8


def best_of(calls, rounds):
    """Best time of each call [s], all of them taken in turn."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def process(*arguments):
    return lambda: subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)


def start_up(rounds=15):
    """Whole processes against an empty one."""
    times = best_of(
        {
            "python -c pass": process("-c", "pass"),
            "report, text": process(*REPORT),
            "report, json": process(*REPORT, "--format", "json"),
        },
        rounds,
    )
    return {name: {"ms": t * 1e3, "times_baseline": t / times["python -c pass"]} for name, t in times.items()}


def grid(rounds=5):
    """A million points of batch x context for one model, against a few NumPy passes over as many points."""
    import numpy as np

    model, device = gambrel.load_model("llama-3-8b"), load_device("h100-sxm")
    batch = np.arange(1, POINTS + 1, dtype=float)
    context = np.linspace(128, 131072, POINTS)
    outer, flat = (batch[:, None], context[None, :]), [a.ravel() for a in np.meshgrid(batch, context)]
    a, b = np.ones(POINTS**2), np.full(POINTS**2, 2.0)

    def baseline():
        for _ in range(LAYER_SUMS):
            np.maximum(a * b, a + b)

    times = best_of(
        {
            "numpy, 24 passes": baseline,
            "outer grid": lambda: model.bound(Step(outer[0], 1, outer[1]), device),
            "flat grid": lambda: model.bound(Step(flat[0], 1, flat[1]), device),
        },
        rounds,
    )
    return {name: {"ms": t * 1e3, "times_baseline": t / times["numpy, 24 passes"]} for name, t in times.items()}


def reading(rounds=20):
    """Reading one config, against parsing its JSON."""
    models = Path(gambrel.__file__).parent / "data" / "models"
    texts = [path.read_text() for path in sorted(models.glob("*.json"))]
    configs = [json.loads(text)["config"] for text in texts]
    times = best_of(
        {
            "json.loads": lambda: [json.loads(text) for text in texts],
            "read_config": lambda: [read_config(config) for config in configs],
        },
        rounds,
    )
    base = times["json.loads"]
    return {name: {"ms": t * 1e3 / len(texts), "times_baseline": t / base} for name, t in times.items()}


def main():
    for title, measure in (("start-up", start_up), ("million-point grid", grid), ("one config", reading)):
        print(title)
        for name, row in measure().items():
            print(f"  {name:18} {row['ms']:9.3f} ms  {row['times_baseline']:7.2f} x baseline")


if __name__ == "__main__":
    main()
