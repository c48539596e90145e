"""A trace as a profile: what each group, layer and operator costs, how busy the device is, and how near its roof.

Time is that of the activities themselves. FLOPs and bytes come from shapes alone (see shapes). What is not known has no
number: rates and fractions are taken over the time of those activities whose work is known, and that share is told.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field, replace

from gambrel.measure import kernels
from gambrel.measure.attribute import HOST, PHASES, Activity, attribute
from gambrel.measure.kineto import Event, Trace, TraceError, read_trace
from gambrel.plots import Point, Roof, RooflinePlot
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from gambrel.types import Device

SCHEMA_VERSION = 1
#: Marks with a smaller share of their phase's time are left out of the chart.
SMALLEST_SHARE = 0.01
#: Rows of operators and of ranges that are kept, the longest first.
MOST_ROWS = 500
#: Modules that are one operator; the module around says more.
PLAIN_MODULES = ("linear", "conv1d", "embedding", "dropout", "norm", "silu", "identity")


@frozen
class Span:
    """How one device spent the time from its first activity to its last.

    span_s: that time; busy_s: in kernels, overlaps once; active_s: in kernels, copies or fills [s]. gaps_s: times
    between activities [s]. launch_gap_s: of those, how long the device waited for a launch that had not returned [s].
    """

    device: str
    activities: int
    kernels: int
    span_s: float
    busy_s: float
    active_s: float
    gaps_s: tuple[float, ...]
    launch_gap_s: float

    def to_dict(self) -> dict[str, Any]:
        """As a row."""
        gaps = sorted(self.gaps_s)
        return {
            "device": self.device,
            "activities": self.activities,
            "kernels": self.kernels,
            "span_s": self.span_s,
            "busy_s": self.busy_s,
            "busy_share": self.busy_s / self.span_s if self.span_s else None,
            "active_s": self.active_s,
            "active_share": self.active_s / self.span_s if self.span_s else None,
            "gaps": len(gaps),
            "gap_s": sum(gaps),
            "gap_median_s": gaps[len(gaps) // 2] if gaps else None,
            "gap_longest_s": gaps[-1] if gaps else None,
            "launch_gap_s": self.launch_gap_s,
        }


@frozen
class Profile:
    """A trace in numbers; the rows' keys are those of docs/json.md.

    source: the file. gpus: names that the trace tells. device: whose roof is meant, None where none was given. kind:
    "device", "cpu" where there are operators alone, "ranges" where there are ranges alone. dtype: does most FLOPs.
    spans: one a device. counts: kernels, launches, and what lacks its other half. phases, groups, layers, layer_groups,
    operators, ranges: rows. notes: for people.
    """

    source: str
    gpus: tuple[str, ...]
    device: Device | None
    kind: str
    dtype: str
    spans: tuple[Span, ...]
    counts: Mapping[str, int]
    phases: Sequence[Mapping[str, Any]] = ()
    groups: Sequence[Mapping[str, Any]] = ()
    layers: Sequence[Mapping[str, Any]] = ()
    layer_groups: Sequence[Mapping[str, Any]] = ()
    operators: Sequence[Mapping[str, Any]] = ()
    ranges: Sequence[Mapping[str, Any]] = ()
    queries: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def span_s(self) -> float:
        """From first to last activity, summed over the devices [s]."""
        return sum(span.span_s for span in self.spans)

    @property
    def busy_share(self) -> float | None:
        """Share of that time in kernels."""
        return sum(span.busy_s for span in self.spans) / self.span_s if self.span_s else None


def profile(path: str, device: Device | None = None, eager_path: str = "") -> Profile:
    """Profile a trace file. device: whose roof to compare with. eager_path: a trace of the same run without graphs.

    Raises TraceError where a file is no trace or has nothing that took time.
    """
    return profile_trace(read_trace(path), device, read_trace(eager_path) if eager_path else None)


def profile_trace(trace: Trace, device: Device | None = None, eager: Trace | None = None) -> Profile:
    """Profile a trace that was read."""
    activities = attribute(trace)
    notes = list(trace.warnings)
    if eager is not None:
        activities, borrowed = borrow(activities, attribute(eager))
        notes.append(borrowed)
    ranges = _range_rows(trace.events)
    if not activities and not ranges:
        raise TraceError(f"{trace.source} has launches, but no kernel, no operator and no range that took time")
    kind = "ranges" if not activities else "cpu" if all(each.category == "op" for each in activities) else "device"
    counts = _counts(trace, activities)
    summed = _Summing(activities, device)
    layers = _layer_rows(summed)
    operators = summed.rows(_operator_key, ("phase", "role", "label", "op", "dtype", "shape"))
    notes += _notes(kind, counts, activities, layers, eager is not None)
    notes += summed.notes(operators)
    return Profile(
        source=trace.source,
        gpus=trace.devices,
        device=device,
        kind=kind,
        dtype=summed.dtype,
        spans=tuple(_spans(activities)),
        counts=counts,
        phases=summed.rows(lambda each: (each.phase,), ("phase",)),
        groups=summed.rows(lambda each: (each.phase, each.role), ("phase", "role")),
        layers=layers,
        layer_groups=_layer_group_rows(summed),
        operators=operators[:MOST_ROWS],
        ranges=ranges[:MOST_ROWS],
        queries=_queries(activities),
        notes=tuple(notes),
    )


# Sums -------------------------------------------------------------------------------------------


class _Summing:
    """Sums over activities, against a device's roof where there is one."""

    def __init__(self, activities: Sequence[Activity], device: Device | None) -> None:
        self.activities, self.device = activities, device
        self.phase_s: dict[str, float] = {}
        flops: dict[str, int] = {}
        for each in activities:
            self.phase_s[each.phase] = self.phase_s.get(each.phase, 0.0) + each.duration_s
            if each.work is not None and each.work.flops:
                flops[each.work.dtype] = flops.get(each.work.dtype, 0) + each.work.flops
        self.dtypes = sorted(flops, key=lambda dtype: -flops[dtype])
        self.dtype = self.dtypes[0] if self.dtypes else ""

    def row(self, members: Sequence[Activity]) -> dict[str, Any]:
        """What some activities do, take and reach."""
        known = [each for each in members if each.work is not None]
        sized = [each for each in known if each.work is not None and each.work.moved_bytes is not None]
        time_s = sum(each.duration_s for each in members)
        known_s, sized_s = (sum(each.duration_s for each in some) for some in (known, sized))
        flops = sum(each.work.flops for each in known if each.work)
        moved = sum(each.work.moved_bytes or 0.0 for each in sized if each.work)
        sized_flops = sum(each.work.flops for each in sized if each.work)
        vector = sum(each.work.vector_flops for each in sized if each.work)
        return {
            "count": len(members),
            "kernels": sum(each.category in ("kernel", "profiler_range") for each in members),
            "time_s": time_s,
            "share": time_s / whole if (whole := self.phase_s.get(members[0].phase, 0.0)) else None,
            "known_share": known_s / time_s if time_s else None,
            "flops": flops if known else None,
            "vector_flops": vector if known else None,
            "moved_bytes": moved if sized else None,
            "intensity_flop_per_byte": (sized_flops or vector) / moved if moved else None,
            "flops_per_s": flops / known_s if flops and known_s else None,
            "bytes_per_s": moved / sized_s if moved and sized_s else None,
            "roof_fraction": self._fraction(sized),
        }

    def _fraction(self, sized: Sequence[Activity]) -> float | None:
        """Time at the roof over time taken: Σ max(FLOPs/peak, bytes/bandwidth) / Σ time."""
        if self.device is None:
            return None
        bound_s = time_s = 0.0
        for each in sized:
            work = each.work
            peak = self.device.peak_flops_per_s.get(work.dtype) if work else None
            if work is None or (work.flops and peak is None) or work.dtype == HOST:
                continue
            compute = work.flops / peak if peak else 0.0
            bound_s += max(compute, (work.moved_bytes or 0.0) / self.device.mem_bytes_per_s)
            time_s += each.duration_s
        return bound_s / time_s if bound_s and time_s else None

    def rows(self, key: Callable[[Activity], tuple[str, ...]], names: Sequence[str]) -> list[dict[str, Any]]:
        """One row for each key, by phase and then the longest first."""
        found = [dict(zip(names, at, strict=True)) | self.row(group) for at, group in self.grouped(key).items()]
        return sorted(found, key=lambda row: (PHASES.index(row["phase"]), -row["time_s"]))

    def grouped(self, key: Callable[[Activity], tuple[str, ...]]) -> dict[tuple[str, ...], list[Activity]]:
        """Activities by key."""
        groups: dict[tuple[str, ...], list[Activity]] = {}
        for each in self.activities:
            groups.setdefault(key(each), []).append(each)
        return groups

    def notes(self, operators: Sequence[Mapping[str, Any]]) -> list[str]:
        """What the device lacks, and what runs faster than its roof allows."""
        if self.device is None:
            return []
        name, peaks = self.device.id, self.device.peak_flops_per_s
        told = [
            f"{name} has no {d} peak, so products in it have no fraction of the roof"
            for d in self.dtypes
            if d not in peaks
        ]
        above = [row for row in operators if (row["roof_fraction"] or 0.0) > 1]
        products = sum(bool(row["flops"]) for row in above)
        if products:
            told.append(
                f"error: {products} kinds of products ran faster than the roof of {name} allows: the trace is of "
                "another device, or its times or shapes are wrong"
            )
        if others := len(above) - products:
            kinds = "one kind" if others == 1 else f"{others} kinds"
            told.append(
                f"{kinds} of operators without products ran faster than memory allows: their data was still in a cache"
            )
        return told


