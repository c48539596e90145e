"""Counters, against a fake NVML with the real one's call signatures, structures and errors, and a fake dcgmi."""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import os
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import gambrel
from gambrel.measure import counters, dcgm, nvml, readings
from gambrel.measure.counters import COUNTERS, Counters, derive, document, fill
from gambrel.measure.readings import PROFILED, Tally, UnavailableError
from gambrel.show.counters import NAMES, counters_lines, counters_tables

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py (pip install gambrel[nvml])")

UUIDS = [f"GPU-{digit}{digit}{digit}{digit}0000-0000-4000-8000-000000000000" for digit in "abc"]
BUSES = ["00000000:3B:00.0", "00000000:18:00.0", "00000000:AF:00.0"]
INTERVAL_S = 0.01
GPM_PERCENT = {"SM_UTIL": 90.0, "SM_OCCUPANCY": 25.0, "ANY_TENSOR_UTIL": 64.0, "DRAM_BW_UTIL": 50.0}


class FakeNvml:
    """NVML's functions with scripted answers; constants, structures and errors are the real package's.

    gpm: whether the GPUs have it. errors: NVML code by function. script: values by function, the last one repeats.
    lacks: functions that this package does not have.
    """

    def __init__(self, count=1, gpm=True, errors=(), script=(), lacks=(), mig=None):
        self.count, self.gpm, self.mig = count, gpm, mig
        self.errors, self.script, self.lacks = dict(errors), {k: list(v) for k, v in dict(script).items()}, lacks
        self.calls, self.opened, self.samples, self.freed, self.energy_mj = Counter(), 0, {}, [], 10**9
        self.asked, self.percent = [], dict(GPM_PERCENT)

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "lacks"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name):
        if re.match(r"nvml[A-Z]", name):
            raise AttributeError(f"the fake has no {name}")
        return getattr(pynvml, name)

    def _did(self, name, default=None):
        self.calls[name] += 1
        if name in self.errors:
            error = self.errors[name]
            raise pynvml.NVMLError(error) if isinstance(error, int) else error
        values = self.script.get(name, [default])
        return values[min(self.calls[name] - 1, len(values) - 1)]

    def nvmlInit(self):
        self._did("nvmlInit")
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlDeviceGetCount(self):
        return self._did("nvmlDeviceGetCount", self.count)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._did("nvmlDeviceGetHandleByIndex", index)

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self._did("nvmlDeviceGetHandleByUUID")
        if uuid not in UUIDS[: self.count]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return UUIDS.index(uuid)

    def nvmlDeviceGetHandleByPciBusId(self, pciBusId):
        return BUSES.index(pciBusId)

    def nvmlDeviceGetUUID(self, handle):
        return UUIDS[handle]

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=BUSES[handle].encode())

    def nvmlDeviceGetMigMode(self, device):
        if self.mig is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [self.mig, self.mig]

    def nvmlDeviceGetUtilizationRates(self, handle):
        gpu, memory = self._did("nvmlDeviceGetUtilizationRates", (100, 40))
        return SimpleNamespace(gpu=gpu, memory=memory)

    def nvmlDeviceGetClockInfo(self, handle, type):
        known = {pynvml.NVML_CLOCK_SM: 1015, pynvml.NVML_CLOCK_MEM: 3201}
        return self._did("nvmlDeviceGetClockInfo", known[type])

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._did("nvmlDeviceGetPowerUsage", 300_000)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._did("nvmlDeviceGetTemperature", 55)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._did("nvmlDeviceGetCurrentClocksEventReasons", 0)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self._did("nvmlDeviceGetCurrentClocksThrottleReasons", 0)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self._did("nvmlDeviceGetTotalEnergyConsumption", self.energy_mj)

    def nvmlGpmQueryDeviceSupport(self, device):
        self._did("nvmlGpmQueryDeviceSupport")
        return pynvml.c_nvmlGpmSupport_t(pynvml.NVML_GPM_SUPPORT_VERSION, int(self.gpm))

    def nvmlGpmSampleAlloc(self):
        self._did("nvmlGpmSampleAlloc")
        address = 16 * self.calls["nvmlGpmSampleAlloc"]
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleGet(self, device, gpmSample):
        self._did("nvmlGpmSampleGet")
        self.samples[address(gpmSample)] = self.calls["nvmlGpmSampleGet"]
        return gpmSample

    def nvmlGpmSampleFree(self, gpmSample):
        self.freed.append(address(gpmSample))

    def nvmlGpmMetricsGet(self, metricsGet):
        self._did("nvmlGpmMetricsGet")
        assert isinstance(metricsGet, pynvml.c_nvmlGpmMetricsGet_t)
        if metricsGet.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        one, two = self.samples[address(metricsGet.sample1)], self.samples[address(metricsGet.sample2)]
        assert one < two, "the earlier sample comes first"
        wanted = {getattr(pynvml, f"NVML_GPM_METRIC_{name}"): value for name, value in self.percent.items()}
        self.asked.append([metricsGet.metrics[slot].metricId for slot in range(metricsGet.numMetrics)])
        for slot in range(metricsGet.numMetrics):
            metric = metricsGet.metrics[slot]
            value = wanted[metric.metricId]
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if value is None else pynvml.NVML_SUCCESS
            metric.value = value or 0.0
        return metricsGet


