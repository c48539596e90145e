"""The shared dataclasses of charts, apart from types.py so that a report does not load them."""

from __future__ import annotations

from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


@frozen
class Roof:
    """One device's roof for one dtype: attainable rate = min(peak, intensity x bandwidth).

    device: its name. dtype: of the peak. peak_flops_per_s [FLOP/s]. mem_bytes_per_s [byte/s].
    """

    device: str
    dtype: str
    peak_flops_per_s: float
    mem_bytes_per_s: float

    @property
    def ridge_flop_per_byte(self) -> float:
        """Where the two slopes meet [FLOP/byte]."""
        return self.peak_flops_per_s / self.mem_bytes_per_s


@frozen
class Point:
    """One mark under a roof.

    label: for people. phase: "prefill" or "decode". intensity_flop_per_byte [FLOP/byte]. rate_flops_per_s [FLOP/s]:
    attainable by the bound, or achieved where measured. share: of its phase's time, 0 to 1. path: marks with the
    same path are joined in order, such as one step at growing batch; "" for none. hollow: predicted, behind measured.
    """

    label: str
    phase: str
    intensity_flop_per_byte: float
    rate_flops_per_s: float
    share: float = 0.0
    path: str = ""
    hollow: bool = False


@frozen
class RooflinePlot:
    """Everything that a roofline chart shows: the first roof in full, any others in grey."""

    title: str
    subtitle: str
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]


@frozen
class MemoryBar:
    """One choice and the memory that it takes on a device, by kind in order [byte]."""

    label: str
    kinds: Mapping[str, float]

    @property
    def total_bytes(self) -> float:
        """All kinds together [byte]."""
        return sum(self.kinds.values())


@frozen
class MemoryPlot:
    """Stacked bars of memory over choices, the first of them as asked; room_bytes: what a device has for them."""

    title: str
    subtitle: str
    bars: tuple[MemoryBar, ...]
    room_bytes: float
