"""What latency and throughput of a streaming endpoint mean, as pure functions of event times.

One request: sent at t0, n output tokens (by the server's `usage`) in m content events at t1 … tm.

    TTFT = t1 - t0                     the first content event, thoughts included
    TPOT = (tm - t1) / (n - 1)         n >= 2
    E2E  = tm - t0
    ITL  = t(i) - t(i-1), per token: an event of k tokens counts k times its gap / k

Where events do not say how many tokens they hold, the tokens after the first event are spread evenly over the rest. All
times in seconds on one clock. The names and TPOT are those of vLLM's and SGLang's own benchmarks.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import field
from itertools import pairwise

from gambrel.measure.record import quantile
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

#: A gap is a stall beyond this many times the level's median gap, and beyond this time [s].
STALL_RATIO = 20.0
STALL_S = 0.25
#: Prompt tokens from the server's prefix cache up to this share are a chance: a start mark, the same first letters.
CACHED_SHARE = 0.02

DEFINITIONS = (
    ("TTFT", "from sending the request to the first event with generated text (thoughts count)"),
    ("TPOT", "(last - first event with text) / (n - 1), n output tokens by the server's usage, from 2 tokens"),
    ("ITL", "gap before each token after the first event; an event of k tokens is k tokens of gap / k"),
    ("tokens/s", "output tokens of the requests that went well / time from the first sending to the last event"),
    (
        "p50, p99",
        "over requests for TTFT and TPOT, over tokens for ITL; interpolated: p99 of few is near the largest",
    ),
    ("zero gap", "two events in one network read: their distance is unknown, and ITL below its mean says little"),
    (
        "starved",
        "a client in whose wait for a first token another's whole answer was streamed, or with a gap beyond "
        f"{STALL_RATIO:g} times the median and {STALL_S:g} s",
    ),
)


@frozen
class Arrival:
    """One event with generated text. at_s: when it was read [s]. tokens: in it; None where the server does not say."""

    at_s: float
    tokens: int | None = None


@frozen
class Exchange:
    """One request and what came of it.

    client: which of the concurrent clients sent it. sent_s: when [s]. prompt_tokens, output_tokens, cached_tokens: by
    the server's usage; cached ones are prompt tokens that it did not compute anew; None where it does not say.
    error: why it failed, "" where it went well. status: of HTTP, 0 where none came. retries: how often it was sent
    again. timings: the server's own, by its names. fingerprint: of the server.
    """

    client: int
    sent_s: float
    arrivals: tuple[Arrival, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    error: str = ""
    status: int = 0
    retries: int = 0
    timings: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def first_s(self) -> float:
        """When the first text came."""
        return self.arrivals[0].at_s

    @property
    def last_s(self) -> float:
        """When the last text came."""
        return self.arrivals[-1].at_s


@frozen
class Latency:
    """The figures of one concurrency level; None where there is nothing to take it from. Times in s.

    ok, failed: requests. window_s: first sending to last event. The token counts are of one request. gaps, zero_gaps:
    between events. events: with text. uneven: answers whose events are not one token each. starved_clients: see
    DEFINITIONS. stalls: gaps that long. retries: requests sent twice.
    """

    ok: int
    failed: int
    window_s: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    output_tokens_min: int | None
    output_tokens_max: int | None
    output_tokens_total: int
    cached_tokens: int
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    itl_mean_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    output_tokens_per_s: float | None
    requests_per_s: float | None
    events: int
    gaps: int
    zero_gaps: int
    uneven: int
    stalls: int
    starved_clients: int
    retries: int

    @property
    def cached_share(self) -> float:
        """Prompt tokens that the server had cached over all prompt tokens [1]."""
        return self.cached_tokens / (self.ok * self.prompt_tokens) if self.ok and self.prompt_tokens else 0.0


# One request ----------------------------------------------------------------------------------


def ttft_s(x: Exchange) -> float:
    """Time to first token: t1 - t0 [s]."""
    return x.first_s - x.sent_s


def e2e_s(x: Exchange) -> float:
    """Sending to the last text: tm - t0 [s]."""
    return x.last_s - x.sent_s


def tpot_s(x: Exchange) -> float | None:
    """Time per output token: (tm - t1) / (n - 1) [s]; None for fewer than 2 tokens, or all in one read."""
    if x.output_tokens is None or x.output_tokens < 2 or x.last_s <= x.first_s:
        return None
    return (x.last_s - x.first_s) / (x.output_tokens - 1)


def event_gaps_s(x: Exchange) -> tuple[float, ...]:
    """Between events with text, as they were read: t(i) - t(i-1) [s]."""
    times = [a.at_s for a in x.arrivals]
    return tuple(b - a for a, b in pairwise(times))


def itl_s(x: Exchange) -> tuple[float, ...]:
    """Inter-token latencies [s]: one for each token after the first event where events tell their tokens.

    Else one for each event after the first, its gap divided by the tokens that the mean event holds, (n-1)/(m-1).
    """
    gaps, counts = event_gaps_s(x), token_counts(x)
    if counts is None:
        mean = (x.output_tokens - 1) / len(gaps) if gaps and x.output_tokens and x.output_tokens > 1 else 1
        return tuple(gap / mean for gap in gaps)
    found: list[float] = []
    waited = 0.0
    for gap, count in zip(gaps, counts[1:], strict=True):
        waited = waited + gap  # text without a new token passes its gap on to the next token
        found.extend([waited / count] * count if count else [])
        waited = 0.0 if count else waited
    return tuple(found)


def token_counts(x: Exchange) -> tuple[int, ...] | None:
    """Tokens of each event, where every event tells and they sum up to the usage, or where there are n events."""
    told = [a.tokens for a in x.arrivals if a.tokens is not None]
    if len(told) == len(x.arrivals) and sum(told) == x.output_tokens:
        return tuple(told)
    return (1,) * len(x.arrivals) if len(x.arrivals) == x.output_tokens else None


# One level ------------------------------------------------------------------------------------


def summarise(exchanges: Sequence[Exchange]) -> Latency:
    """The figures of a level, from its timed requests; those that failed are counted and nothing else."""
    good = [x for x in exchanges if not x.error and x.arrivals]
    outputs = [x.output_tokens or 0 for x in good]
    prompts = [x.prompt_tokens for x in good if x.prompt_tokens is not None]
    window = max(x.last_s for x in good) - min(x.sent_s for x in good) if good else 0.0
    gaps = [gap for x in good for gap in event_gaps_s(x)]
    limit = stall_s(gaps)
    tpots = [t for x in good if (t := tpot_s(x)) is not None]
    itls = [t for x in good for t in itl_s(x)]
    ttfts, e2es = [ttft_s(x) for x in good], [e2e_s(x) for x in good]
    return Latency(
        ok=len(good),
        failed=len(exchanges) - len(good),
        window_s=window or None,
        prompt_tokens=_quantile(prompts, 0.5),
        output_tokens=_quantile(outputs, 0.5),
        output_tokens_min=min(outputs, default=None),
        output_tokens_max=max(outputs, default=None),
        output_tokens_total=sum(outputs),
        cached_tokens=sum(x.cached_tokens or 0 for x in good),
        ttft_mean_s=mean(ttfts),
        ttft_p50_s=_quantile(ttfts, 0.5),
        ttft_p99_s=_quantile(ttfts, 0.99),
        tpot_mean_s=mean(tpots),
        tpot_p50_s=_quantile(tpots, 0.5),
        tpot_p99_s=_quantile(tpots, 0.99),
        itl_mean_s=mean(itls),
        itl_p50_s=_quantile(itls, 0.5),
        itl_p99_s=_quantile(itls, 0.99),
        e2e_p50_s=_quantile(e2es, 0.5),
        e2e_p99_s=_quantile(e2es, 0.99),
        output_tokens_per_s=sum(outputs) / window if window else None,
        requests_per_s=len(good) / window if window else None,
        events=sum(len(x.arrivals) for x in good),
        gaps=len(gaps),
        zero_gaps=sum(gap == 0 for gap in gaps),
        uneven=sum(token_counts(x) != (1,) * (x.output_tokens or 0) for x in good),
        stalls=sum(gap > limit for gap in gaps),
        starved_clients=len(overtaken(good) | stalled(good, limit)),
        retries=sum(x.retries for x in exchanges),
    )


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None


def _quantile(values: Sequence[float], share: float) -> float | None:
    return quantile(tuple(values), share) if values else None


def stall_s(gaps: Sequence[float]) -> float:
    """The gap beyond which a client counts as starved [s]."""
    return max(STALL_S, STALL_RATIO * (_quantile(gaps, 0.5) or 0.0))


def stalled(exchanges: Iterable[Exchange], limit_s: float) -> set[int]:
    """Clients with a longer gap than this between two events."""
    return {x.client for x in exchanges if any(gap > limit_s for gap in event_gaps_s(x))}


def overtaken(exchanges: Sequence[Exchange]) -> set[int]:
    """Clients that waited for a first token while another's whole answer, first text to last, was streamed."""
    whole = sorted((x.first_s, x.last_s) for x in exchanges if x.last_s > x.first_s)
    earliest = [0.0] * len(whole)  # the first end among answers that began at or after this one
    soonest = float("inf")
    for i in range(len(whole) - 1, -1, -1):
        soonest = min(soonest, whole[i][1])
        earliest[i] = soonest
    found = set()
    for x in exchanges:
        i = bisect_left(whole, (x.sent_s, float("-inf")))
        if i < len(whole) and earliest[i] <= x.first_s:
            found.add(x.client)
    return found


