"""From events to activities: each kernel tied to its launch, its operator, its module, its layer and its phase.

Kernel to launch by correlation id; launch to the innermost operator and module around it on its thread, by containment
in time; a layer is a call of one of several sibling modules of one class. One sweep over the sorted events of a thread,
so the cost is that of sorting. Facts are passed from parent to child once, so deep nesting costs no more.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import replace

from gambrel.measure import kernels, shapes
from gambrel.measure.kineto import DEVICE, MODULE, Event, Trace
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

#: Phases that a profile knows; unknown is where neither ranges nor shapes tell.
PHASES = ("prefill", "decode", "mixed", "unknown")
_VLLM_RANGE = re.compile(r"context_(\d+).*generation_(\d+)")
_PREFILL = re.compile(r"prefill|prompt(?!s?_?logprob)", re.IGNORECASE)
_DECODE = re.compile(r"decode(?!r)|decoding|generation", re.IGNORECASE)
#: Class and instance of a module's call, such as "Qwen2DecoderLayer_3"; of a range, such as "layers.3" or "block 3".
_INSTANCE = re.compile(r"^(.*?)_(\d+)$")
#: Path and class of a module's call, as `live` names it: "model.layers.3.mlp (LlamaMLP)".
_QUALIFIED = re.compile(r"^([^\s()]+) \((\w+)\)$")
_NUMBERED = re.compile(r"^(.*?(?:layer|block)s?)[\s._#:-]*(\d+)\b", re.IGNORECASE)
#: Classes that are layers by what they are called, where several levels of modules repeat.
_LAYER_NAME = re.compile(r"(layer|block)$", re.IGNORECASE)
#: Stands for the dtype of copies between host and device, which the memory's bandwidth does not limit.
HOST = "host"
#: Roles whose operators are counted with all that they call: views, buffers and copies of theirs are part of them.
PRODUCTS = ("gemm", "attention")
#: How far outwards an operator's formula is looked for: linear around addmm, to around copy_.
CLIMB = 4


@frozen
class Activity:
    """Something a device did (an operator, in a trace of a CPU alone).

    category: kernel, memcpy, memset, profiler_range or op. role: see kernels. launched: its launch is in the window.
    launch_end_s: when its launch returned [s], None where there is none. graph: replayed from a captured graph.
    op: the operator that launched it. module: classes of the innermost modules around it, outermost first. path: of the
    innermost, "" where not told.
    layer: "" or the class of the layer; layer_name: which; call: which call of it. phase: see PHASES.
    work: of its operator, None where it is not known; an operator's further kernels have the empty Work. shape, query:
    of the operator. order: of its launch within the call of the layer.
    """

    name: str
    category: str
    role: str
    start_s: float
    duration_s: float
    device: str
    stream: str
    launched: bool = False
    launch_end_s: float | None = None
    graph: bool = False
    op: str = ""
    module: tuple[str, ...] = ()
    layer: str = ""
    layer_name: str = ""
    call: int = -1
    phase: str = "unknown"
    work: shapes.Work | None = None
    grid: tuple[int, ...] = ()
    path: str = ""

    @property
    def end_s(self) -> float:
        """Where it ends [s]."""
        return self.start_s + self.duration_s


class Node:
    """An event on a thread, with what it inherits from those around it."""

    __slots__ = (
        "attention",
        "call",
        "children",
        "end_s",
        "event",
        "layer",
        "module",
        "op",
        "outer_role",
        "parent",
        "path",
        "phase",
        "role",
        "top",
        "work",
        "work_read",
    )

    def __init__(self, event: Event, parent: Node | None) -> None:
        self.event, self.parent = event, parent
        self.end_s: float = event.end_s if parent is None else min(event.end_s, parent.end_s)
        self.children = 0
        is_op, is_module = event.category == "op", event.category == "module"
        self.op: Node | None = self if is_op else parent.op if parent else None
        self.module: Node | None = self if is_module else parent.module if parent else None
        self.top: Node | None = (parent.top if parent else None) or (self if is_module else None)
        self.path: tuple[str, ...] = parent.path if parent else ()
        if is_module:
            self.path = (*self.path[-7:], class_of(event.name))
        inherited = parent.phase if parent else None
        self.phase: str | None = phase_of(event.name) or inherited if event.category == "range" else inherited
        self.role = kernels.operator_role(event.name) if is_op else None
        self.outer_role: str | None = (parent.role or parent.outer_role) if parent else None
        self.attention: bool = self.role == "attention" or bool(parent and parent.attention)
        self.layer: Node | None = None
        self.call = -1
        self.work: shapes.Work | None = None
        self.work_read = False

    def own_work(self) -> shapes.Work | None:
        """Its operator's work by its shapes, read once."""
        if not self.work_read:
            self.work_read = True
            self.work = shapes.work_of(self.event.name, self.event.args)
        return self.work