def address(sample):
    return ctypes.cast(sample, ctypes.c_void_p).value


def watch(fake, until=lambda fake: fake.calls["nvmlDeviceGetPowerUsage"] > 4, device="cuda:0", environ=None, **given):
    """Readings of a region that lasts until the fake was asked often enough."""
    watched = Counters(device, interval_s=INTERVAL_S, nvml=fake, environ=environ or {"PATH": ""}, **given)
    with watched:
        give_up = time.monotonic() + 20
        while watched._thread and watched._thread.is_alive() and not until(fake) and time.monotonic() < give_up:
            time.sleep(0.002)
    assert watched._thread is None
    assert not [t for t in threading.enumerate() if t.name.startswith("gambrel-")]
    return watched.readings


def reason(found, name="sm_active"):
    assert found[name].value is None
    assert found[name].low is None
    assert found[name].reason
    assert "\n" not in found[name].reason
    return found[name].reason


# The fake is like the real one --------------------------------------------------------------------

CALLED = sorted(
    {
        name
        for module in (nvml, counters)
        for pair in re.findall(r'nvml\.(nvml[A-Z]\w+)|"(nvml(?:Device|Gpm)\w+)"', Path(module.__file__).read_text())
        for name in pair
        if name
    }
)


def test_what_is_called_is_known():
    assert {"nvmlInit", "nvmlShutdown", "nvmlGpmMetricsGet", "nvmlDeviceGetCurrentClocksEventReasons"} <= set(CALLED)


@pytest.mark.parametrize("name", CALLED)
def test_signatures_are_the_real_ones(name):
    fake = getattr(FakeNvml(), name)
    assert str(inspect.signature(fake)) == str(inspect.signature(getattr(pynvml, name)))


def test_constants_exist_in_the_real_package():
    for name in (*nvml.ERRORS, *nvml.METRICS.values()):
        assert isinstance(getattr(pynvml, name), int)
    for name in ("NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU", "NVML_GPM_METRICS_GET_VERSION"):
        assert isinstance(getattr(pynvml, name), int)
    assert tuple(nvml.METRICS) == tuple(dcgm.FIELDS) == PROFILED


@pytest.mark.parametrize("name", nvml.REASONS)
def test_reason_bits_are_the_real_ones(name):
    bit, _ = nvml.REASONS[name]
    found = {getattr(pynvml, f"nvmlClocks{kind}Reason{name}", bit) for kind in ("Event", "Throttle")}
    assert found == {bit}


def test_every_real_reason_has_a_word():
    assert "bit" not in " ".join(nvml.decode(pynvml.nvmlClocksEventReasonAll | pynvml.nvmlClocksThrottleReasonAll))


# Hopper -------------------------------------------------------------------------------------------


