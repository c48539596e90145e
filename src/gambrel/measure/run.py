"""Run a model with random weights: every phase with every engine, checked, timed, recorded.

A record is handed over as soon as it is made, so that what fails later leaves it intact.
"""

from __future__ import annotations

from dataclasses import field, replace

from gambrel.measure import calibrate, clock, engines
from gambrel.measure.build import DTYPES, build, config_hash, libraries, n_layers
from gambrel.measure.counters import Counters, document, fill, implied, restored
from gambrel.measure.machine import describe, huge_page_bytes
from gambrel.measure.record import Measurement, comparable, quantile
from gambrel.measure.verdict import CEILINGS, READS, Evidence, judge
from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from gambrel.measure.build import Built
    from gambrel.measure.verdict import Verdict
    from gambrel.types import Bound

PHASES = ("prefill", "decode")
NAMES = ("torch", "compile", "graph")


class RunError(GambrelError):
    """A run whose results are wrong, or that was asked for what cannot be."""


@frozen
class Setup:
    """What to run.

    model: its name. config: its own, trimmed where fewer layers are wanted. total_layers: before that. dtype: of
    weights, cache and products. device: "cpu" or "cuda:0". threads: None for all cores. engines, phases: in order.
    prompt_tokens: of a prefill. context_tokens: keys that a decode step attends, its own included. plan: of the clock.
    counters: whether the GPU's are read meanwhile.
    """

    model: str
    config: Mapping[str, Any]
    total_layers: int
    dtype: str = "bf16"
    device: str = "cpu"
    threads: int | None = None
    engines: tuple[str, ...] = ("torch",)
    phases: tuple[str, ...] = PHASES
    batch: int = 1
    prompt_tokens: int = 512
    context_tokens: int = 512
    plan: clock.Plan = field(default_factory=clock.Plan)
    counters: bool = False

    def __post_init__(self) -> None:
        known = (("--phase", self.phases, PHASES), ("--engine", self.engines, NAMES), ("--dtype", [self.dtype], DTYPES))
        for option, values, accepted in known:
            for value in values:
                if value not in accepted:
                    raise RunError(f"{option} {value}: accepted is {', '.join(accepted)}")
        if "prefill" in self.phases and self.prompt_tokens < 2:
            raise RunError("--prompt 1: a prefill has at least 2 tokens; a single one is a decode step")

    @property
    def label(self) -> str:
        """The model's name, and its layers where some are left out."""
        layers = n_layers(self.config)
        return self.model if layers == self.total_layers else f"{self.model} ({layers} of {self.total_layers} layers)"

    def shape(self, phase: str) -> tuple[int, int, int]:
        """Batch, new tokens, context of a phase."""
        if phase == "prefill":
            return self.batch, self.prompt_tokens, self.prompt_tokens
        return self.batch, 1, self.context_tokens


def default_device() -> str:
    """The first CUDA device where PyTorch sees one, else the processor."""
    torch, _ = libraries()
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def run(
    setup: Setup, keep: Callable[[Measurement], object], say: Callable[[str], None] = lambda text: None
) -> tuple[Measurement, ...]:
    """Build, then check, time and hand over each phase with each engine.

    keep: called with each record once it is whole. say: told what is being done. Raises RunError for results that are
    not finite, or that differ between engines by more than rounding.
    """
    torch, _ = libraries()
    kinds = {name: engines.engine(name, torch, setup.device) for name in setup.engines}
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    setup = replace(setup, plan=replace(setup.plan, threads=torch.get_num_threads()))
    common = describe(setup.device, torch.get_num_threads())
    say(f"{setup.label}: random weights in {setup.dtype}")
    built = build(setup.config, setup.dtype, setup.device)
    read = _fastest_read(setup)
    done: list[Measurement] = []
    for phase in setup.phases:
        step, first = engines.Pass(torch, built.module, setup.shape(phase)), None
        for name, kind in kinds.items():
            say(f"{setup.label}: {phase}, {name}: preparing")
            kind.prepare(step)
            facts, result = _checked(step, kind, first, setup.dtype)
            first = result if first is None else first
            say(f"{setup.label}: {phase}, {name}: timing")
            facts = {**common, **_what(setup, built, phase, name), **facts}
            done.append(_timed(step, kind, setup, read, facts))
            keep(done[-1])
    return tuple(done)


def _fastest_read(setup: Setup) -> calibrate.Case | None:
    """What reads memory fastest here, timed in turn with the steps; None where its buffer does not fit any more."""
    from gambrel.measure.backends import backend

    found = backend(setup.device, setup.threads)
    try:
        return calibrate.fastest_read(found, calibrate.effort(setup.device))
    except RuntimeError:  # PyTorch's word for a memory that is full
        return None