#: Names are read to this length: patterns over a hostile one would take its square.
READ_CHARS = 256


@functools.lru_cache(maxsize=8192)
def class_of(name: str) -> str:
    """The class of a module's call: "nn.Module: Linear_7" and "nn.Module: layers.7.up_proj (Linear)" are Linear."""
    bare = name.removeprefix(MODULE)[:READ_CHARS]
    qualified = _QUALIFIED.match(bare)
    if qualified:
        return qualified[2]
    found = _INSTANCE.match(bare)
    return found[1] if found else bare


@functools.lru_cache(maxsize=8192)
def path_of(name: str) -> str:
    """The qualified path of a module's call; "" where the trace names its class alone."""
    found = _QUALIFIED.match(name.removeprefix(MODULE)[:READ_CHARS])
    return found[1] if found else ""


@functools.lru_cache(maxsize=8192)
def phase_of(name: str) -> str | None:
    """The phase that a range is named for; None where its name says none."""
    name = name[:READ_CHARS]
    counts = _VLLM_RANGE.search(name)
    if counts:
        context, generation = (bool(part.strip("0")) for part in counts.groups())
    else:
        context, generation = bool(_PREFILL.search(name)), bool(_DECODE.search(name))
    if context and generation:
        return "mixed"
    return "prefill" if context else "decode" if generation else None


# Containment ------------------------------------------------------------------------------------


def nest(trace: Trace) -> tuple[list[Node], dict[int, Node | None]]:
    """Nodes of all operators, modules and ranges, and the innermost one around each launch, by index of its event."""
    threads: dict[tuple[str, str], list[int]] = {}
    events = trace.events
    for index, event in enumerate(events):
        if event.category in ("op", "module", "range", "launch"):
            threads.setdefault(event.thread, []).append(index)
    _lend_modules(events, threads)
    nodes: list[Node] = []
    around: dict[int, Node | None] = {}
    for members in threads.values():
        _sweep(events, members, nodes, around)
    return nodes, around


def _lend_modules(events: Sequence[Event], threads: dict[tuple[str, str], list[int]]) -> None:
    """Modules on a thread that runs nothing belong to the one thread that does; some writers lose their thread."""
    busy = [key for key, members in threads.items() if any(events[i].category in ("op", "launch") for i in members)]
    modules = {key for key, members in threads.items() if any(events[i].category == "module" for i in members)}
    if len(busy) == 1 and modules and not modules & set(busy):
        for key in modules:
            threads[busy[0]] += [i for i in threads[key] if events[i].category == "module"]
            threads[key] = [i for i in threads[key] if events[i].category != "module"]


#: Of events that begin and end together, the outer kind first.
_OUTER = {"range": 0, "module": 1, "op": 2, "launch": 3}


def _sweep(events: Sequence[Event], members: list[int], nodes: list[Node], around: dict[int, Node | None]) -> None:
    """One thread: a stack of what is open while its events pass in order."""
    members.sort(key=lambda i: (events[i].start_s, -events[i].duration_s, _OUTER[events[i].category]))
    stack: list[Node] = []
    for index in members:
        event = events[index]
        while stack and stack[-1].end_s <= event.start_s:
            stack.pop()
        parent = stack[-1] if stack else None
        if event.category == "launch":
            around[index] = parent
            continue
        node = Node(event, parent)
        if parent is not None and event.category == "op" and parent.event.category == "op":
            parent.children += 1
        nodes.append(node)
        stack.append(node)


# Layers -----------------------------------------------------------------------------------------


