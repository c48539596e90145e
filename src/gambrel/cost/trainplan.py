"""One training plan on one device: does it fit, what to change, what it sends, and the bound on its step."""

from __future__ import annotations

from dataclasses import replace

from gambrel.cost import footprint as memory
from gambrel.cost.activations import unknown_parts
from gambrel.cost.training import recompute
from gambrel.cost.trainstep import step_bound, traffic
from gambrel.model.arch import check_tp
from gambrel.plots import MemoryBar, MemoryPlot
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gambrel.cost.footprint import Change, Footprint, Plan
    from gambrel.cost.parallel import Network
    from gambrel.cost.trainstep import StepBound
    from gambrel.types import Device


@frozen
class Answer:
    """Everything about a plan.

    largest: micro-batch that fits, 0 where none does. changes: what to change then. layers: tensors that one layer of
    each kind keeps. estimated: kinds of parts whose terms are no exact ones. traffic: what one device sends in a step.
    """

    plan: Plan
    device: Device
    dtype: str
    utilization: float
    footprint: Footprint
    largest: int
    changes: tuple[Change, ...]
    layers: tuple[dict[str, Any], ...]
    estimated: tuple[str, ...]
    traffic: tuple[dict[str, Any], ...]
    step: StepBound

    @property
    def fits(self) -> bool:
        """Whether the plan as it is has room."""
        return self.footprint.total_bytes <= self.device.usable_bytes * self.utilization


def answer(plan: Plan, device: Device, dtype: str, network: Network, utilization: float) -> Answer:
    """Ask everything. Raises GambrelError for a layout that cannot divide the model."""
    check_tp(plan.model.arch, plan.layout.tp)
    room = device.usable_bytes
    largest = memory.largest_micro_batch(plan, room, utilization)
    return Answer(
        plan,
        device,
        dtype,
        utilization,
        memory.footprint(plan),
        largest,
        () if largest else tuple(memory.changes(plan, room, utilization)),
        tuple(layer_rows(plan)),
        tuple(unknown_parts(plan.model)),
        tuple(traffic_rows(plan, network)),
        step_bound(plan, device.peak(dtype), network),
    )


def layer_rows(plan: Plan) -> list[dict[str, Any]]:
    """Every tensor that a layer of each kind keeps on one device for one micro-batch, before recomputation."""
    return [
        {"layers": block.name, "count": block.count, "tensor": term.name, "bytes": memory.term_bytes(term, plan)}
        for block in plan.model.arch.blocks
        for term in memory.terms(block, plan)
    ]


def traffic_rows(plan: Plan, network: Network) -> list[dict[str, Any]]:
    """What one device sends in one step, with the link and the least time."""
    return [
        {
            "name": row.name,
            "collective": row.collective,
            "group": row.group,
            "payload_bytes": row.payload_bytes,
            "sent_bytes": row.sent_bytes,
            "link": network.link(row.span)[0],
            "time_s": network.time_s(row),
        }
        for row in traffic(plan)
    ]


def memory_plot(plan: Plan, device: Device, utilization: float) -> MemoryPlot:
    """Memory by kind over recomputation and, where there are replicas, over what ZeRO divides."""
    zeros = (0, 1, 2, 3) if plan.layout.replicas > 1 else (plan.zero,)
    agains = ["none", *(["selective"] if plan.attention == "materialised" else []), "full"]
    asked = (plan.zero, plan.recompute.name)
    choices = [asked, *(c for c in ((zero, again) for again in agains for zero in zeros) if c != asked)]
    bars = tuple(
        MemoryBar(
            f"ZeRO-{zero}, {again}" if len(zeros) > 1 else f"recompute {again}",
            memory.footprint(replace(plan, zero=zero, recompute=recompute(again))).kinds,
        )
        for zero, again in choices
    )
    title = f"{plan.model.name} on {plan.layout.devices} x {device.id}: training memory of a device"
    told = f"{plan.micro_batch} x {plan.seq_tokens:,} tokens at once, {plan.optimizer.name}; the first bar as asked"
    return MemoryPlot(title, told, bars, device.usable_bytes * utilization)