def _layer_key(each: Activity) -> tuple[str, ...]:
    return (each.layer, each.phase)


def _layer_rows(summed: _Summing) -> list[dict[str, Any]]:
    """One row a kind of layer and phase: how many, and what one call of one has."""
    rows = []
    for (layer, phase), members in summed.grouped(_layer_key).items():
        if not layer:
            continue
        calls: dict[tuple[int, str], list[Activity]] = {}
        for each in members:
            calls.setdefault((each.call, each.layer_name), []).append(each)
        sizes = Counter(len(call) for call in calls.values())
        kernels_each = Counter(
            sum(each.category in ("kernel", "profiler_range") for each in call) for call in calls.values()
        )
        row = summed.row(members)
        rows.append(
            {
                "layer": layer,
                "phase": phase,
                "layers": len({each.layer_name for each in members}),
                "calls": len(calls),
                "activities_per_layer": sizes.most_common(1)[0][0],
                "activities_least": min(sizes),
                "activities_most": max(sizes),
                "kernels_per_layer": kernels_each.most_common(1)[0][0],
                "time_per_layer_s": row["time_s"] / len(calls),
                **row,
            }
        )
    return sorted(rows, key=lambda row: (PHASES.index(row["phase"]), -row["time_s"]))


def _layer_group_rows(summed: _Summing) -> list[dict[str, Any]]:
    """One row a kind of layer, phase and role; counts and times of one call of one layer, on average."""
    calls = {
        at: len({(each.call, each.layer_name) for each in members})
        for at, members in summed.grouped(_layer_key).items()
    }
    rows = []
    for (layer, phase, role), members in summed.grouped(lambda each: (*_layer_key(each), each.role)).items():
        if layer:
            n = calls[layer, phase]
            row = summed.row(members)
            each_one = {"count_per_layer": row["count"] / n, "time_per_layer_s": row["time_s"] / n}
            rows.append({"layer": layer, "phase": phase, "role": role, **each_one, **row})
    return sorted(rows, key=lambda row: (PHASES.index(row["phase"]), row["layer"], -row["time_s"]))