def test_hopper_gives_gpm():
    fake = FakeNvml()
    found = watch(fake, until=lambda fake: fake.calls["nvmlGpmMetricsGet"] > 3)
    assert found.keys() == COUNTERS.keys()
    for name, value in zip(PROFILED, (0.9, 0.25, 0.64, 0.5), strict=True):
        assert found[name].value == pytest.approx(value)
        assert (found[name].source, found[name].reason, found[name].unit) == ("NVML GPM", "", "1")
        assert found[name].samples >= 3
    assert found["sm_clock"].value == 1015
    assert found["memory_clock"].value == 3201
    assert found["power"].value == 300.0
    assert found["kernel_busy"].value == 1.0
    assert found["throttle"].value == 0.0
    assert fake.asked[0] == [2, 3, 5, 10]
    assert sorted(fake.freed) == [16, 32]
    assert fake.opened == 0


def test_sampling_cost_is_measured():
    cost = watch(FakeNvml())["sampling_cost"]
    assert 0 < cost.value < 1
    assert cost.source == "processor clock"


def test_gpm_metric_that_fails_gives_no_number_and_leaves_the_others():
    fake = FakeNvml()
    fake.percent["ANY_TENSOR_UTIL"] = None
    found = watch(fake, until=lambda fake: fake.calls["nvmlGpmMetricsGet"] > 2)
    assert "does not support" in reason(found, "tensor_active")
    assert found["sm_active"].value == pytest.approx(0.9)


def clocked(fake, times_s, values):
    """GPM sampled at given moments, values before each; the tally."""
    tally = Tally()
    gpm = nvml.Gpm(fake, 0, tally)
    gpm.begin(0.0)
    for at_s, value in zip(times_s[:-1], values[:-1], strict=True):
        fake.percent["SM_UTIL"] = value
        gpm.sample(at_s)
    fake.percent["SM_UTIL"] = values[-1]
    gpm.end(times_s[-1], 0.1)
    gpm.close()
    return tally.readings("none")["sm_active"]


def test_values_between_samples_are_aggregated():
    found = clocked(FakeNvml(), (0.1, 0.2, 0.3, 0.31), (10.0, 40.0, 30.0, 99.0))
    assert (found.value, found.low, found.high, found.samples) == (0.3, 0.1, 0.4, 3)


def test_a_last_interval_that_is_long_enough_counts():
    assert clocked(FakeNvml(), (0.1, 0.2, 0.26), (10.0, 40.0, 30.0)).samples == 3


def test_a_region_shorter_than_an_interval_still_has_one_value():
    found = clocked(FakeNvml(), (0.05,), (30.0,))
    assert (found.value, found.samples) == (0.3, 1)


def test_a_region_that_is_far_too_short_has_none():
    found = clocked(FakeNvml(), (0.001,), (30.0,))
    assert (found.value, found.reason) == (None, "the region of 1.00 ms is too short for GPM")


def test_gauges_are_aggregated_over_the_region_alone():
    """The value at the start says what can be had, and belongs to the time before."""
    tally = Tally()
    powers = [70_000, 100_000, 300_000, 200_000]
    gauges = nvml.Gauges(FakeNvml(script={"nvmlDeviceGetPowerUsage": powers}), 0, tally)
    gauges.begin(0.0)
    for at_s in (0.1, 0.2, 0.3):
        gauges.sample(at_s)
    gauges.end(0.4, 0.1)
    power = tally.readings("none")["power"]
    assert (power.value, power.low, power.high, power.samples, power.unit) == (200.0, 100.0, 300.0, 3, "W")


@pytest.mark.parametrize(("end_s", "energy_mj", "watts"), [(2.0, 600_000, 300.0), (0.1, 30_000, None), (2.0, 0, None)])
def test_energy_gives_the_mean_power(end_s, energy_mj, watts):
    fake, tally = FakeNvml(), Tally()
    gauges = nvml.Gauges(fake, 0, tally)
    gauges.begin(0.0)
    fake.energy_mj += energy_mj
    gauges.end(end_s, 0.1)
    found = tally.readings("none")
    assert found["mean_power"].value == watts
    assert found["energy"].value == (energy_mj / 1e3 if watts else None)
    assert found["energy"].source == "NVML energy counter"


# What holds the clocks ----------------------------------------------------------------------------