def flags(latency: Latency, concurrency: int, wanted_input: int, wanted_output: int) -> tuple[str, ...]:
    """What a reader of the figures must know, a line each; empty where nothing is odd."""
    m, told = latency, []
    if m.failed:
        told.append(f"{m.failed} of {m.ok + m.failed} requests failed")
    if m.zero_gaps:
        told.append(
            f"{m.zero_gaps} of {m.gaps} gaps are zero: several events came in one read, so their times are not the "
            "model's"
        )
    if m.uneven:
        told.append(
            f"in {m.uneven} of {m.ok} answers events are not single tokens ({m.output_tokens_total} tokens in "
            f"{m.events} events): ITL is shared out within events"
        )
    if m.starved_clients:
        stalls = f", with {m.stalls} gaps beyond the limit" if m.stalls else ""
        told.append(f"{m.starved_clients} of {concurrency} clients starved{stalls}")
    if m.ok and m.tpot_p50_s is None:
        told.append("no TPOT: fewer than 2 tokens, or each answer came in one read")
    if m.output_tokens_min is not None and not m.output_tokens_min == m.output_tokens_max == wanted_output:
        told.append(f"answers have {_range(m.output_tokens_min, m.output_tokens_max)} tokens, not {wanted_output}")
    if m.prompt_tokens is not None and abs(m.prompt_tokens - wanted_input) > 0.05 * wanted_input:
        told.append(f"prompts have {m.prompt_tokens:g} tokens, not {wanted_input}")
    if m.cached_share > CACHED_SHARE:
        told.append(f"{m.cached_share:.0%} of the prompts came from the server's cache: TTFT is not of a whole prefill")
    if m.retries:
        told.append(f"{m.retries} requests were sent twice: after a 429, or on a connection that had just been closed")
    return tuple(told)


def _range(low: int, high: int | None) -> str:
    return f"{low}" if low == high else f"{low} to {high}"
