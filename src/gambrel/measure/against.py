"""Two measurements against each other: the ratio of their medians, and whether chance alone explains it.

Source of the interval: percentile bootstrap, Efron, "Bootstrap methods", Ann. Statist. 7(1), 1979,
doi:10.1214/aos/1176344552.
"""

from __future__ import annotations

import random

from gambrel.measure.record import SAME, Measurement, RecordError, comparable, quantile
from gambrel.values import frozen

RESAMPLES = 2000
#: Share of resampled ratios between the ends of the interval.
CONFIDENCE = 0.95
#: Fewer repetitions than this say nothing about chance.
FEWEST = 5


@frozen
class Difference:
    """The second run over the first.

    ratio: of medians [1]. low, high: interval that holds it with 95 % confidence, None for too few repetitions.
    differing: fields that should be the same and are not (--force). busy: whether either machine was busy.
    """

    one: Measurement
    other: Measurement
    ratio: float
    low: float | None
    high: float | None
    differing: tuple[str, ...]
    busy: bool

    @property
    def significant(self) -> bool | None:
        """Whether the interval leaves out 1; None for too few repetitions."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.low is None or self.high is None:
            return f"too few repetitions to tell from chance (at least {FEWEST} each)"
        between = f"95 % interval {self.low:.3g} to {self.high:.3g}"
        if not self.significant:
            return f"no difference that chance does not explain ({between})"
        word = "slower" if self.ratio > 1 else "faster"
        return f"the second is {word}, beyond chance ({between})"


def against(one: Measurement, other: Measurement, force: bool = False) -> Difference:
    """Compare two runs. Raises RecordError, naming the fields, where they are not comparable, unless forced."""
    differing = comparable(one, other)
    if differing and not force:
        told = "; ".join(f"{key} is {one.metadata.get(key)!r} and {other.metadata.get(key)!r}" for key in differing)
        raise RecordError(
            f"{one.id} and {other.id} are not comparable: {told}. The same must be: {', '.join(SAME)}. "
            "--force compares them all the same"
        )
    low, high = _interval(one.values_s, other.values_s)
    busy = any(bool(run.metadata.get("busy")) for run in (one, other))
    return Difference(one, other, other.median_s / one.median_s, low, high, tuple(differing), busy)


def _interval(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float | None, float | None]:
    """Resample both, take the ratio of medians, and leave out the tails; the same every time."""
    if min(len(one), len(other)) < FEWEST:
        return None, None
    draw = random.Random(0)
    ratios = tuple(
        quantile(tuple(draw.choices(other, k=len(other))), 0.5) / quantile(tuple(draw.choices(one, k=len(one))), 0.5)
        for _ in range(RESAMPLES)
    )
    tail = (1 - CONFIDENCE) / 2
    return quantile(ratios, tail), quantile(ratios, 1 - tail)
