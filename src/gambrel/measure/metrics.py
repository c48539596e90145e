"""What an inference server says of itself: Prometheus text at /metrics, and times in its answers.

Names: vLLM's "Production metrics", SGLang's "Production metrics", llama.cpp's tools/server/README.md.
"""

from __future__ import annotations

import re

from gambrel.measure import latency
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gambrel.measure.latency import Exchange

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)")

#: By what is compared: pairs of counters whose differences are divided; the first pair that the server has is used.
RATIOS = {
    "TTFT, mean": (
        ("vllm:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_count"),
        ("sglang:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_count"),
    ),
    "TPOT, mean": (
        ("vllm:request_time_per_output_token_seconds_sum", "vllm:request_time_per_output_token_seconds_count"),
        ("vllm:time_per_output_token_seconds_sum", "vllm:time_per_output_token_seconds_count"),
        ("sglang:time_per_output_token_seconds_sum", "sglang:time_per_output_token_seconds_count"),
        ("llamacpp:tokens_predicted_seconds_total", "llamacpp:tokens_predicted_total"),
    ),
    "ITL, mean": (
        ("vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count"),
        ("sglang:inter_token_latency_seconds_sum", "sglang:inter_token_latency_seconds_count"),
    ),
}
#: The same for plain counts.
COUNTS = {
    "output tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
    ),
    "prompt tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
}


@frozen
class Check:
    """One figure twice: as measured here and as the server has it. unit: "s" or "token". source: the server's name."""

    quantity: str
    unit: str
    ours: float
    server: float
    source: str

    @property
    def difference(self) -> float:
        """Ours less the server's."""
        return self.ours - self.server


def parse(text: str) -> dict[str, float]:
    """Samples of a Prometheus text by name, those of different labels added up; lines that are none are left out."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = None if line.startswith("#") else _SAMPLE.match(line)
        if sample:
            try:
                value = float(sample[2])
            except ValueError:
                continue
            if abs(value) < float("inf"):
                found[sample[1]] = found.get(sample[1], 0.0) + value
    return found


def checks(before: Mapping[str, float], after: Mapping[str, float], exchanges: Sequence[Exchange]) -> tuple[Check, ...]:
    """The server's figures between two readings, beside ours of the same requests."""
    good = [x for x in exchanges if not x.error and x.arrivals]
    ours = {
        "TTFT, mean": latency.mean([latency.ttft_s(x) for x in good]),
        "TPOT, mean": latency.mean([t for x in good if (t := latency.tpot_s(x)) is not None]),
        "ITL, mean": latency.mean([t for x in good for t in latency.itl_s(x)]),
        "output tokens": float(sum(x.output_tokens or 0 for x in good)),
        "prompt tokens": float(sum(x.prompt_tokens or 0 for x in good)),
    }
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    found = [*_ratios(grown, ours), *_counts(grown, ours), *_timings(good, ours)]
    return tuple(found) if good else ()


def _ratios(grown: Mapping[str, float], ours: Mapping[str, float | None]) -> list[Check]:
    found = []
    for quantity, pairs in RATIOS.items():
        mine = ours[quantity]
        pair = next((p for p in pairs if grown.get(p[1], 0) > 0 and p[0] in grown), None)
        if pair and mine is not None:
            found.append(Check(quantity, "s", mine, grown[pair[0]] / grown[pair[1]], _stem(pair[0])))
    return found


def _counts(grown: Mapping[str, float], ours: Mapping[str, float | None]) -> list[Check]:
    found = []
    for quantity, names in COUNTS.items():
        mine = ours[quantity]
        name = next((n for n in names if grown.get(n, 0) > 0), None)
        if name and mine is not None:
            found.append(Check(quantity, "token", mine, grown[name], name))
    return found


def _timings(good: Sequence[Exchange], ours: Mapping[str, float | None]) -> list[Check]:
    """The `timings` that llama.cpp's server adds to the last event of each answer."""
    found = []
    for quantity, key in (("TTFT, mean", "prompt_ms"), ("TPOT, mean", "predicted_per_token_ms")):
        values = [x.timings.get(key) for x in good]
        told = [v / 1e3 for v in values if isinstance(v, (int, float)) and 0 <= v < float("inf")]
        mine, theirs = ours[quantity], latency.mean(told)
        if mine is not None and theirs is not None and len(told) == len(good):
            found.append(Check(quantity, "s", mine, theirs, f"timings.{key}"))
    return found


def _stem(name: str) -> str:
    return name.removesuffix("_sum").removesuffix("_total")