def _operator_key(each: Activity) -> tuple[str, ...]:
    work = each.work
    shape = work.shape if work else ""
    return (each.phase, each.role, _label(each, shape), each.op, work.dtype if work else "", shape)


def _label(each: Activity, shape: str) -> str:
    """A name for people: the module around (its path or its class) and k→n of a product, else operator, else kernel."""
    if each.role == "attention":
        return "attention"
    if each.category in ("memcpy", "memset"):
        return each.name[:60]
    bare = each.op.rsplit("::", 1)[-1].rstrip("_")
    if each.role == "gemm" and each.op:
        around = next((part for part in reversed(each.path.split(".")) if not part.isdecimal()), "") or next(
            (name for name in reversed(each.module) if not name.lower().endswith(PLAIN_MODULES)), ""
        )
        sizes = shape.split("x")
        product = f"{sizes[1]}→{sizes[2]}" if len(sizes) == 3 and " " not in shape else shape
        return " ".join(part for part in (around or bare, product) if part)
    return bare or kernels.own_name(each.name)[:60]


def _queries(activities: Iterable[Activity]) -> dict[str, tuple[int, int, int]]:
    """(B, q, s) of the attention that takes longest, by phase."""
    times: dict[tuple[str, tuple[int, int, int]], float] = {}
    for each in activities:
        if each.work is not None and each.work.query is not None:
            key = (each.phase, each.work.query)
            times[key] = times.get(key, 0.0) + each.duration_s
    return {phase: query for (phase, query), _ in sorted(times.items(), key=lambda item: item[1])}