def _what(setup: Setup, built: Built, phase: str, name: str) -> dict[str, Any]:
    """What was run, for the record."""
    batch, new_tokens, context_tokens = setup.shape(phase)
    return {
        "model": setup.label,
        "model_name": setup.model,
        "config_hash": config_hash(setup.config),
        "layers": n_layers(setup.config),
        "layers_total": setup.total_layers,
        "params_total": built.n_params,
        "weights": "random",
        "huge_page_bytes": huge_page_bytes() if setup.device == "cpu" else None,
        "notes": list(built.notes),
        "phase": phase,
        "batch": batch,
        "new_tokens": new_tokens,
        "context_tokens": context_tokens,
        "dtype": setup.dtype,
        "engine": name,
        "cache": "fixed size" if phase == "decode" else "growing",
    }


def _checked(step: engines.Pass, kind: engines.Engine, first: Any, dtype: str) -> tuple[dict[str, Any], Any]:
    """The engine's result, finite, the same twice over, and equal to the first engine's within rounding."""
    result, again = step.result(kind), step.result(kind)
    if not bool(result.isfinite().all()):
        raise RunError(f"engine {kind.name} gives logits that are not finite in {dtype}; try --dtype fp32 or bf16")
    repeat = engines.agreement(result, again)
    apart = engines.agreement(result if first is None else first, result)
    for what, found in (("itself, run again from the same state", repeat), ("the first engine", apart)):
        if found.difference > engines.TOLERANCE[dtype]:
            raise RunError(
                f"engine {kind.name} differs from {what} by {found.difference:.2g} of the largest logit; rounding in "
                f"{dtype} explains {engines.TOLERANCE[dtype]:g}: no time is given for a wrong result"
            )
    told = {"finite": True, "difference": apart.difference, "same_tokens": apart.same_tokens}
    return (told if first is not None else {"finite": True, "difference": None, "same_tokens": None}), result


def _timed(
    step: engines.Pass, kind: engines.Engine, setup: Setup, read: calibrate.Case | None, facts: dict[str, Any]
) -> Measurement:
    """The engine's time, reads in turn with it, the harness's own, and a last look at the result."""
    from contextlib import nullcontext
    from datetime import UTC, datetime

    cuda = step.torch.cuda if setup.device.startswith("cuda") else None
    started = datetime.now(UTC)
    watched = Counters(setup.device) if setup.counters else None
    with watched or nullcontext():
        timing = _time(kind.run, cuda, setup.plan, read.call if read else None)
    harness = _time(step.reset, cuda, clock.Plan(1, 3, 0.01, 1.0, 0))
    if not bool(step.result(kind).isfinite().all()):
        raise RunError(f"engine {kind.name} gives logits that are not finite after its repetitions")
    return Measurement(
        _new_id(started),
        f"{setup.label} {facts['phase']} {kind.name}",
        timing.values_s,
        timing.warmups_s,
        {
            **facts,
            "started_at": started.isoformat(timespec="seconds"),
            "busy": timing.busy,
            "cpu_share": timing.cpu_share,
            "other_cores": timing.other_cores,
            "calls": timing.calls,
            "rejected": timing.rejected,
            "harness_s": harness.median_s + timing.overhead_s,
            "read": {"kernel": read.kernel, "bytes": read.amount, "values_s": list(timing.beside_s)} if read else None,
            **({"counters": document(watched.readings)} if watched else {}),
        },
    )


def _time(call: clock.Call, cuda: Any, plan: clock.Plan, beside: clock.Call | None = None) -> clock.Timing:
    """By the device's own events where there is one, else by the wall clock."""
    timer: clock.Timer = clock.EventTimer(cuda) if cuda else clock.WallTimer()
    return clock.time_it(call, plan=plan, timer=timer, beside=beside)


def _new_id(started: Any) -> str:
    import secrets

    return f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


# What follows from records ----------------------------------------------------------------------


@frozen
class Floor:
    """What a step cannot go without. moved_bytes: its weights and cache. bound: on the device named, if one is."""

    moved_bytes: float | None = None
    bound: Bound | None = None

    def limits_s(self, read_bytes_per_s: float | None) -> Mapping[str, float]:
        """Times by resource: of the device, or else of the memory alone, as fast as it was read beside the step [s]."""
        if self.bound:
            return self.bound.limits_s
        return {"memory": self.moved_bytes / read_bytes_per_s} if self.moved_bytes and read_bytes_per_s else {}


@frozen
class Row:
    """One record beside its floor.

    low_s, high_s: the first and the last tenth of the repetitions [s]. tokens_per_s: new tokens of the batch. bound_s,
    binding, fraction: None without a device. moved_bytes_per_s: weights and cache over the time. read_bytes_per_s: of
    the fastest read in turn with it, and of_reads: the one over the other; None where it is not in the record.
    harness_s: putting the state back, part of every value [s]. difference, same_tokens: against the first engine,
    None for itself.
    """

    phase: str
    batch: int
    new_tokens: int
    context_tokens: int
    engine: str
    id: str
    median_s: float
    low_s: float
    high_s: float
    repeats: int
    tokens_per_s: float
    bound_s: float | None
    binding: str | None
    fraction: float | None
    moved_bytes_per_s: float | None
    read_bytes_per_s: float | None
    of_reads: float | None
    harness_s: float
    busy: bool
    difference: float | None
    same_tokens: bool | None


