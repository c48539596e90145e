"""What this machine is and what ran on it: everything needed to judge a measurement, nothing that names its owner.

No host name, no user name, no path. The machine's id is a hash of facts that a restart leaves alone; machines that are
alike in all of them share an id, as their measurements may be compared.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys

from gambrel.types import GambrelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What nvidia-smi is asked for, and the name that the answer gets here.
GPU_QUERY = {
    "driver_version": "driver",
    "clocks.sm": "sm_mhz",
    "clocks.max.sm": "sm_max_mhz",
    "clocks.mem": "mem_mhz",
    "power.limit": "power_limit_w",
    "temperature.gpu": "temperature_c",
    "utilization.gpu": "utilization_percent",
}


#: Size of a huge page on x86 and on most others [byte]; with a larger one the kernel declines part of the advice.
HUGE_PAGE = 2**21


class MachineError(GambrelError):
    """A device that this machine does not have, or a library that it lacks."""


def load_torch() -> Any:
    """PyTorch, loaded when it is first used. Raises MachineError, with what to install, where it is absent."""
    try:
        import torch
    except ImportError:
        raise MachineError("this needs PyTorch: pip install 'gambrel[torch]'") from None
    return torch


def describe(device: str = "cpu", threads: int | None = None) -> dict[str, Any]:
    """Metadata of a measurement on `device` ("cpu" or "cuda:0"): machine, versions, clocks, git revision."""
    facts = hardware_facts()
    gpu = gpu_facts(device) if device.startswith("cuda") else None
    uuid = str(gpu.pop("uuid")) if gpu else ""
    return {
        "machine": machine_id({**facts, "gpu": gpu and {key: gpu[key] for key in ("name", "memory_bytes")}}),
        "device": gpu["name"] if gpu else facts["cpu"],
        "device_name": device,
        **facts,
        "threads": threads,
        "cpu_mhz": _cpu_mhz(),
        "gpu": gpu,
        "gpu_state": gpu_state(uuid) if gpu else None,
        "os": f"{platform.system()} {platform.release()}",
        "versions": versions(),
        "git_revision": git_revision(),
    }


def hardware_facts() -> dict[str, Any]:
    """What a restart leaves alone: processor, cores that may be used, memory [byte], last cache [byte]."""
    return {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "last_cache_bytes": last_cache_bytes(),
    }


def machine_id(facts: dict[str, Any]) -> str:
    """Twelve hex digits of a hash of the facts; memory to the nearest GiB, since kernels keep some of it."""
    stable = {**facts, "memory_bytes": round((facts.get("memory_bytes") or 0) / 2**30)}
    text = "\n".join(f"{key}={stable[key]}" for key in sorted(stable))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
    """Of gambrel, Python, and of what is loaded: torch, its CUDA, transformers."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("gambrel", *(name for name in ("torch", "transformers", "numpy") if name in sys.modules)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return {**found, "cuda": str(cuda)} if cuda else found


# The processor --------------------------------------------------------------------------------


def cpu_model() -> str:
    """The processor's name, with family and model where the name alone says little."""
    found = dict(re.findall(r"^(model name|cpu family|model|stepping)\s*: (.+)$", _text("/proc/cpuinfo"), re.MULTILINE))
    if "model name" in found:
        numbers = [f"{key.split()[-1]} {found[key]}" for key in ("cpu family", "model", "stepping") if key in found]
        return f"{found['model name'].strip()} ({', '.join(numbers)})" if numbers else str(found["model name"])
    return platform.processor() or platform.machine() or "unknown"