# Busy and idle ----------------------------------------------------------------------------------


def _spans(activities: Iterable[Activity]) -> list[Span]:
    devices: dict[str, list[Activity]] = {}
    for each in activities:
        devices.setdefault(each.device, []).append(each)
    return [_span(device, members) for device, members in sorted(devices.items())]


def _span(device: str, members: Sequence[Activity]) -> Span:
    """One device's time; the members are in order of their start."""
    first, last = members[0].start_s, max(each.end_s for each in members)
    working = [each for each in members if each.category in ("kernel", "profiler_range", "op")]
    gaps, waited = [], 0.0
    until = first
    for each in members:
        if each.start_s > until:
            gaps.append(each.start_s - until)
            if each.launch_end_s is not None and each.launch_end_s > until:
                waited += min(each.launch_end_s, each.start_s) - until
        until = max(until, each.end_s)
    busy, active = _covered(working), _covered(members)
    return Span(device, len(members), len(working), last - first, busy, active, tuple(gaps), waited)


def _covered(members: Iterable[Activity]) -> float:
    """Time in which at least one runs [s]; they come in order of their start."""
    covered, until = 0.0, float("-inf")
    for each in members:
        if each.end_s > until:
            covered += each.end_s - max(each.start_s, until)
            until = each.end_s
    return covered