THROTTLED = [0x0, 0x4, 0x4 | 0x40, 0x1, 0x4000]
NAMED = {"power limit": 0.5, "temperature (hardware)": 0.25, "bit 0x4000": 0.25}


@pytest.mark.parametrize(
    ("name", "lacks", "errors"),
    [
        ("Event", (), {}),
        ("Throttle", ("nvmlDeviceGetCurrentClocksEventReasons",), {}),
        ("Throttle", (), {"nvmlDeviceGetCurrentClocksEventReasons": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}),
    ],
    ids=["new name", "old package", "old driver"],
)
def test_throttle_reasons(name, lacks, errors):
    fake, tally = (
        FakeNvml(lacks=lacks, errors=errors, script={f"nvmlDeviceGetCurrentClocks{name}Reasons": THROTTLED}),
        Tally(),
    )
    gauges = nvml.Gauges(fake, 0, tally)
    gauges.begin(0.0)
    for _ in THROTTLED[1:]:
        gauges.sample(0.1)
    found = tally.readings("none")["throttle"]
    assert found.value == 0.75
    assert found.detail == NAMED
    assert "power limit in 50% of the samples" in counters_lines(document({"throttle": found}))[0]


def test_throttle_reasons_not_supported():
    fake = FakeNvml(errors={"nvmlDeviceGetCurrentClocksEventReasons": pynvml.NVML_ERROR_NOT_SUPPORTED})
    found = watch(fake)
    assert "does not support" in reason(found, "throttle")
    assert not fake.calls["nvmlDeviceGetCurrentClocksThrottleReasons"]


# Where something is missing -----------------------------------------------------------------------