def mark_layers(nodes: Iterable[Node]) -> None:
    """Give each node the call of the layer around it.

    A layer's class has several instances under one parent and modules inside. Of several levels that repeat, the
    outermost is the layer, or the outermost that is called a layer or a block. Without modules, ranges with a number
    such as "layer 3" stand in.
    """
    nodes = list(nodes)
    has_modules = any(node.event.category == "module" for node in nodes)
    classes = _layer_classes(nodes) if has_modules else set()
    calls = 0
    for node in nodes:
        parent = node.parent
        if parent is not None and parent.layer is not None:
            node.layer, node.call = parent.layer, parent.call
        elif _is_layer(node, classes, has_modules):
            node.layer, node.call = node, calls
            calls += 1


def _is_layer(node: Node, classes: set[str], has_modules: bool) -> bool:
    if has_modules:
        return node.event.category == "module" and class_of(node.event.name) in classes
    return node.event.category == "range" and _NUMBERED.match(node.event.name[:READ_CHARS]) is not None


def _layer_classes(nodes: Sequence[Node]) -> set[str]:
    """Classes whose instances are siblings, from modules that have modules inside."""
    siblings: dict[tuple[str, str], set[str]] = {}
    outer: set[str] = set()
    for node in nodes:
        if node.event.category != "module":
            continue
        above = node.parent.module if node.parent else None
        name = class_of(node.event.name)
        siblings.setdefault((above.event.name if above else "", name), set()).add(node.event.name)
        if above is not None:
            outer.add(class_of(above.event.name))
    repeated = {name for (_, name), instances in siblings.items() if len(instances) > 1 and name in outer}
    called = {name for name in repeated if _LAYER_NAME.search(name)}
    return called or repeated


def layer_class(node: Node) -> str:
    """The class of a layer's node: a module's class, or a range's name without its number."""
    if node.event.category == "module":
        return class_of(node.event.name)
    found = _NUMBERED.match(node.event.name[:READ_CHARS])
    return found[1] if found else node.event.name


# Activities -------------------------------------------------------------------------------------


def attribute(trace: Trace) -> list[Activity]:
    """Every activity of the devices, in order of time, with where it comes from; operators where there is no device."""
    nodes, around = nest(trace)
    mark_layers(nodes)
    phases = _phases_of_passes(nodes)
    events = trace.events
    if any(event.category in DEVICE for event in events):
        found = _device_activities(trace, nodes, around, phases)
    else:
        found = _operator_activities(nodes, phases)
    return sorted(found, key=lambda activity: (activity.start_s, activity.end_s))


def _device_activities(
    trace: Trace, nodes: Sequence[Node], around: dict[int, Node | None], phases: dict[int, str]
) -> list[Activity]:
    events = trace.events
    launches = launches_by_correlation(events)
    in_order = _profiler_ranges_in_order(events)
    by_external = {node.event.external_id: node for node in nodes if node is node.op}
    ranges = _DeviceRanges(events)
    shared = Counter(event.correlation for event in events if event.category == "kernel")
    found: list[tuple[Activity, Node | None]] = []
    for index, event in enumerate(events):
        if event.category not in DEVICE:
            continue
        launch = in_order.get(index)
        if launch is None and event.correlation is not None:
            launch = _nearest(launches.get(event.correlation, ()), events, event.start_s)
        node = around.get(launch) if launch is not None else None
        # Old traces number external ids as correlations, so one that equals it says nothing of the operator.
        if launch is None and event.external_id is not None and event.external_id != event.correlation:
            node = by_external.get(event.external_id)
        call = events[launch] if launch is not None else None
        activity = _activity(event, call, node, phases, is_replay(call, shared[event.correlation]))
        if activity.phase == "unknown":
            activity = replace(activity, phase=ranges.phase(event) or "unknown")
        works = event.category in ("kernel", "profiler_range") and not activity.graph
        found.append((activity, _working_node(node) if works else None))
    return _with_work(found)


def launches_by_correlation(events: Sequence[Event]) -> dict[int, list[int]]:
    """Calls of the runtime or driver by correlation id, as indices."""
    found: dict[int, list[int]] = {}
    for index, event in enumerate(events):
        if event.category == "launch" and event.correlation is not None:
            found.setdefault(event.correlation, []).append(index)
    # Zero stands for no id where many calls have it.
    if len(found.get(0, ())) > 1:
        del found[0]
    return found