def _range_rows(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Ranges by name: how often, how long on the host and on the device; nested ones count in each."""
    rows: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.category in ("range", "device_range"):
            row = rows.setdefault(event.name, {"name": event.name[:200], "count": 0, "host_s": 0.0, "device_s": 0.0})
            host = event.category == "range"
            row["count" if host else "device_count"] = row.get("count" if host else "device_count", 0) + 1
            row["host_s" if host else "device_s"] += event.duration_s
    for row in rows.values():
        row["count"] = max(row["count"], row.pop("device_count", 0))
    return sorted(rows.values(), key=lambda row: -max(row["host_s"], row["device_s"]))


# Counts and notes -------------------------------------------------------------------------------


def _counts(trace: Trace, activities: Sequence[Activity]) -> dict[str, int]:
    """Kernels and launches, and those whose other half lies outside the window."""
    used = {e.correlation for e in trace.events if e.category in ("kernel", "memcpy", "memset")}
    launches = [e for e in trace.events if e.category == "launch"]
    starting = [e for e in launches if kernels.LAUNCH.search(e.name) or kernels.GRAPH_LAUNCH.match(e.name)]
    of_kernels = [each for each in activities if each.category in ("kernel", "profiler_range")]
    called = {e.correlation for e in launches}
    orphans = Counter(e.correlation for e in trace.events if e.category == "kernel" and e.correlation not in called)
    return {
        "events": trace.seen,
        "malformed": trace.malformed,
        "activities": len(activities),
        "kernels": len(of_kernels),
        "copies": sum(each.category in ("memcpy", "memset") for each in activities),
        "operators": sum(each.category == "op" for each in activities),
        "unlaunched_kernels": sum(not each.launched for each in of_kernels),
        "unlaunched_activities": sum(not each.launched for each in activities),
        "launches": len(starting),
        "launches_without_kernel": sum(e.correlation not in used for e in starting),
        "graph_launches": sum(bool(kernels.GRAPH_LAUNCH.match(e.name)) for e in launches),
        "unlaunched_sharing": sum(n for key, n in orphans.items() if key is not None and n > 2),
        "graph_kernels": sum(each.graph for each in activities),
        "unlayered_kernels": sum(not each.layer for each in of_kernels),
    }


def _notes(
    kind: str,
    counts: Mapping[str, int],
    activities: Sequence[Activity],
    layers: Sequence[Mapping[str, Any]],
    has_eager: bool,
) -> list[str]:
    """What the reader must know to read the numbers right."""
    told = []
    if kind == "ranges":
        told.append("the trace has ranges but no kernels and no operators: there is nothing to attribute, only times")
    if kind == "cpu":
        told.append("the trace has no device activity: operators of the CPU are counted instead")
    if any(each.category == "profiler_range" for each in activities):
        tied = "tied to launches by their order" if counts["unlaunched_kernels"] == 0 else "not tied to launches"
        told.append(
            f"the trace has profiler ranges instead of kernels, {tied}; a profiler that replays kernels for its "
            "counters stretches time, so shares and gaps are those of the replay"
        )
    if counts["unlaunched_kernels"] and kind == "device":
        told.append(
            f"{counts['unlaunched_kernels']:,} of {counts['kernels']:,} kernels have no launch in the window: they are "
            "counted by their names, in no layer" + _sharing(counts["unlaunched_sharing"])
        )
    if counts["graph_kernels"]:
        eager = (
            "taken from the eager trace where kernels agree" if has_eager else "give a trace without graphs: --eager"
        )
        told.append(
            f"{counts['graph_kernels']:,} activities are replayed by {counts['graph_launches']:,} graph launches, one "
            "launch for many kernels: the operator and shape of each is lost, and its layer unless the launch lies in "
            f"one ({eager})"
        )
    elif kind == "device" and not layers:
        told.append("no layers found: the trace has no nn.Module frames (with_stack=True) and no numbered layer ranges")
    return told


def _sharing(n_kernels: int) -> str:
    """Kernels without launch that share an id are most likely of a graph launched before the window."""
    return f"; {n_kernels:,} of them share an id with others, as replays of a graph do" if n_kernels else ""


# Graph replays ----------------------------------------------------------------------------------


def borrow(replayed: Sequence[Activity], eager: Sequence[Activity]) -> tuple[list[Activity], str]:
    """Give kernels of graph replays the place that the same kernels have in an eager trace; and a note on how many.

    The i-th kernel of a name within a replay is the i-th of that name within one pass of the eager trace, where the
    two have equally many; its work is taken only where the grid is the same too. The eager pass is the last one.
    """
    pattern: dict[str, list[Activity]] = {}
    for each in _last_pass(eager):
        pattern.setdefault(each.name, []).append(each)
    replays: dict[tuple[object, str], list[int]] = {}
    for index, each in enumerate(replayed):
        if each.graph:
            replays.setdefault((each.launch_end_s, each.name), []).append(index)
    result = list(replayed)
    placed = 0
    calls: dict[tuple[object, int, int], int] = {}
    for (launch, name), members in replays.items():
        sources = pattern.get(name, [])
        if not sources or len(members) % len(sources):
            continue
        placed += len(members)
        for turn, index in enumerate(members):
            source = sources[turn % len(sources)]
            call = calls.setdefault((launch, turn // len(sources), source.call), len(calls))
            result[index] = _lent(result[index], source, call)
    whole = sum(each.graph for each in replayed)
    return result, f"{placed:,} of {whole:,} replayed activities have the place of the same kernels in the eager trace"


def _last_pass(eager: Sequence[Activity]) -> list[Activity]:
    """Kernels from the last call of the first layer on, with what precedes it by as much as in one pass."""
    kernels_only = [each for each in eager if not each.graph and each.launched]
    named = [each for each in kernels_only if each.layer]
    if not named:
        return kernels_only
    per_name: dict[str, set[int]] = {}
    for each in named:
        per_name.setdefault(each.layer_name, set()).add(each.call)
    passes = max(len(calls) for calls in per_name.values())
    if passes == 1:
        return kernels_only
    last = {name: max(calls) for name, calls in per_name.items()}
    inside = [each for each in kernels_only if each.layer and each.call == last[each.layer_name]]
    outside: dict[str, list[Activity]] = {}
    for each in kernels_only:
        if not each.layer:
            outside.setdefault(each.name, []).append(each)
    return inside + [each for group in outside.values() for each in group[-max(len(group) // passes, 1) :]]


def _lent(each: Activity, source: Activity, call: int) -> Activity:
    same = each.grid == source.grid and bool(each.grid)
    phase = each.phase if each.phase != "unknown" else source.phase if same else "unknown"
    return replace(
        each,
        role=source.role,
        op=source.op,
        module=source.module,
        path=source.path,
        layer=source.layer,
        layer_name=source.layer_name,
        call=call,
        phase=phase,
        work=source.work if same else each.work,
    )


# Chart and document -----------------------------------------------------------------------------


def profile_plot(found: Profile, predicted: Sequence[Point] = ()) -> RooflinePlot:
    """The operators under the device's roof, area by share of time, with predicted marks behind.

    Raises TraceError without a device, or where no operator's work is known.
    """
    device = found.device
    if device is None:
        raise TraceError("the chart needs --device, whose roof it draws")
    points, marked_s = [], 0.0
    for row in found.operators:
        intensity, rate = row["intensity_flop_per_byte"], row["bytes_per_s"]
        if intensity and rate and (row["share"] or 0.0) >= SMALLEST_SHARE:
            points.append(Point(row["label"], row["phase"], intensity, intensity * rate, row["share"]))
            marked_s += row["time_s"]
    if not points:
        raise TraceError(f"{found.source}: no operator has both shapes and time, so there is nothing to mark")
    roofs = _roofs(found, device)
    phases = {point.phase for point in points}
    whole_s = sum(row["time_s"] for row in found.phases if row["phase"] in phases)
    unmarked = max(1 - marked_s / whole_s, 0.0) if whole_s else 0.0
    subtitle = (
        f"measured, FLOPs and bytes from shapes; {unmarked:.0%} of their time has no mark (no shapes, or below 1 %)"
    )
    return RooflinePlot(f"{_base(found.source)} on {device.name}", subtitle, roofs, (*predicted, *points))


def _roofs(found: Profile, device: Device) -> tuple[Roof, ...]:
    """The roof of the dtype that does most; of any other that is multiplied, its ceiling too."""
    flops: dict[str, float] = {}
    for row in found.operators:
        if row["flops"]:
            flops[row["dtype"]] = flops.get(row["dtype"], 0) + row["flops"]
    known = [dtype for dtype in sorted(flops, key=lambda d: -flops[d]) if dtype in device.peak_flops_per_s]
    chosen = known or [next(iter(device.peak_flops_per_s))]
    bandwidth = device.mem_bytes_per_s
    main, *others = [
        dtype for dtype in chosen if not flops or flops.get(dtype, 0) >= 0.01 * sum(flops.values())
    ] or chosen
    rest = [Roof("same device", dtype, device.peak(dtype), bandwidth) for dtype in others]
    return (Roof(device.name, main, device.peak(main), bandwidth), *rest)


def _base(path: str) -> str:
    """The file's name without folders and the usual endings."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    return name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace")


def profile_dict(found: Profile) -> dict[str, Any]:
    """The document of `gambrel profile`: SI units, unrounded."""
    return {
        "schema": "gambrel.profile",
        "schema_version": SCHEMA_VERSION,
        "source": found.source,
        "kind": found.kind,
        "gpus": list(found.gpus),
        "device": found.device.id if found.device else None,
        "dtype": found.dtype or None,
        "span_s": found.span_s,
        "busy_share": found.busy_share,
        "counts": dict(found.counts),
        "devices": [span.to_dict() for span in found.spans],
        "phases": [dict(row) for row in found.phases],
        "groups": [dict(row) for row in found.groups],
        "layers": [dict(row) for row in found.layers],
        "layer_groups": [dict(row) for row in found.layer_groups],
        "operators": [dict(row) for row in found.operators],
        "ranges": [dict(row) for row in found.ranges],
        "notes": list(found.notes),
    }