def test_no_driver(monkeypatch):
    fake = FakeNvml(errors={"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})
    found = watch(fake)
    assert {reason(found, name) for name in COUNTERS} == {"no NVIDIA driver here"}
    filled = fill(found, derive(3.35e12 / 2, 0, 1.0, gambrel.load_device("h100-sxm")))
    assert filled["dram_active"].value == pytest.approx(0.5)
    assert filled["dram_active"].reason == "no NVIDIA driver here"
    assert filled["sm_active"].value is None
    assert fake.opened == 0


def test_this_machine_or_a_gpu():
    """The real library: no driver here, or a GPU that answers."""
    with Counters() as watched:
        pass
    assert watched.readings.keys() == COUNTERS.keys()
    assert all(found.value is not None or found.reason for found in watched.readings.values())


@pytest.mark.parametrize(("driver", "told"), [(False, "no NVIDIA driver here"), (True, "pip install 'gambrel[nvml]'")])
def test_no_package(monkeypatch, driver, told):
    """Only where it would help is one told to install it."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(nvml, "_driver", lambda: driver)
    with Counters(environ={}) as watched:
        pass
    assert told in reason(watched.readings, "power")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("DRIVER_NOT_LOADED", "not loaded"),
        ("NO_PERMISSION", "ERR_NVGPUCTRPERM"),
        ("LIB_RM_VERSION_MISMATCH", "differ in version"),
        ("UNKNOWN", "NVML says: Unknown Error"),
    ],
)
def test_init_fails(code, told):
    found = watch(FakeNvml(errors={"nvmlInit": getattr(pynvml, f"NVML_ERROR_{code}")}))
    assert all(told in reason(found, name) for name in COUNTERS)


def test_permission_denied_for_gpm_alone():
    found = watch(FakeNvml(errors={"nvmlGpmSampleGet": pynvml.NVML_ERROR_NO_PERMISSION}))
    assert "GPM: not permitted" in reason(found)
    assert "DCGM: dcgmi is not installed" in reason(found)
    assert found["sm_clock"].value == 1015


def test_gauge_not_supported():
    found = watch(FakeNvml(errors={"nvmlDeviceGetTotalEnergyConsumption": pynvml.NVML_ERROR_NOT_SUPPORTED}))
    assert "does not support" in reason(found, "energy")
    assert found["power"].value == 300.0


def test_old_driver_without_gpm():
    found = watch(FakeNvml(errors={"nvmlGpmQueryDeviceSupport": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}))
    assert "too old" in reason(found)


def test_a_gauge_that_fails_in_the_middle_gives_no_number():
    fake, tally = FakeNvml(), Tally()
    gauges = nvml.Gauges(fake, 0, tally)
    gauges.begin(0.0)
    gauges.sample(0.1)
    fake.errors["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_GPU_IS_LOST
    gauges.sample(0.2)
    gauges.sample(0.3)
    found = tally.readings("none")
    assert "fallen off" in reason(found, "power")
    assert found["sm_clock"].samples == 3
    assert fake.calls["nvmlDeviceGetPowerUsage"] == 3


def test_the_thread_stops_on_an_error():
    fake = FakeNvml()

    def fails(_):
        if fake.calls["nvmlDeviceGetPowerUsage"] > 3:
            fake.errors["nvmlDeviceGetTemperature"] = OSError("the bus\nis on fire")
        return False

    found = watch(fake, until=fails)
    assert re.fullmatch(r"sampling stopped: OSError: the bus is on fire \(after \d+ samples\)", reason(found, "power"))
    assert all(found[name].value is None for name in COUNTERS if name != "sampling_cost")
    assert fake.opened == 0
    assert len(fake.freed) == 2


def test_a_run_on_a_processor():
    assert "on a processor" in reason(watch(FakeNvml(), device="cpu"))


def test_never_started_and_stopped_twice():
    watched = Counters(nvml=FakeNvml(), environ={})
    found = watched.stop()
    assert "never started" in reason(found)
    assert watched.stop() is found


def test_a_region_without_a_sample():
    fake = FakeNvml()
    with Counters(interval_s=10, nvml=fake, environ={}) as watched:
        pass
    assert "no sample fell into the region" in reason(watched.readings, "power")
    assert "too short" in reason(watched.readings)


def test_an_error_in_the_region_is_not_swallowed():
    fake = FakeNvml()
    with pytest.raises(KeyError), Counters(nvml=fake, environ={}) as watched:
        raise KeyError
    assert fake.opened == 0
    assert watched.readings


def test_a_driver_that_hangs(monkeypatch):
    monkeypatch.setattr(counters, "JOIN_S", 0.05)
    fake, hold, entered = FakeNvml(), threading.Event(), threading.Event()

    def hang(handle):
        if threading.current_thread().name == "gambrel-counters":
            entered.set()
            hold.wait(20)
        return 300_000

    fake.nvmlDeviceGetPowerUsage = hang
    with Counters(interval_s=INTERVAL_S, nvml=fake, environ={}) as watched:
        assert entered.wait(20)
        thread = watched._thread
    hold.set()
    thread.join(20)
    assert "did not answer" in reason(watched.readings, "power")


# Which GPU ----------------------------------------------------------------------------------------

PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("device", "gpu", "environ", "uuid"),
    [
        ("cuda:0", "", PCI, UUIDS[1]),  # in the order of the bus
        ("cuda", "", PCI, UUIDS[1]),
        ("cuda:1", "", PCI, UUIDS[0]),
        ("cuda:1", "", {**PCI, "CUDA_VISIBLE_DEVICES": "2, 0"}, UUIDS[1]),
        ("cuda:0", "", {"CUDA_VISIBLE_DEVICES": UUIDS[2]}, UUIDS[2]),
        ("cuda:0", "", {"CUDA_VISIBLE_DEVICES": UUIDS[2][:8]}, UUIDS[2]),
        ("cuda:1", UUIDS[2], {}, UUIDS[2]),
        ("cuda:1", BUSES[2], {"CUDA_VISIBLE_DEVICES": "0"}, UUIDS[2]),
    ],
)
def test_which_gpu(device, gpu, environ, uuid):
    handle, found = nvml.find(FakeNvml(3), device, gpu, environ)
    assert (found, UUIDS[handle]) == (uuid, uuid)


def test_one_gpu_needs_no_order():
    assert nvml.find(FakeNvml(1), "cuda:0", "", {"CUDA_VISIBLE_DEVICES": "0"})[1] == UUIDS[0]


@pytest.mark.parametrize(
    ("device", "environ", "told"),
    [
        ("cuda:0", {}, "set CUDA_DEVICE_ORDER"),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": "1"}, "set CUDA_DEVICE_ORDER"),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": ""}, "CUDA sees 0 of the 3"),
        ("cuda:1", {**PCI, "CUDA_VISIBLE_DEVICES": "0,-1,1"}, "CUDA sees 1 of the 3"),
        ("cuda:3", PCI, "no cuda:3"),
        ("cuda:0", {"CUDA_VISIBLE_DEVICES": "MIG-1234"}, "MIG"),
    ],
)
def test_which_gpu_is_not_guessed(device, environ, told):
    with pytest.raises(UnavailableError, match=told):
        nvml.find(FakeNvml(3), device, "", environ)


def test_a_divided_gpu_has_no_counters():
    assert "MIG" in reason(watch(FakeNvml(mig=1)))
    assert watch(FakeNvml(mig=0))["sm_active"].value


def test_an_unknown_uuid():
    assert "does not know this GPU" in reason(watch(FakeNvml(), gpu=UUIDS[2]))


def test_pytorch_names_the_gpu(monkeypatch):
    cuda = SimpleNamespace(
        is_initialized=lambda: True, get_device_properties=lambda device: SimpleNamespace(uuid=UUIDS[2][4:])
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert counters._uuid("cuda:0") == UUIDS[2]
    cuda.is_initialized = lambda: False
    assert counters._uuid("cuda:0") == ""


# DCGM ---------------------------------------------------------------------------------------------

DISCOVERY = f"""2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA A100-SXM4-80GB                                          |
|        | PCI Bus ID: {BUSES[1]}                                         |
|        | Device UUID: {UUIDS[1]}                |
+--------+----------------------------------------------------------------------+
| 4      | Name: NVIDIA A100-SXM4-80GB                                          |
|        | PCI Bus ID: {BUSES[0]}                                         |
|        | Device UUID: {UUIDS[0]}                |
+--------+----------------------------------------------------------------------+
"""
HEADER = "#Entity   SMACT        SMOCC        TENSO        DRAMA\nID\n"
ROWS = HEADER + "GPU 4     N/A          N/A          N/A          N/A\n"
ROW = "GPU 4     0.899        0.250        0.641        0.500"


@pytest.fixture
def tool(tmp_path):
    """Writes a dcgmi that lists two GPUs and does as it is told; the environment that has it, and its log."""

    def make(dmon, discovery=DISCOVERY):
        (tmp_path / "list").write_text(discovery)
        (tmp_path / "rows").write_text(ROWS)
        script = tmp_path / "dcgmi"
        script.write_text(
            f'#!/bin/sh\necho "$$ $@" >> {tmp_path}/log\n'
            f"case $1 in discovery) cat {tmp_path}/list; exit ${{LIST:-0}};; esac\n{dmon}\n"
        )
        script.chmod(0o755)
        return {"PATH": str(tmp_path)}

    make.log = tmp_path / "log"
    make.loop = f'cat {tmp_path}/rows\nwhile :; do echo "{ROW}"; sleep 0.01; done'
    return make


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def dmon_call(tool):
    pid, *arguments = tool.log.read_text().splitlines()[-1].split()
    return int(pid), arguments


def test_a100_gives_dcgm(tool):
    environ = tool(tool.loop)
    found = watch(FakeNvml(gpm=False), until=lambda fake: fake.calls["nvmlDeviceGetPowerUsage"] > 15, environ=environ)
    for name, value in zip(PROFILED, (0.899, 0.25, 0.641, 0.5), strict=True):
        assert (found[name].value, found[name].source, found[name].reason) == (value, "DCGM", "")
    assert found["sm_clock"].source == "NVML"
    pid, arguments = dmon_call(tool)
    assert arguments == ["dmon", "-e", "1002,1003,1004,1005", "-i", "4", "-d", "10", "-c", "36000"]
    assert gone(pid)


def test_a_tool_that_does_not_end_is_killed(tool, monkeypatch):
    monkeypatch.setattr(dcgm, "END_S", 0.2)
    environ = tool("trap '' TERM\n" + tool.loop)
    watch(FakeNvml(gpm=False), environ=environ)
    assert gone(dmon_call(tool)[0])


def test_dcgm_outlives_an_error_of_nvml(tool):
    fake = FakeNvml(gpm=False)

    def fails(_):
        if fake.calls["nvmlDeviceGetPowerUsage"] > 15:
            fake.errors["nvmlDeviceGetTemperature"] = OSError("gone")
        return False

    found = watch(fake, until=fails, environ=tool(tool.loop))
    assert found["power"].value is None
    assert found["sm_active"].value == 0.899


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Error setting watches. Result: -33: This request is serviced by a module that is not currently loaded",
            "GeForce",
        ),
        (
            "Error setting watches. Result: The third-party Profiling module returned an unrecoverable error",
            "another prof",
        ),
        ("Error setting watches. Result: Host engine is running as non-root", "must run as root"),
        ("Error: unable to establish a connection to the specified host: localhost", "nv-hostengine does not run"),
        ("Error: \033[31mfrogs", "dcgmi says: Error: [31mfrogs"),
    ],
)
def test_dcgm_that_refuses(tool, said, told):
    """Consumer Ada has neither GPM nor DCGM's profiling: both say so in one line."""
    found = watch(FakeNvml(gpm=False), environ=tool(f"printf '%s' '{HEADER}'\necho '{said}' >&2\nexit 1"))
    assert reason(found).startswith("NVML GPM: this GPU has no GPM, which came with Hopper; DCGM: ")
    assert told in reason(found)
    assert found["power"].value == 300.0


def test_ada_without_either():
    found = watch(FakeNvml(gpm=False))
    assert reason(found).endswith("DCGM: dcgmi is not installed")
    device = gambrel.load_device("rtx-4090")
    filled = fill(found, derive(device.mem_bytes_per_s * 0.8, 0, 1.0, device))
    assert filled["dram_active"].source == readings.BYTES
    assert filled["dram_active"].value == pytest.approx(0.8)
    assert "came with Hopper" in filled["dram_active"].reason


@pytest.mark.parametrize("discovery", ["0 GPUs found.\n", DISCOVERY.replace("| 4", "| x"), ""])
def test_dcgm_that_knows_other_gpus(tool, discovery):
    found = watch(FakeNvml(gpm=False), environ=tool(tool.loop, discovery))
    assert reason(found).endswith("DCGM does not know this GPU")


def test_dcgm_without_values(tool):
    found = watch(FakeNvml(gpm=False), environ=tool(f"cat {tool.log.parent}/rows"))
    assert reason(found).endswith("N/A for this GPU")


def test_a_silent_tool(tool, monkeypatch):
    monkeypatch.setattr(dcgm, "FIRST_ROW_S", 0.1)
    found = watch(FakeNvml(gpm=False), environ=tool("exec sleep 30"))
    assert "gave no value within 0.1 s" in reason(found)
    assert gone(dmon_call(tool)[0])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("GPU 4     0.899        0.641", {"sm_active": 0.899, "tensor_active": 0.641}),
        ("    4     0.899        1.000", {"sm_active": 0.899, "tensor_active": 1.0}),
        ("GPU 4     N/A          0.641", {"tensor_active": 0.641}),
        ("GPU 0     0.899        0.641", {}),
        ("GPU 4     85.2         140737488355328.000", {}),
        ("ID", {}),
        ("", {}),
    ],
)
def test_rows_of_dmon(line, found):
    assert dcgm.parse(line, ["SMACT", "TENSO"], "4") == found