def read_bytes_per_s(record: Measurement) -> float | None:
    """Median rate of the reads in turn with a run [byte/s]; None where the record has none."""
    read = record.metadata.get("read")
    return float(read["bytes"]) / quantile(read["values_s"], 0.5) if read else None


def row(record: Measurement, floor: Floor | None = None) -> Row:
    """A record as a row, beside the floor of its step."""
    known, median, floor = record.metadata, record.median_s, floor or Floor()
    bound, read = floor.bound, read_bytes_per_s(record)
    moved = floor.moved_bytes / median if floor.moved_bytes else None
    return Row(
        known["phase"],
        known["batch"],
        known["new_tokens"],
        known["context_tokens"],
        known["engine"],
        record.id,
        median,
        quantile(record.values_s, 0.1),
        quantile(record.values_s, 0.9),
        len(record.values_s),
        known["batch"] * known["new_tokens"] / median,
        bound.time_s if bound else None,
        bound.binding if bound else None,
        bound.time_s / median if bound else None,
        moved,
        read,
        moved / read if moved and read else None,
        known["harness_s"],
        known["busy"],
        known["difference"],
        known["same_tokens"],
    )


def counted(record: Measurement, bound: Bound | None = None) -> dict[str, Any]:
    """The record's counters, with what its bound implies for those that could not be read; empty where none were."""
    told = record.metadata.get("counters")
    if not told:
        return {}
    return document(fill(restored(told), implied(bound.limits_s if bound else {}, record.median_s)))


@frozen
class Judged:
    """The verdict on a phase. other: the engine that eager was held against, gain: how many times faster it is."""

    phase: str
    verdict: Verdict
    other: str
    gain: float | None


@frozen
class Execution:
    """The records of one `gambrel run`, the file that holds them, and what to know about them.

    ceilings: whether the bounds beside them follow from measured ceilings.
    """

    records: tuple[Measurement, ...]
    file: str
    notes: tuple[str, ...] = ()
    ceilings: bool = False

    def rows(self, floors: Mapping[str, Floor]) -> list[Row]:
        """Each record beside the floor of its phase."""
        return [row(record, floors.get(record.metadata["phase"])) for record in self.records]

    def judged(self, floors: Mapping[str, Floor]) -> list[Judged]:
        """The verdict on each phase."""
        return judged(self.records, floors, self.ceilings)


def notes(records: Sequence[Measurement]) -> tuple[str, ...]:
    """What to know about records of one run: layers left out, what the build left out, a busy machine."""
    known = records[0].metadata
    told = list(known["notes"])
    if known["layers"] != known["layers_total"]:
        told.append(
            f"only the first {known['layers']} of {known['layers_total']} layers: embedding and head weigh more than "
            "in the whole model, so its times are not to be scaled by the layers alone"
        )
    if any(record.metadata["busy"] for record in records):
        told.append("the machine was busy: other work ran during the repetitions, so these times are too long")
    return tuple(told)


def judged(records: Sequence[Measurement], floors: Mapping[str, Floor], ceilings: bool = False) -> list[Judged]:
    """One verdict for each phase that was run."""
    found = []
    for phase in dict.fromkeys(record.metadata["phase"] for record in records):
        ran = [record for record in records if record.metadata["phase"] == phase]
        times = {record.metadata["engine"]: record.median_s for record in ran}
        other = next((name for name in ("graph", "compile") if name in times), "")
        floor = floors.get(phase, Floor())
        limits = floor.limits_s(max(filter(None, map(read_bytes_per_s, ran)), default=None))
        known = Evidence(
            times.get("torch"),
            times.get(other),
            other,
            limits.get("memory"),
            limits.get("compute"),
            CEILINGS if ceilings else "" if floor.bound else READS,
        )
        found.append(Judged(phase, judge(known), other, known.gain))
    return found


def launch_s(record: Measurement, stored: Iterable[Measurement]) -> float | None:
    """Time that an eager run spent launching: its median minus that of the newest graph of the same step [s].

    None for a record that is not eager, and where no such graph is stored.
    """
    if record.metadata.get("engine") != "torch":
        return None
    same = ("config_hash", "threads")
    graphs = [
        other
        for other in stored
        if other.metadata.get("engine") == "graph"
        and not comparable(record, other)
        and all(record.metadata.get(key) == other.metadata.get(key) for key in same)
    ]
    return max(record.median_s - graphs[-1].median_s, 0.0) if graphs else None
