"""A timing harness that knows nothing of what it times, and says when it was disturbed.

A repetition makes enough calls for the clock. The processor time that this process got is held against wall time, and
that of everything else on the machine against a quarter of a core; a disturbed repetition is rejected and repeated, up
to a limit. After that the machine counts as busy, and the result says so.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from dataclasses import replace
from itertools import repeat

from gambrel.measure.record import quantile
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TextIO

    Call = Callable[[], object]

    class Timer(Protocol):
        """Times a number of calls. on_host: whether the work itself runs on this process's processors."""

        on_host: bool

        def lap(self, call: Call, calls: int) -> float:
            """Seconds of all the calls together."""

    class Counters(Protocol):
        """Reads the counters of processor time."""

        def read(self) -> Usage:
            """Their state now."""


#: Below this share of the processor time that the call can use, something else ran in between.
OWN_SHARE = 0.9
#: Processor time of others, in cores, from which the machine is busy.
OTHER_CORES = 0.25
#: Ticks of the kernel's counters by which one repetition may be misjudged.
SLACK_TICKS = 2
#: Fewest undisturbed repetitions that are used alone.
FEWEST = 3
MOST_CALLS = 10**7


@frozen
class Plan:
    """How to time.

    warmups: single calls before anything counts. repeats: undisturbed repetitions wanted. min_time_s: shortest
    repetition; a faster call is made several times in one [s]. max_time_s: after this no further repetition starts [s].
    retries: disturbed repetitions that are repeated before the machine counts as busy. threads: that the call uses.
    """

    warmups: int = 3
    repeats: int = 15
    min_time_s: float = 0.1
    max_time_s: float = 10.0
    retries: int = 15
    threads: int = 1


@frozen
class Usage:
    """Counters at one moment [s]: wall clock, processor time of this process, of the whole machine (None: unknown)."""

    wall_s: float
    process_s: float
    machine_s: float | None = None


@frozen
class Timing:
    """What was timed, seconds a call.

    values_s: the undisturbed repetitions, or all of them where fewer than three were. warmups_s: single calls, then
    the repetitions that found how many calls the clock needs. busy: whether the machine had other work. cpu_share:
    processor time of this process over wall time and threads [1]. other_cores: processor time of others over wall time
    (None: unknown). calls: in one repetition. rejected: disturbed repetitions. overhead_s: of the harness itself, part
    of every value. beside_s: single calls of something else, in turn with the repetitions.
    """

    values_s: tuple[float, ...]
    warmups_s: tuple[float, ...]
    busy: bool
    cpu_share: float
    other_cores: float | None = None
    calls: int = 1
    rejected: int = 0
    overhead_s: float = 0.0
    beside_s: tuple[float, ...] = ()

    @property
    def median_s(self) -> float:
        """The middle repetition [s]."""
        return quantile(self.values_s, 0.5)

    @property
    def spread(self) -> float:
        """Interquartile range over the median [1]."""
        return (quantile(self.values_s, 0.75) - quantile(self.values_s, 0.25)) / self.median_s


# Timers ---------------------------------------------------------------------------------------


def nothing() -> None:
    """The empty call, and the synchronisation of a processor."""