# Derived, and shown -------------------------------------------------------------------------------


def test_derived_values():
    h100 = gambrel.load_device("h100-sxm")
    found = derive(h100.mem_bytes_per_s * 0.25, h100.peak("bf16") * 0.5, 0.5, h100)
    assert found["dram_active"].value == pytest.approx(0.5)
    assert found["tensor_active"].value == 1.0
    assert all(reading.source.startswith("derived") for reading in found.values())


@pytest.mark.parametrize(
    ("moved", "time_s", "device", "dtype", "name", "told"),
    [
        (1e15, 1.0, "h100-sxm", "bf16", "dram_active", "below its floor"),
        (1.0, 0.0, "h100-sxm", "bf16", "dram_active", "needs a time"),
        (1.0, float("nan"), "h100-sxm", "bf16", "dram_active", "needs a time"),
        (1.0, 1.0, None, "bf16", "tensor_active", "no device"),
        (1.0, 1.0, "a100-80gb", "fp8", "tensor_active", "has no fp8 peak"),
    ],
)
def test_derived_values_that_cannot_be(moved, time_s, device, dtype, name, told):
    found = derive(moved, 1.0, time_s, device and gambrel.load_device(device), dtype)
    assert told in reason(found, name)


def test_measured_values_stay():
    measured = readings.Reading("dram_active", 0.4, "1", "NVML GPM", 3)
    assert fill({"dram_active": measured}, derive(1.0, 1.0, 1.0, None))["dram_active"] is measured


