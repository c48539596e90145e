"""What limits a measured step: memory, compute or launches, with the evidence in one sentence.

Pure arithmetic on times. A captured graph saves neither FLOPs nor bytes, so what it gains is launch overhead alone
(Python, C++, driver). torch.compile fuses operators and picks other kernels, so its gain proves nothing about launches.
"""

from __future__ import annotations

from gambrel.units import duration, significant
from gambrel.values import frozen

#: What floors follow from that are no bound.
CEILINGS, READS = "at the measured ceilings", "at the rate of the reads in turn with it"
#: Share of the eager time that a graph must save before launches are what limits the eager run: a gain of 1.25 x.
LAUNCH_SHARE = 0.2
#: Share of the measured time that a resource's floor must explain before that resource is what limits.
FLOOR_SHARE = 0.5


@frozen
class Evidence:
    """What is known of one step [s].

    eager_s: launched one by one, None where it was not timed. other_s: the same step by another engine, whose name is
    `other` ("graph" or "compile"). memory_s, compute_s: floors by resource, None where unknown. at: what was measured
    that they follow from, which a better kernel may exceed; empty for a datasheet.
    """

    eager_s: float | None
    other_s: float | None = None
    other: str = ""
    memory_s: float | None = None
    compute_s: float | None = None
    at: str = ""

    @property
    def gain(self) -> float | None:
        """How many times faster the other engine is."""
        return self.eager_s / self.other_s if self.eager_s and self.other_s else None

    @property
    def best_s(self) -> float:
        """The fastest of the engines [s]."""
        return min(value for value in (self.eager_s, self.other_s) if value)


@frozen
class Verdict:
    """What limits, and why.

    limit: "memory", "compute", "launch", "undecided", or "error" for a time below a floor that cannot be beaten.
    """

    limit: str
    evidence: str

    @property
    def word(self) -> str:
        """As people say it: memory-bound."""
        words = {"undecided": "undecided", "error": "below its floor, an error"}
        return words.get(self.limit, f"{self.limit}-bound")

    def __str__(self) -> str:
        return f"{self.word}: {self.evidence}"


def judge(known: Evidence) -> Verdict:
    """The verdict. A graph's gain decides first, then the larger floor where it explains half of the fastest time."""
    floors = {"memory": known.memory_s, "compute": known.compute_s}
    limits = {name: value for name, value in floors.items() if value is not None}
    name = max(limits, key=lambda key: limits[key], default="")
    floor = limits.get(name, 0.0)
    if floor > known.best_s and not known.at:
        return Verdict("error", f"{duration(known.best_s)} measured is below the {name} floor of {duration(floor)}")
    after = _after(name, floor, known)
    if known.other == "graph" and known.gain and known.eager_s and known.other_s:
        saved = known.eager_s - known.other_s
        if saved >= LAUNCH_SHARE * known.eager_s:
            told = (
                f"the same kernels replayed from a graph take {duration(known.other_s)} instead of "
                f"{duration(known.eager_s)}, a gain of {significant(known.gain)} x, so {duration(saved)} were launches"
            )
            return Verdict("launch", told + (f"; replayed, {after}" if after else ""))
    if floor >= FLOOR_SHARE * known.best_s:
        return Verdict(name, after + _gained(known))
    why = after or "no floor to hold the time against (--device)"
    return Verdict("undecided", why + _gained(known))


def _after(name: str, floor: float, known: Evidence) -> str:
    """The larger floor as a share of the fastest time, with the other floor beside it."""
    if not name:
        return ""
    best = known.best_s
    lesser = known.compute_s if name == "memory" else known.memory_s
    beside = "" if lesser is None else f" ({'arithmetic' if name == 'memory' else 'memory'} {duration(lesser)})"
    what = "moving the weights and the cache" if name == "memory" else "the arithmetic"
    least = f"{known.at} takes" if known.at else "takes at least"
    return f"{what} {least} {duration(floor)}{beside}, {floor / best:.0%} of the {duration(best)} measured"


def _gained(known: Evidence) -> str:
    if not known.gain:
        return ""
    gain = significant(known.gain)
    if known.other == "graph":
        return f"; a graph gains {gain} x, so launches are not what limits"
    return f"; torch.compile gains {gain} x, by fusing, other kernels and fewer launches together"
