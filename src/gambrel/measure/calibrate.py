"""This machine's own ceilings: matrix products by dtype, memory read and copied, launches; and the file that keeps it.

For each ceiling several kernels and shapes are timed on random data, all results are kept, and the one with the best
median counts. What was measured is not a bound: another kernel may do better.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import field

from gambrel.measure.clock import Plan, Progress, time_it
from gambrel.measure.record import quantile
from gambrel.types import CALIBRATION, GambrelError
from gambrel.units import si
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Protocol

    from gambrel.measure.clock import Counters, Timer, Timing

    class Backend(Protocol):
        """What runs the kernels. device: "cpu" or "cuda:0". thread_counts: to measure with, all of them last."""

        device: str
        dtypes: Sequence[str]
        thread_counts: Sequence[int]
        last_cache_bytes: int
        memory_bytes: int

        def set_threads(self, threads: int) -> None:
            """Use this many threads from now on."""

        def product(self, dtype: str, shape: Shape) -> Case:
            """An m x k matrix times a k x n one. Raises Unsupported."""

        def reads(self, n_bytes: int) -> Iterator[Case]:
            """Kernels that read n_bytes and write next to nothing."""

        def copies(self, n_bytes: int) -> Iterator[Case]:
            """Kernels that read and write, n_bytes in all."""

        def tiny(self) -> Case:
            """A kernel that does next to nothing."""

        def timer(self, kind: str) -> Timer:
            """What times a kind of case."""

        def describe(self, threads: int) -> dict[str, Any]:
            """Metadata of the machine."""


#: Rows, columns, and the inner dimension of a matrix product.
Shape = tuple[int, int, int]
PRODUCT, READ, COPY, LAUNCH = "product", "read", "copy", "launch"
METHOD = (
    "medians of undisturbed repetitions, warm-ups apart; of several kernels and sizes the best; products on uniform "
    "random data; read and copy over buffers beyond the last cache, a copied byte counted once read and once written; "
    "the harness's own overhead is part of every time"
)
#: Of a GPU, at the start, above which something else computes on it [percent].
IDLE_PERCENT = 5


class Unsupported(GambrelError):
    """A kernel that this device or this PyTorch does not have."""


@frozen
class Case:
    """Something to time. amount: FLOPs of a product, bytes moved by a read or a copy, 1 launch; of one call."""

    kind: str
    kernel: str
    amount: float
    call: Callable[[], object]
    dtype: str = ""
    shape: str = ""


@frozen
class Result:
    """One case, timed. rate: amount over time [FLOP/s, byte/s or 1/s]. values_s: seconds a call."""

    kind: str
    kernel: str
    dtype: str
    shape: str
    threads: int
    amount: float
    timing: Timing

    @property
    def rate(self) -> float:
        """At the median time."""
        return self.amount / self.timing.median_s

    def to_dict(self) -> dict[str, Any]:
        """As plain data, with the quartiles of the time."""
        timing = self.timing
        return {
            "kind": self.kind,
            "kernel": self.kernel,
            "dtype": self.dtype,
            "shape": self.shape,
            "threads": self.threads,
            "rate": self.rate,
            "median_s": timing.median_s,
            "quartile_1_s": quantile(timing.values_s, 0.25),
            "quartile_3_s": quantile(timing.values_s, 0.75),
            "spread": timing.spread,
            "repeats": len(timing.values_s),
            "rejected": timing.rejected,
            "calls": timing.calls,
            "busy": timing.busy,
            "cpu_share": timing.cpu_share,
            "other_cores": timing.other_cores,
            "overhead_s": timing.overhead_s,
        }


@frozen
class Effort:
    """How much to measure. sizes: of buffers, in last caches. largest_s: a single call that would take longer is left
    out [s]. shapes: of products, ascending.
    """

    shapes: tuple[Shape, ...]
    sizes: tuple[int, ...] = (4, 8)
    least_bytes: int = 2**28
    largest_s: float = 3.0
    plan: Plan = field(default_factory=Plan)


@frozen
class Ceilings:
    """What this machine reaches. left_out: what could not be measured, and why. notes: what disturbed it."""

    device: str
    results: tuple[Result, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    memory_bytes: int = 0

    @property
    def last_cache_bytes(self) -> int | None:
        """As the system reports it; None where it does not."""
        gpu = self.metadata.get("gpu")
        found = gpu.get("l2_bytes") if gpu else self.metadata.get("last_cache_bytes")
        return int(found) if found else None

    def best(self, kinds: tuple[str, ...], dtype: str | None = None, threads: int | None = None) -> Result:
        """The fastest of a kind."""
        found = [
            result
            for result in self.results
            if result.kind in kinds
            and (dtype is None or result.dtype == dtype)
            and (threads is None or result.threads == threads)
        ]
        return max(found, key=lambda result: result.rate)

    @property
    def products(self) -> dict[str, Result]:
        """The best product of each dtype."""
        dtypes = dict.fromkeys(result.dtype for result in self.results if result.kind == PRODUCT)
        return {dtype: self.best((PRODUCT,), dtype) for dtype in dtypes}

    @property
    def memory(self) -> Result:
        """The best of reading and copying."""
        return self.best((READ, COPY))

    @property
    def launch(self) -> Result:
        """The fastest launch."""
        return self.best((LAUNCH,))

    @property
    def chosen(self) -> dict[str, Result]:
        """The ceilings by name."""
        return {**self.products, READ: self.best((READ,)), COPY: self.best((COPY,)), LAUNCH: self.launch}

    @property
    def busy(self) -> bool:
        """Whether a ceiling was measured while the machine had other work."""
        return bool(self.notes) or any(result.timing.busy for result in self.chosen.values())


def effort(device: str, quick: bool = False) -> Effort:
    """Shapes and repetitions for a device."""
    squares = tuple((n, n, n) for n in (512, 1024, 2048, 4096, 8192, 16384))
    if device.startswith("cuda"):
        shapes = (squares[3], squares[4], (8192, 28672, 8192), squares[5])
        plan = Plan(warmups=5, repeats=10 if quick else 25, min_time_s=0.02 if quick else 0.1, max_time_s=5.0)
        return Effort(shapes[:2] if quick else shapes, (8,) if quick else (8, 24), 2**30, 0.5, plan)
    if quick:
        return Effort(squares[:2], (4,), 2**27, 0.2, Plan(1, 3, 0.03, 0.4, 3))
    return Effort((*squares[:3], (512, 8192, 4096), squares[3]), (4, 16), 2**28, 3.0, Plan(2, 11, 0.1, 6.0, 11))


def calibrate(
    backend: Backend, how: Effort, progress: Progress | None = None, meter: Counters | None = None
) -> Ceilings:
    """Measure everything, with one thread and with all of them."""
    progress = progress or Progress()
    results: list[Result] = []
    left_out: list[str] = []
    metadata = backend.describe(backend.thread_counts[-1])
    try:
        for threads in backend.thread_counts:
            backend.set_threads(threads)
            for case in _cases(backend, how, threads, results, left_out):
                what = f"{case.kind} {case.kernel} {case.dtype} {case.shape}, {_threads(threads)}"
                progress.say(f"calibrating: {what}")
                plan = Plan(**{**vars(how.plan), "threads": threads})
                timing = time_it(case.call, plan=plan, timer=backend.timer(case.kind), meter=meter)
                results.append(Result(case.kind, case.kernel, case.dtype, case.shape, threads, case.amount, timing))
    finally:
        progress.done()
    missing = [kind for kind in (PRODUCT, READ, COPY, LAUNCH) if kind not in {result.kind for result in results}]
    if missing:
        raise Unsupported(f"nothing could be measured of: {', '.join(missing)} ({'; '.join(left_out)})")
    return Ceilings(
        backend.device,
        tuple(results),
        tuple(dict.fromkeys(left_out)),
        _notes(metadata),
        metadata,
        backend.memory_bytes,
    )


def _notes(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    load = (metadata.get("gpu_state") or {}).get("utilization_percent")
    busy = isinstance(load, float) and load > IDLE_PERCENT
    return (f"the GPU was {load:.0f} % busy before the start",) if busy else ()


def _cases(
    backend: Backend, how: Effort, threads: int, results: Sequence[Result], left_out: list[str]
) -> Iterator[Case]:
    """One case after the other, so that only one holds memory; what was timed so far says which shapes are too long."""
    for dtype in backend.dtypes:
        for shape in how.shapes:
            took = next((r for r in reversed(results) if r.dtype == dtype and r.threads == threads), None)
            flops = 2 * shape[0] * shape[1] * shape[2]
            if took and flops / took.rate > how.largest_s:
                left_out.append(f"{dtype} {_times(shape)} with {_threads(threads)}: a call would take too long")
                continue
            try:
                yield backend.product(dtype, shape)
            except Unsupported as error:
                left_out.append(f"{dtype}: {error}")
                break
    for caches in how.sizes:
        n_bytes = _buffer(backend, how, caches)
        yield from _supported(backend.reads(n_bytes), left_out)
        yield from _supported(backend.copies(n_bytes), left_out)
    yield backend.tiny()


def fastest_read(backend: Backend, how: Effort) -> Case:
    """The kernel that reads a buffer beyond the last cache fastest here, by three calls of each."""
    cases = list(backend.reads(_buffer(backend, how, how.sizes[0])))
    timer = backend.timer(READ)
    return min(cases, key=lambda case: min(timer.lap(case.call, 1) for _ in range(3)) / case.amount)


def _buffer(backend: Backend, how: Effort, caches: int) -> int:
    """Size of a buffer of so many last caches [byte]."""
    return min(max(caches * backend.last_cache_bytes, how.least_bytes), backend.memory_bytes // 8)


def _supported(cases: Iterable[Case], left_out: list[str]) -> Iterator[Case]:
    try:
        yield from cases
    except Unsupported as error:
        left_out.append(str(error))


def _threads(number: int) -> str:
    return f"{number} thread{'' if number == 1 else 's'}"


def _times(shape: Shape) -> str:
    """Such as "m 512 n 8192 k 4096"."""
    return " ".join(f"{letter} {size}" for letter, size in zip("mnk", shape, strict=True))


# The device file ------------------------------------------------------------------------------


def check_free(path: str, force: bool) -> None:
    """Raise, before anything is measured, where the file exists and is not to be replaced, or cannot be made."""
    if not path.endswith(".toml"):
        raise GambrelError(f"{path}: a device file ends in .toml")
    if os.path.exists(path) and not force:
        raise GambrelError(f"{path} exists; --force replaces it, -o FILE writes another")
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise GambrelError(f"{path}: no such folder")


def save(ceilings: Ceilings, path: str, date: str, datasheet: str | None = None, force: bool = False) -> None:
    """Write the device file, whole or not at all."""
    check_free(path, force)
    text = device_toml(ceilings, os.path.splitext(os.path.basename(path))[0], date, datasheet)
    part = f"{path}.{os.getpid()}.part"
    try:
        try:
            with open(part, "x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
    except OSError as error:
        raise GambrelError(f"cannot write {path}: {error}") from None


def device_toml(ceilings: Ceilings, device_id: str, date: str, datasheet: str | None = None) -> str:
    """The device file: the catalogue's format, and a [calibration] table with what the numbers rest on."""
    known, products, memory = ceilings.metadata, ceilings.products, ceilings.memory
    versions = known.get("versions", {})
    told = ", ".join(f"{name} {number}" for name, number in versions.items())
    state = "; THE MACHINE WAS BUSY, so they are too low" if ceilings.busy else ""
    on_gpu = ceilings.device != "cpu"
    top = {
        "id": device_id,
        "name": f"{known.get('device', ceilings.device)}, measured",
        "kind": "gpu" if on_gpu else "cpu",
        "note": f"Measured ceilings of this machine, not a datasheet's{state}. A better kernel may exceed them.",
    }
    figures: dict[str, dict[str, float]] = {
        "peak_flops_per_s": {dtype: _rounded(best.rate) for dtype, best in products.items()},
        "memory": {"advertised_bytes": ceilings.memory_bytes, "bandwidth_bytes_per_s": _rounded(memory.rate)},
        "cache": {"l2_bytes": ceilings.last_cache_bytes or 0},
    }
    source = {
        "title": f"gambrel calibrate --device {ceilings.device} on this machine ({told})",
        "url": "this file",
        "date": date,
        "checked": True,
    }
    lines = [*map(_entry, top.items())]
    for section, table in figures.items():
        known_ones = {key: value for key, value in table.items() if value}
        lines += ["", f"[{section}]"] if known_ones else []
        lines += [f"{key} = {{ value = {_toml(v)}, source = {_toml(CALIBRATION)} }}" for key, v in known_ones.items()]
    lines += ["", f"[sources.{CALIBRATION}]", *map(_entry, source.items())]
    return "\n".join([*lines, *_calibration(ceilings, date, datasheet), ""])