def _nearest(candidates: Sequence[int], events: Sequence[Event], start_s: float) -> int | None:
    """The last call that began before the kernel; where several processes share an id, theirs are told apart so."""
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    few = candidates[:64]
    before = [i for i in few if events[i].start_s <= start_s]
    return max(before or few, key=lambda i: events[i].start_s)


def _profiler_ranges_in_order(events: Sequence[Event]) -> dict[int, int]:
    """Launch of each profiler range: CUPTI gives them no correlation, so by order, where there are as many launches."""
    ranges = [i for i, e in enumerate(events) if e.category == "profiler_range" and e.correlation is None]
    calls = [i for i, e in enumerate(events) if e.category == "launch" and kernels.KERNEL_LAUNCH.search(e.name)]
    if len(ranges) != len(calls):
        return {}
    ranges.sort(key=lambda i: events[i].start_s)
    calls.sort(key=lambda i: events[i].start_s)
    return dict(zip(ranges, calls, strict=True))


class _DeviceRanges:
    """Ranges on a device's own timeline that name a phase, for kernels whose launch is not in the window."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.spans: list[tuple[float, float, str]] = []
        for event in events:
            phase = phase_of(event.name) if event.category == "device_range" else None
            if phase:
                self.spans.append((event.start_s, event.end_s, phase))
        self.spans.sort()
        self.starts = [start for start, _, _ in self.spans]

    def phase(self, event: Event) -> str | None:
        """The phase of the last range that began before the event and has not ended."""
        at = bisect_right(self.starts, event.start_s) - 1
        return self.spans[at][2] if at >= 0 and event.start_s < self.spans[at][1] else None


def is_replay(launch: Event | None, n_kernels: int) -> bool:
    """Whether a call replays a graph: by its name, or because it is no known launch and several kernels share it."""
    if launch is None:
        return False
    return bool(kernels.GRAPH_LAUNCH.match(launch.name)) or (n_kernels > 2 and not kernels.LAUNCH.search(launch.name))


def _activity(event: Event, launch: Event | None, node: Node | None, phases: dict[int, str], graph: bool) -> Activity:
    role = kernels.kernel_role(event.name) if graph else _role(event, node)
    if event.category in ("memcpy", "memset"):
        role = "movement"
    activity = Activity(
        event.name,
        event.category,
        role or "other",
        event.start_s,
        event.duration_s,
        event.device,
        event.stream,
        launch is not None,
        launch.end_s if launch is not None else None,
        graph,
        grid=_grid(event.args.get("grid")),
        work=_copied(event) if event.category in ("memcpy", "memset") else None,
    )
    return activity if node is None else replace(activity, **_place(node, phases))


def _layer_name(name: str) -> str:
    return path_of(name) or name.removeprefix(MODULE)


def _place(node: Node, phases: dict[int, str]) -> dict[str, Any]:
    """Where an activity stands: operator, modules, layer, phase."""
    layer = node.layer
    return {
        "op": node.op.event.name if node.op else "",
        "module": node.path,
        "path": path_of(node.module.event.name) if node.module else "",
        "layer": layer_class(layer) if layer else "",
        "layer_name": _layer_name(layer.event.name) if layer else "",
        "call": node.call,
        "phase": node.phase or phases.get(id(node.top) if node.top else 0, "unknown"),
    }


def _role(event: Event, node: Node | None) -> str | None:
    """By the launching operator, else by the kernel's name, else by an operator further out.

    Products and reductions inside an attention operator, or of two activations inside an attention module, are
    attention's.
    """
    op = node.op if node else None
    role = op.role if op else None
    if op is None or role in (None, "other"):
        role = kernels.kernel_role(event.name) or (op.outer_role if op else None)
    if role in ("gemm", "reduction") and node is not None and (node.attention or _scores(node)):
        return "attention"
    return role


def _scores(node: Node) -> bool:
    """Whether this is a product of two activations, or the softmax between two, in an attention module."""
    op, path = node.op, node.path
    if op is None or not path or not kernels.ATTENTION_MODULE.search(path[-1]):
        return False
    return op.event.name.rsplit("::", 1)[-1] in ("bmm", "baddbmm", "_softmax", "softmax")


def _grid(given: object) -> tuple[int, ...]:
    fine = isinstance(given, list) and len(given) == 3 and all(isinstance(n, int) for n in given)
    return tuple(given) if fine and isinstance(given, list) else ()


def _copied(event: Event) -> shapes.Work | None:
    """Bytes of a copy as the trace has them; a copy within a device reads and writes it."""
    given = event.args.get("bytes")
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < shapes.MOST_ELEMENTS:
        return None
    twice = event.category == "memcpy" and (
        any(word in event.name for word in ("DtoD", "DeviceToDevice", "Device -> Device"))
    )
    return shapes.Work(moved_bytes=float(given * 2 if twice else given))


def _working_node(node: Node | None) -> Node | None:
    """The operator whose shapes say what a kernel does: the innermost, or one a little further out."""
    op = node.op if node else None
    for _ in range(CLIMB):
        if op is None:
            return None
        if op.own_work() is not None:
            return op
        if op.role is not None and op.role != "other" and kernels.operator_role(op.event.name) == "communication":
            return None
        op = op.parent.op if op.parent else None
    return None


def _with_work(found: Sequence[tuple[Activity, Node | None]]) -> list[Activity]:
    """Activities without an operator as they are, then those of each operator, which share its work."""
    groups: dict[int, list[tuple[Activity, Node]]] = {}
    for activity, source in found:
        if source is not None:
            groups.setdefault(id(source), []).append((activity, source))
    alone = [activity for activity, source in found if source is None]
    return [*alone, *(activity for group in groups.values() for activity in _shared_work(group))]


def _shared_work(group: list[tuple[Activity, Node]]) -> list[Activity]:
    """The work of one operator goes to the longest of its kernels; the others share its time and add no work."""
    main = max(range(len(group)), key=lambda i: group[i][0].duration_s)
    work = group[main][1].own_work()
    empty = None if work is None else replace(work, flops=0, vector_flops=0, moved_bytes=_nothing(work))
    return [replace(activity, work=work if i == main else empty) for i, (activity, _) in enumerate(group)]


def _nothing(work: shapes.Work) -> float | None:
    return None if work.moved_bytes is None else 0.0


def _operator_activities(nodes: Sequence[Node], phases: dict[int, str]) -> list[Activity]:
    """The CPU's operators as activities; the work of one goes to one of those that it calls, as with kernels."""
    found: list[tuple[Activity, Node | None]] = []
    for node in _counted(nodes):
        source = _working_node(node) if node.role in PRODUCTS else node if node.own_work() is not None else None
        event = node.event
        role = _role(event, node) or "other"
        activity = Activity(event.name, "op", role, event.start_s, event.duration_s, "cpu", "", True)
        activity = replace(activity, **_place(node, phases))
        found.append((activity, source))
    return _with_work(found)