def usable_cores() -> int:
    """Processors that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Main memory [byte]; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def free_bytes(device: str = "cpu", limit: str = "/sys/fs/cgroup/memory.max") -> int | None:
    """Memory that can still be had on "cpu" or "cuda:0" [byte]; None where the system does not say.

    limit: the file of a container's own. Raises MachineError for a device that is not there.
    """
    if device.startswith("cuda"):
        gpu_facts(device)
        return int(load_torch().cuda.mem_get_info(device)[0])
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    own = _text(limit).strip()
    known = [int(found[1]) * 1024] if found else []
    return min([*known, *([int(own)] if own.isdigit() else [])], default=None)


def use_huge_pages(tensor: Any) -> None:
    """Ask Linux for huge pages before a tensor in main memory is first written; elsewhere nothing happens.

    Weights stream faster from them (docs/measured). Tensors alone are asked for, not all memory of the process.
    """
    import ctypes
    import mmap

    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or tensor.device.type != "cpu":
        return
    start = -(-tensor.data_ptr() // HUGE_PAGE) * HUGE_PAGE
    length = (tensor.data_ptr() + tensor.nbytes - start) // HUGE_PAGE * HUGE_PAGE
    if length > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(advice))


def huge_page_bytes() -> int | None:
    """Memory of this process that is in huge pages [byte]; None where the system does not say."""
    found = re.search(r"^AnonHugePages:\s+(\d+) kB", _text("/proc/self/smaps_rollup"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def last_cache_bytes(folder: str = "/sys/devices/system/cpu") -> int | None:
    """All of the last level of cache, every instance of it [byte]; None where the system does not say."""
    levels: dict[int, dict[str, int]] = {}
    try:
        cores = [name for name in os.listdir(folder) if re.fullmatch(r"cpu\d+", name)]
        for core in cores:
            for index in os.listdir(f"{folder}/{core}/cache"):
                at = f"{folder}/{core}/cache/{index}"
                level, size = _text(f"{at}/level").strip(), re.match(r"(\d+)K", _text(f"{at}/size"))
                if level.isdigit() and size:
                    levels.setdefault(int(level), {})[_text(f"{at}/shared_cpu_list")] = int(size[1]) * 1024
    except OSError:
        return None
    return sum(levels[max(levels)].values()) if levels else None


def _cpu_mhz() -> float | None:
    """Clock of the fastest core at this moment [MHz]."""
    clocks = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*: ([\d.]+)", _text("/proc/cpuinfo"), re.MULTILINE)]
    return max(clocks, default=None)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# The GPU --------------------------------------------------------------------------------------


def gpu_facts(device: str) -> dict[str, Any]:
    """Name, memory [byte], cache [byte] and units of a CUDA device. Raises MachineError where there is none such."""
    torch = load_torch()
    _, _, number = device.partition(":")
    index = int(number) if number.isdigit() else 0
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        has = ", ".join(f"cuda:{i}" for i in range(torch.cuda.device_count())) if torch.cuda.is_available() else "none"
        raise MachineError(f"no CUDA device {device}; this PyTorch sees {has}, and cpu always works")
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "units": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "uuid": f"GPU-{str(getattr(properties, 'uuid', '')).removeprefix('GPU-')}",
    }


def gpu_state(uuid: str) -> dict[str, Any] | None:
    """Driver, clocks, power limit, temperature and load of a GPU now; None where nvidia-smi does not say."""
    import subprocess

    command = ["nvidia-smi", "-i", uuid, f"--query-gpu={','.join(GPU_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(GPU_QUERY.values(), map(_number, values), strict=False))


def _number(text: str) -> float | str | None:
    try:
        return float(text)
    except ValueError:
        return text if re.fullmatch(r"[\d.]+", text) else None


# The code -------------------------------------------------------------------------------------


def git_revision(folder: str | None = None) -> str | None:
    """The commit of the repository around the working folder, read from its files; None outside of one."""
    at = os.path.abspath(folder or os.getcwd())
    while not os.path.exists(os.path.join(at, ".git")):
        at, inner = os.path.dirname(at), at
        if at == inner:
            return None
    git = os.path.join(at, ".git")
    if os.path.isfile(git):
        git = os.path.join(at, _text(git).removeprefix("gitdir:").strip())
    head = _text(os.path.join(git, "HEAD")).strip()
    if not head.startswith("ref: "):
        return head or None
    ref = head.removeprefix("ref: ")
    common = os.path.join(git, _text(os.path.join(git, "commondir")).strip())
    for place in (git, common):
        if found := _text(os.path.join(place, *ref.split("/"))).strip():
            return found
    packed = re.search(rf"^([0-9a-f]+) {re.escape(ref)}$", _text(os.path.join(common, "packed-refs")), re.MULTILINE)
    return packed[1] if packed else None