def _calibration(ceilings: Ceilings, date: str, datasheet: str | None) -> list[str]:
    known = ceilings.metadata
    table = {
        "method": METHOD,
        "date": date,
        "datasheet": datasheet,
        "busy": ceilings.busy,
        "notes": [*ceilings.notes, *ceilings.left_out],
        "threads": known.get("threads"),
        "launch_s": ceilings.launch.timing.median_s,
        "read_bytes_per_s": ceilings.chosen[READ].rate,
        "copy_bytes_per_s": ceilings.chosen[COPY].rate,
        **{key: known.get(key) for key in ("machine", "os", "cpu", "cores", "cpu_mhz", "git_revision")},
    }
    spread = {name: result.timing.spread for name, result in ceilings.chosen.items()}
    tables = {"versions": known.get("versions"), "gpu": known.get("gpu"), "gpu_state": known.get("gpu_state")}
    lines = ["", "[calibration]", *_entries(table)]
    for name, inner in {**tables, "spread": spread}.items():
        lines += ["", f"[calibration.{name}]", *_entries(inner)] if inner else []
    for result in ceilings.results:
        lines += ["", "[[calibration.results]]", *_entries(result.to_dict())]
    return lines


def _rounded(rate: float) -> float:
    """Six digits, more than any clock has."""
    return float(f"{rate:.6g}")


def _entries(table: Mapping[str, Any]) -> list[str]:
    return [_entry(item) for item in table.items() if item[1] is not None]


def _entry(item: tuple[str, Any]) -> str:
    return f"{item[0]} = {_toml(item[1])}"


def _toml(value: Any) -> str:
    """A value as TOML writes it; strings as JSON does, which is the same but for surrogates and DEL."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value.replace("\x7f", ""), ensure_ascii=False)
    return json.dumps(value, allow_nan=False)


def sentence(ceilings: Ceilings) -> str:
    """The answer in one sentence."""
    fastest = max(ceilings.products.values(), key=lambda result: result.rate)
    return (
        f"{ceilings.metadata.get('device', ceilings.device)} reaches {si(fastest.rate, 'FLOP/s')} in {fastest.dtype} "
        f"and {si(ceilings.memory.rate, 'B/s')}; a launch takes {ceilings.launch.timing.median_s * 1e6:.3g} us."
    )