def _counted(nodes: Sequence[Node]) -> list[Node]:
    """Operators of a CPU that do not overlap: the innermost products, else the innermost with work, else the leaves.

    A product is counted with all that it calls, since its own work lies between those calls.
    """
    ops = [node for node in nodes if node is node.op]
    products, working = set(), set()  # operators that have such a one inside
    for node in reversed(ops):
        outer = node.parent.op if node.parent else None
        if outer is not None:
            if node.role in PRODUCTS or id(node) in products:
                products.add(id(outer))
            if node.own_work() is not None or id(node) in working:
                working.add(id(outer))
    counted: list[Node] = []
    taken: set[int] = set()
    for node in ops:
        outer = node.parent.op if node.parent else None
        if outer is not None and id(outer) in taken:
            taken.add(id(node))
            continue
        works = node.own_work() is not None and id(node) not in working
        whole = id(node) not in products and (node.role in PRODUCTS or works)
        if whole:
            taken.add(id(node))
        if whole or not node.children:
            counted.append(node)
    return counted


def _phases_of_passes(nodes: Sequence[Node]) -> dict[int, str]:
    """Phase of each outermost module's call by the queries of its attention: one is decode, more are prefill.

    Without modules (key 0) the whole trace is one pass, told only where all its attention agrees.
    """
    queries: dict[int, set[bool]] = {}
    for node in nodes:
        if node.role == "attention" and node is node.op:
            work = node.own_work()
            if work is not None and work.query is not None:
                queries.setdefault(id(node.top) if node.top else 0, set()).add(work.query[1] > 1)
    return {
        key: ("prefill" if found == {True} else "decode" if found == {False} else "prefill" if key else "unknown")
        for key, found in queries.items()
    }
