"""NVML and its GPM counters through nvidia-ml-py, loaded when used; every refusal becomes one line.

Calls, structures and numbers are those of nvidia-ml-py 12.535 to 13.615 (pynvml.py) and of nvml.h. The library is
handed in as a module, so that a test can hand in another.
"""

from __future__ import annotations

import sys

from gambrel.measure.readings import UnavailableError
from gambrel.units import duration
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from gambrel.measure.readings import Tally

NVML, GPM, ENERGY = "NVML", "NVML GPM", "NVML energy counter"
NO_DRIVER = "no NVIDIA driver here"
NO_PERMISSION = (
    "not permitted for this user: performance counters are kept to administrators "
    "(ERR_NVGPUCTRPERM; NVreg_RestrictProfilingToAdminUsers=0, or CAP_SYS_ADMIN in a container)"
)

#: What NVML's errors mean here, by name.
ERRORS = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": NO_DRIVER,
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is installed but not loaded",
    "NVML_ERROR_NO_PERMISSION": NO_PERMISSION,
    "NVML_ERROR_NOT_SUPPORTED": "this GPU or its driver does not support it",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "this driver is too old for it",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver and its library differ in version: restart after an update",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": "the driver and nvidia-ml-py differ in the version of a structure",
    "NVML_ERROR_GPU_IS_LOST": "the GPU has fallen off the bus",
    "NVML_ERROR_NOT_FOUND": "NVML does not know this GPU; a part of one (MIG) has no counters here",
    "NVML_ERROR_NO_DATA": "NVML has no data yet",
}

#: The bits that NVML names nvmlClocksEventReason… (before driver 535 nvmlClocksThrottleReason…).
REASONS: dict[str, tuple[int, str]] = {
    "GpuIdle": (0x1, "idle"),
    "ApplicationsClocksSetting": (0x2, "clocks set by the user"),
    "SwPowerCap": (0x4, "power limit"),
    "HwSlowdown": (0x8, "hardware slowdown"),
    "SyncBoost": (0x10, "sync boost group"),
    "SwThermalSlowdown": (0x20, "temperature (driver)"),
    "HwThermalSlowdown": (0x40, "temperature (hardware)"),
    "HwPowerBrakeSlowdown": (0x80, "power brake"),
    "DisplayClockSetting": (0x100, "display clocks"),
    "BoardLimit": (0x200, "board limit"),
    "Reliability": (0x400, "voltage limit"),
}
IDLE = 0x1
#: A last interval shorter than this share of a whole one says too little to count, where there are others.
LEAST_INTERVAL = 0.5
#: Shortest interval of which GPM counters are taken [s].
LEAST_GPM_S = 0.02
#: Shortest region whose energy is taken: the counter moves in steps [s].
LEAST_ENERGY_S = 0.5


# The library ----------------------------------------------------------------------------------


def load() -> Any:
    """nvidia-ml-py. Raises UnavailableError: without a driver for want of that, else with what to install."""
    try:
        import pynvml
    except ImportError:
        needs = "this needs nvidia-ml-py: pip install 'gambrel[nvml]'"
        raise UnavailableError(needs if _driver() else NO_DRIVER) from None
    return pynvml


def _driver() -> bool:
    """Whether NVML's own library is there."""
    import ctypes

    try:
        ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def why(nvml: Any, error: BaseException) -> str:
    """An error as one line: by NVML's code where it has one."""
    return explain(nvml, getattr(error, "value", None), str(error))


def explain(nvml: Any, code: object, said: str = "") -> str:
    """What one of NVML's codes means."""
    for name, meaning in ERRORS.items():
        if getattr(nvml, name, None) == code and code is not None:
            return meaning
    return f"NVML says: {' '.join(said.split())[:160] or f'error {code}'}"


def decode(bits: int) -> tuple[str, ...]:
    """The reasons in a mask of clock event reasons, the idle one left out; unknown bits by number."""
    known = 0
    found = []
    for bit, label in REASONS.values():
        known |= bit
        if bits & bit and bit != IDLE:
            found.append(label)
    found += [f"bit {1 << i:#x}" for i in range(bits.bit_length()) if bits >> i & 1 and not known >> i & 1]
    return tuple(found)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# Which GPU ------------------------------------------------------------------------------------