def test_every_counter_has_a_word_and_a_line_in_the_documentation():
    page = (Path(__file__).parent.parent / "docs" / "counters.md").read_text()
    assert NAMES.keys() == COUNTERS.keys()
    assert [name for name in COUNTERS if f"| `{name}` |" not in page] == []


def test_table_and_lines():
    from gambrel.show.tables import to_csv, to_markdown
    from gambrel.show.text import align

    found = document(
        watch(
            FakeNvml(gpm=False, errors={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NOT_SUPPORTED}),
            until=lambda fake: fake.calls["nvmlDeviceGetClockInfo"] > 8,
        )
    )
    (table,) = counters_tables(found)
    rows = {line.split("  ")[0]: line for line in align(table)}
    assert re.search(r"SM clock +1015 MHz +1015 MHz +1015 MHz +\d+ +NVML", rows["SM clock"])
    assert "55 °C" in rows["temperature"]
    assert "SM active" not in rows
    lines = counters_lines(found)
    assert "not available (this GPU or its driver does not support it): power" in lines
    assert sum("SM active, SM occupancy, tensor active, DRAM active" in line for line in lines) == 1
    assert "1015" in to_csv([table])
    assert "| 1015 MHz |" in to_markdown([table])


def test_nothing_to_show():
    found = document(watch(FakeNvml(errors={"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})))
    assert counters_tables(found) == []
    assert counters_lines(found) == [f"not available (no NVIDIA driver here): {', '.join(NAMES.values())}"]


def test_the_package_is_loaded_when_used():
    assert importlib.util.find_spec("gambrel.measure.counters")
    text = "".join(Path(module.__file__).read_text() for module in (counters, dcgm, nvml, readings))
    assert re.findall(r"^import pynvml|^from pynvml", text, re.MULTILINE) == []
    assert "shell" not in re.sub(r'""".*?"""', "", text, flags=re.DOTALL)


def test_a_record_keeps_what_was_read_and_its_bound_implies_the_rest():
    from gambrel.measure.record import Measurement
    from gambrel.measure.run import counted
    from gambrel.types import Bound

    found = document(watch(FakeNvml(gpm=False)))
    record = Measurement("a1", "decode", (0.002,), (), {"counters": found})
    shown = counted(record, Bound({"memory": 0.001, "compute": 0.0001}, 0.001))
    assert (shown["dram_active"]["value"], shown["dram_active"]["source"]) == (0.5, readings.BYTES)
    assert shown["tensor_active"]["value"] == pytest.approx(0.05)
    assert shown["power"] == found["power"]
    assert counted(record)["dram_active"]["value"] is None
    assert counted(Measurement("a2", "decode", (0.002,))) == {}


def test_what_all_runs_share_is_said_once():
    from gambrel.show.execution import _counters, _without

    throttled = FakeNvml(gpm=False, script={"nvmlDeviceGetCurrentClocksEventReasons": [0x4]})
    runs = [
        {"phase": "prefill", "engine": "torch", "counters": document(watch(throttled))},
        {"phase": "decode", "engine": "graph", "counters": document(watch(FakeNvml(gpm=False)))},
    ]
    assert [table.title for table in _counters(runs)] == ["Counters: prefill, eager", "Counters: decode, CUDA graph"]
    lines = _without(runs)
    assert "prefill, eager: clocks held down by power limit in 100% of the samples" in lines
    assert len([line for line in lines if "no GPM" in line]) == 1