class WallTimer:
    """The monotonic clock around the calls, with the device synchronised before and after."""

    def __init__(
        self, synchronise: Call = nothing, on_host: bool = True, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.synchronise, self.on_host, self.clock = synchronise, on_host, clock

    def lap(self, call: Call, calls: int) -> float:
        """Seconds from the first call to the end of the last one's work."""
        self.synchronise()
        start = self.clock()
        for _ in repeat(None, calls):
            call()
        self.synchronise()
        return self.clock() - start


class EventTimer:
    """Events that the device itself stamps. `cuda` is torch.cuda, or anything with its Event and synchronize."""

    on_host = False

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda

    def lap(self, call: Call, calls: int) -> float:
        """Seconds between the event before the first call and that after the last."""
        start, end = (self.cuda.Event(enable_timing=True) for _ in range(2))
        self.cuda.synchronize()
        start.record()
        for _ in repeat(None, calls):
            call()
        end.record()
        self.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3


# Who else was running --------------------------------------------------------------------------


class Meter:
    """Processor time of this process, and on Linux of the whole machine, time stolen by a hypervisor included."""

    def __init__(self, stat: str = "/proc/stat") -> None:
        self.stat = stat

    def read(self) -> Usage:
        """The counters now."""
        return Usage(time.perf_counter(), time.process_time(), self._machine())

    def _machine(self) -> float | None:
        try:
            with open(self.stat, encoding="ascii") as file:
                user, nice, system, _idle, _wait, irq, soft, steal = map(int, file.readline().split()[1:9])
        except (OSError, ValueError):
            return None
        return (user + nice + system + irq + soft + steal) * tick_s()


def tick_s() -> float:
    """Resolution of the kernel's counters [s]; the usual one where the system does not say."""
    try:
        return 1 / os.sysconf("SC_CLK_TCK")
    except (AttributeError, ValueError, OSError):
        return 0.01


@frozen
class Lap:
    """One repetition: seconds a call, wall and processor seconds of all of it, of others (None: unknown)."""

    value_s: float
    wall_s: float
    process_s: float
    other_s: float | None

    def quiet(self, wanted_cores: float) -> bool:
        """Whether the process got the cores that it wanted, and others hardly ran."""
        own = self.process_s >= OWN_SHARE * wanted_cores * self.wall_s
        allowed = OTHER_CORES * self.wall_s + SLACK_TICKS * tick_s()
        return own and (self.other_s is None or self.other_s <= allowed)


def time_it(
    call: Call,
    synchronise: Call = nothing,
    plan: Plan | None = None,
    *,
    timer: Timer | None = None,
    meter: Counters | None = None,
    beside: Call | None = None,
) -> Timing:
    """Time a call: warm-ups apart, then repetitions until enough were undisturbed or the limits are reached.

    timer: instead of the wall clock with `synchronise`. meter: instead of this machine's counters. beside: called once
    after every repetition and timed apart, as a yardstick that has the same conditions.
    """
    plan, timer, meter = plan or Plan(), timer or WallTimer(synchronise), meter or Meter()
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        warmups, calls = _warm_up(call, timer, plan)
        probes = min(max(calls, 100), 10**5)
        overhead = min(timer.lap(nothing, probes) for _ in range(3)) / probes
        laps, besides = _laps(call, timer, plan, meter, calls, beside)
    finally:
        if collects:
            gc.enable()
    beside_s = tuple(lap.value_s for lap in _used(besides, plan, timer.on_host)) if besides else ()
    return replace(_timing(laps, plan, timer.on_host, warmups, calls, overhead), beside_s=beside_s)


def _warm_up(call: Call, timer: Timer, plan: Plan) -> tuple[list[float], int]:
    """Single calls, then as many more in one repetition until it is long enough for the clock."""
    warmups = [timer.lap(call, 1) for _ in range(max(plan.warmups, 1))]
    calls, taken = 1, warmups[-1]
    while taken < plan.min_time_s and calls < MOST_CALLS:
        grow = min(max(1.2 * plan.min_time_s / taken if taken > 0 else 10.0, 1.5), 10.0)
        calls = min(math.ceil(calls * grow), MOST_CALLS)
        taken = timer.lap(call, calls)
        warmups.append(taken / calls)
    return warmups, calls


def _laps(
    call: Call, timer: Timer, plan: Plan, meter: Counters, calls: int, beside: Call | None
) -> tuple[list[Lap], list[Lap]]:
    laps: list[Lap] = []
    besides: list[Lap] = []
    started = meter.read().wall_s
    while True:
        laps.append(_lap(call, timer, meter, calls))
        if beside:
            besides.append(_lap(beside, timer, meter, 1))
        quiet = len(_quiet(laps, timer.on_host))
        enough = quiet >= plan.repeats or len(laps) - quiet > plan.retries
        if enough or (len(laps) >= FEWEST and meter.read().wall_s - started > plan.max_time_s):
            return laps, besides


def _lap(call: Call, timer: Timer, meter: Counters, calls: int) -> Lap:
    before = meter.read()
    taken = timer.lap(call, calls)
    after = meter.read()
    process = after.process_s - before.process_s
    other = None
    if before.machine_s is not None and after.machine_s is not None:
        other = max(after.machine_s - before.machine_s - process, 0.0)
    return Lap(taken / calls, after.wall_s - before.wall_s, process, other)


def _quiet(laps: list[Lap], on_host: bool) -> list[Lap]:
    """The undisturbed ones. Work on the host wants a core at least, and as many as it had at its best."""
    wanted = max(1.0, *(lap.process_s / lap.wall_s for lap in laps)) if on_host else 0.0
    return [lap for lap in laps if lap.quiet(wanted)]


def _used(laps: list[Lap], plan: Plan, on_host: bool) -> list[Lap]:
    """The undisturbed ones, or all of them where those are too few."""
    quiet = _quiet(laps, on_host)
    return quiet if len(quiet) >= min(FEWEST, plan.repeats) else laps


def _timing(laps: list[Lap], plan: Plan, on_host: bool, warmups: list[float], calls: int, overhead_s: float) -> Timing:
    quiet, used = _quiet(laps, on_host), _used(laps, plan, on_host)
    wall = sum(lap.wall_s for lap in used)
    others = [lap.other_s for lap in used if lap.other_s is not None]
    other_cores = sum(others) / wall if len(others) == len(used) else None
    disturbed = len(laps) - len(quiet)
    short = len(quiet) < min(plan.repeats, FEWEST) or disturbed > plan.retries or disturbed > len(quiet)
    return Timing(
        tuple(lap.value_s for lap in used),
        tuple(warmups),
        short or (other_cores is not None and other_cores > OTHER_CORES),
        sum(lap.process_s for lap in used) / (wall * plan.threads),
        other_cores,
        calls,
        disturbed,
        overhead_s,
    )


class Progress:
    """One line on a terminal that says what is being done; nothing in a pipe or a file."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stderr
        self.shown = self.out.isatty()

    def say(self, text: str) -> None:
        """Replace the line."""
        if self.shown:
            self.out.write(f"\r\033[K{text[:100]}")
            self.out.flush()

    def done(self) -> None:
        """Clear the line."""
        self.say("")