def find(nvml: Any, device: str, gpu: str, environ: Mapping[str, str]) -> tuple[Any, str]:
    """Handle and UUID of the GPU that CUDA calls `device` ("cuda:1").

    gpu: its UUID or PCI bus id, where the caller knows it, which beats counting. Without: CUDA_VISIBLE_DEVICES is
    followed, and where CUDA may count in another order than NVML (several GPUs, no CUDA_DEVICE_ORDER=PCI_BUS_ID) there
    is no guess. Raises UnavailableError, and NVML's own errors.
    """
    gpu = gpu or _name(nvml, device, environ)
    if gpu.startswith("MIG-"):
        raise UnavailableError("the run has a part of a GPU (MIG), and these counters are of the whole")
    by_uuid = gpu.startswith("GPU-")
    handle = nvml.nvmlDeviceGetHandleByUUID(gpu) if by_uuid else nvml.nvmlDeviceGetHandleByPciBusId(gpu)
    if _divided(nvml, handle):
        raise UnavailableError("the GPU is divided (MIG), and these counters are of the whole")
    return handle, _text(nvml.nvmlDeviceGetUUID(handle))


def _divided(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False


def _name(nvml: Any, device: str, environ: Mapping[str, str]) -> str:
    """UUID of the GPU that CUDA gives this number."""
    number = int(device.partition(":")[2] or 0)
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    ordered = sorted(handles, key=lambda handle: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in ordered]
    seen = visible(uuids, environ.get("CUDA_VISIBLE_DEVICES"))
    if number >= len(seen):
        raise UnavailableError(f"CUDA sees {len(seen)} of the {len(uuids)} GPUs here, so there is no {device}")
    found, counted = seen[number]
    if counted and len(uuids) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise UnavailableError(
            f"which of the {len(uuids)} GPUs is {device} cannot be told: set CUDA_DEVICE_ORDER=PCI_BUS_ID, "
            "or name one by UUID in CUDA_VISIBLE_DEVICES"
        )
    return found


def visible(uuids: list[str], listed: str | None) -> list[tuple[str, bool]]:
    """The UUIDs that CUDA sees, in its order, and whether each was named by counting; it stops at an unknown one."""
    if listed is None:
        return [(uuid, True) for uuid in uuids]
    found = []
    for word in map(str.strip, listed.split(",")):
        matching = [uuid for uuid in uuids if word.startswith("GPU-") and uuid.startswith(word)]
        if word.startswith("MIG-"):
            found.append((word, False))
        elif len(matching) == 1:
            found.append((matching[0], False))
        elif word.isdigit() and int(word) < len(uuids):
            found.append((uuids[int(word)], True))
        else:
            break
    return found


# Gauges ---------------------------------------------------------------------------------------


@frozen
class Gauge:
    """One value that NVML gives at a moment. read: from the module and the handle, in the unit of COUNTERS."""

    name: str
    read: Callable[[Any, Any], float]


GAUGES = (
    Gauge("kernel_busy", lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
    Gauge("memory_busy", lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).memory / 100),
    Gauge("sm_clock", lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
    Gauge("memory_clock", lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
    Gauge("power", lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
    Gauge("temperature", lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
)


class Gauges:
    """Clocks, power, load, temperature, what held the clocks; and energy between begin and end."""

    def __init__(self, nvml: Any, handle: Any, tally: Tally) -> None:
        self.nvml, self.handle, self.tally = nvml, handle, tally
        self.gauges = [*GAUGES, Gauge("throttle", lambda nvml, handle: self._bits())]
        self._first: tuple[float, int] | None = None

    def begin(self, now_s: float) -> None:
        """Finds out what can be had, so that the samples do not try in vain, and reads the energy."""
        self._each(lambda gauge, value: None)
        self._first = self._energy(now_s)

    def sample(self, now_s: float) -> None:
        """One value of each."""
        self._each(self._take)

    def end(self, now_s: float, interval_s: float) -> None:
        """The energy since begin; no other value, since the work is over."""
        last = self._energy(now_s)
        if self._first is None or last is None:
            return
        elapsed_s, energy_j = last[0] - self._first[0], (last[1] - self._first[1]) / 1e3
        short = f"the region of {duration(elapsed_s)} is too short for the steps of the energy counter"
        for name, value in (("energy", energy_j), ("mean_power", energy_j / elapsed_s if elapsed_s else 0.0)):
            if elapsed_s < LEAST_ENERGY_S or energy_j <= 0:
                self.tally.refuse(name, short, ENERGY)
            else:
                self.tally.add(name, value, ENERGY)

    def close(self) -> None:
        """Nothing is held."""

    def _each(self, use: Callable[[Gauge, float], None]) -> None:
        for gauge in tuple(self.gauges):
            try:
                use(gauge, gauge.read(self.nvml, self.handle))
            except self.nvml.NVMLError as error:
                self.tally.refuse(gauge.name, why(self.nvml, error), NVML)
                self.gauges.remove(gauge)

    def _take(self, gauge: Gauge, value: float) -> None:
        if gauge.name == "throttle":
            labels = decode(int(value))
            self.tally.mark("throttle", labels)
            value = 1.0 if labels else 0.0
        self.tally.add(gauge.name, float(value), NVML)

    def _bits(self) -> int:
        """The mask by its new name, or by the old one where package or driver know only that."""
        ask = getattr(self.nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        try:
            if ask:
                return int(ask(self.handle))
        except self.nvml.NVMLError as error:
            if error.value != self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
        return int(self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle))

    def _energy(self, now_s: float) -> tuple[float, int] | None:
        try:
            return now_s, int(self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle))
        except self.nvml.NVMLError as error:
            for name in ("energy", "mean_power"):
                self.tally.refuse(name, why(self.nvml, error), ENERGY)
            return None


# GPM ------------------------------------------------------------------------------------------

#: The metric of each counter; all are percentages over the time between two samples.
METRICS = {
    "sm_active": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_active": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}


class Gpm:
    """GPU performance monitoring: what two samples of the hardware's counters say of the time between them."""

    def __init__(self, nvml: Any, handle: Any, tally: Tally) -> None:
        """Raises UnavailableError where the GPU has no GPM."""
        self.nvml, self.handle, self.tally = nvml, handle, tally
        self._samples: list[Any] = []
        self._at_s = 0.0
        self._counted = 0
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise UnavailableError("this GPU has no GPM, which came with Hopper")
            for _ in range(2):
                self._samples.append(nvml.nvmlGpmSampleAlloc())
            self.begin(0.0)  # tells whether the counters may be read
        except nvml.NVMLError as error:
            self.close()
            raise UnavailableError(why(nvml, error)) from None

    def begin(self, now_s: float) -> None:
        """The first sample."""
        self.nvml.nvmlGpmSampleGet(self.handle, self._samples[0])
        self._at_s = now_s

    def sample(self, now_s: float) -> None:
        """The time since the sample before."""
        if all(self.tally.refused(name, GPM) for name in METRICS):
            return
        earlier, later = self._samples
        try:
            self.nvml.nvmlGpmSampleGet(self.handle, later)
            self._count(self.metrics(earlier, later))
        except self.nvml.NVMLError as error:
            self._refuse(METRICS, why(self.nvml, error))
        self._samples = [later, earlier]
        self._at_s = now_s

    def end(self, now_s: float, interval_s: float) -> None:
        """The rest of the region, where it is long enough to say something."""
        rest_s = now_s - self._at_s
        if rest_s >= (LEAST_INTERVAL * interval_s if self._counted else LEAST_GPM_S):
            self.sample(now_s)
        elif not self._counted:
            self._refuse(METRICS, f"the region of {duration(rest_s)} is too short for GPM")

    def close(self) -> None:
        """Frees the samples."""
        for sample in self._samples:
            try:
                self.nvml.nvmlGpmSampleFree(sample)
            except self.nvml.NVMLError:
                continue
        self._samples = []

    def metrics(self, earlier: Any, later: Any) -> Any:
        """The structure, filled in: its version, how many metrics, the two samples, and which metrics."""
        asked = self.nvml.c_nvmlGpmMetricsGet_t()
        asked.version = self.nvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(METRICS)
        asked.sample1, asked.sample2 = earlier, later
        for slot, metric in enumerate(METRICS.values()):
            asked.metrics[slot].metricId = getattr(self.nvml, metric)
        return self.nvml.nvmlGpmMetricsGet(asked)

    def _count(self, told: Any) -> None:
        for slot, name in enumerate(METRICS):
            metric = told.metrics[slot]
            if metric.nvmlReturn != self.nvml.NVML_SUCCESS:
                self._refuse((name,), explain(self.nvml, metric.nvmlReturn))
            elif 0 <= metric.value <= 100:
                self.tally.add(name, metric.value / 100, GPM)
        self._counted += 1

    def _refuse(self, names: Iterable[str], reason: str) -> None:
        for name in names:
            self.tally.refuse(name, reason, GPM)
