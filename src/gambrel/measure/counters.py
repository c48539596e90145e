"""Counters while a run is timed: SM, matrix unit and memory activity, clocks, power, what held the clocks down.

    with Counters("cuda:0") as counters:
        ...                                 # the timed region
    counters.readings["sm_active"]          # value and source, or reason and no value

Sources, by what they give: NVML's gauges and its energy counter; GPM, which is part of NVML (Hopper and newer), or
else DCGM (`dcgmi`), for SM, tensor and DRAM activity. All are read in a thread of its own, at an interval, between
start and stop; what the thread costs is measured and is a reading too.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from gambrel.measure import dcgm
from gambrel.measure import nvml as library
from gambrel.measure.readings import (
    COUNTERS,
    PROFILED,
    Reading,
    Tally,
    UnavailableError,
    derive,
    document,
    fill,
    implied,
    restored,
)
from gambrel.units import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any, Protocol, Self

    class Source(Protocol):
        """Where counters come from; each writes into its tally."""

        def begin(self, now_s: float) -> None:
            """The region begins."""

        def sample(self, now_s: float) -> None:
            """An interval has passed."""

        def end(self, now_s: float, interval_s: float) -> None:
            """The region is over."""

        def close(self) -> None:
            """Give back what is held."""


__all__ = ["COUNTERS", "INTERVAL_S", "Counters", "Reading", "derive", "document", "fill", "implied", "restored"]

#: Time between samples: below a tenth of a second, DCGM and the energy counter have nothing new to say [s].
INTERVAL_S = 0.1
#: Longest wait for a sample that is being taken when the region ends [s].
JOIN_S = 5.0
COST = "processor clock"


class Counters:
    """Samples between start and stop. Nothing here raises for want of a source: the readings say why instead."""

    def __init__(
        self,
        device: str = "cuda:0",
        gpu: str = "",
        interval_s: float = INTERVAL_S,
        nvml: Any = None,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """device: as PyTorch names it. gpu: its UUID or PCI bus id; asked of PyTorch, where that is loaded, or counted.

        interval_s: between samples [s]. nvml: instead of the module pynvml. environ: instead of os.environ.
        """
        self.device, self.gpu, self.interval_s, self.clock = device, gpu, interval_s, clock
        self.environ = os.environ if environ is None else environ
        self.readings: dict[str, Reading] = {}
        self._given = nvml
        self._nvml: Any = None
        self._tally = Tally()
        self._sources: list[Source] = []
        self._thread: threading.Thread | None = None
        self._over, self._error, self._cost_s, self._ticks = threading.Event(), "never started", 0.0, 0
        self._began_s = clock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Find the sources and begin to sample; returns when they are ready, so that the region can begin."""
        self._close()
        self._tally, self.readings = Tally(), {}
        self._over, self._error, self._cost_s, self._ticks = threading.Event(), "", 0.0, 0
        try:
            self._open()
        except Exception as error:  # a driver that misbehaves must not end the run that it was to watch
            self._error = self._say(error)
        self._began_s = self.clock()
        for source in self._sources:
            self._guard(source.begin, self._began_s)
        if self._sources and not self._error:
            self._thread = threading.Thread(target=self._sample, name="gambrel-counters", daemon=True)
            self._thread.start()

    def stop(self) -> dict[str, Reading]:
        """End the region: every counter's reading, by name. Called again it returns the same."""
        if self.readings:
            return self.readings
        region_s = self.clock() - self._began_s
        stuck = not self._join()
        for source in self._sources:
            if not stuck or isinstance(source, dcgm.Dcgm):
                self._guard(source.end, self._began_s + region_s, self.interval_s)
        if self._ticks and region_s > 0:
            self._tally.add("sampling_cost", self._cost_s / region_s, COST)
        if self._error:
            self._refuse_all(f"{self._error} (after {self._ticks} samples)" if self._ticks else self._error)
        self._close(stuck)
        every = f"one is taken every {duration(self.interval_s)}"
        self.readings = self._tally.readings(
            f"no sample fell into the region of {duration(max(region_s, 0.0))}; {every}"
        )
        return self.readings

    # Opening and closing ----------------------------------------------------------------------

    def _open(self) -> None:
        """The sources of this device, those that are there. Raises UnavailableError where there is none at all."""
        nvml = self._given if self._given is not None else library.load()
        try:
            nvml.nvmlInit()
            self._nvml = nvml
            if not self.device.startswith("cuda"):
                raise UnavailableError("the run was on a processor, and these are counters of a GPU")
            handle, uuid = library.find(nvml, self.device, self.gpu or _uuid(self.device), self.environ)
        except nvml.NVMLError as error:
            raise UnavailableError(library.why(nvml, error)) from None
        self._sources.append(library.Gauges(nvml, handle, self._tally))
        if not self._try(library.GPM, lambda: library.Gpm(nvml, handle, self._tally)):
            self._try(dcgm.DCGM, lambda: dcgm.Dcgm(uuid, self.interval_s, self._tally, self.environ, self.clock))

    def _try(self, name: str, make: Callable[[], Source]) -> bool:
        """Whether a source for the profiled counters is there; if not, they are told why."""
        try:
            self._sources.append(make())
        except UnavailableError as error:
            for counter in PROFILED:
                self._tally.refuse(counter, str(error), name)
            return False
        return True

    def _close(self, stuck: bool = False) -> None:
        """Give everything back. stuck: the thread is still within a call of the driver, which keeps its own."""
        for source in self._sources:
            if not stuck or isinstance(source, dcgm.Dcgm):
                self._guard(source.close)
        if self._nvml is not None and not stuck:
            self._guard(self._nvml.nvmlShutdown)
        self._sources, self._nvml, self._thread = [], None, None

    # Sampling ---------------------------------------------------------------------------------

    def _sample(self) -> None:
        """The thread: one sample of every source at each interval, until the region is over or something fails."""
        next_s = self._began_s + self.interval_s
        while not self._over.wait(max(next_s - self.clock(), 0.0)) and not self._error:
            before_s, now_s = time.thread_time(), self.clock()
            for source in self._sources:
                self._guard(source.sample, now_s)
            self._cost_s += time.thread_time() - before_s
            self._ticks += 1
            next_s = max(next_s + self.interval_s, now_s)

    def _join(self) -> bool:
        """Whether the thread has ended; it is told to."""
        self._over.set()
        if self._thread:
            self._thread.join(JOIN_S)
        if self._thread and self._thread.is_alive():
            self._error = f"the driver did not answer within {duration(JOIN_S)}"
            return False
        return True

    # When something fails ---------------------------------------------------------------------

    def _guard(self, call: Callable[..., object], *args: float) -> None:
        """Call a source; what it raises becomes the reason for which there are no numbers."""
        try:
            call(*args)
        except Exception as error:  # as in start
            self._error = self._error or f"sampling stopped: {self._say(error)}"

    def _say(self, error: Exception) -> str:
        if isinstance(error, UnavailableError):
            return str(error)
        if self._nvml is not None and isinstance(error, self._nvml.NVMLError):
            return library.why(self._nvml, error)
        return " ".join(f"{type(error).__name__}: {error}".split())[:160]

    def _refuse_all(self, reason: str) -> None:
        """No number from NVML; DCGM's stand, and who had a reason already keeps it."""
        for name in COUNTERS:
            source = self._tally.sources.get(name, "")
            if source != dcgm.DCGM and (source or name not in self._tally.reasons):
                self._tally.refuse(name, reason, source or library.NVML)


def _uuid(device: str) -> str:
    """UUID of a device as PyTorch tells it; "" where PyTorch is not loaded, not used yet, or does not say."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return ""
        return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    except (AttributeError, AssertionError, RuntimeError, ValueError):
        return ""
