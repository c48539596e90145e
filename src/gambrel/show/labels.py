"""Placing labels: pure geometry in pixels, which run right and down from the top left corner of the plot.

`place_labels` finds places for the labels of marks, `roof_notes` for those of the roofs themselves: bandwidth, peak,
ridge. None covers another, a mark or an edge; where there is no room there is no label. Widths of text are estimates
that err on the large side, so nothing here needs a font or draws anything.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gambrel.units import si, significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gambrel.plots import Roof

INK, QUIET, FAINT = "#1f2328", "#59636e", "#8c959f"
#: Ways to align a text, with the part of its width that lies left of where it is put.
ALIGNS = {"left": 0.0, "center": 0.5, "right": 1.0}


# Text in pixels -------------------------------------------------------------------------------

#: Advance widths in em, those of DejaVu Sans, the widest of the common sans fonts: boxes err on the large side.
_ADVANCES = {
    **dict.fromkeys("ijlI'|", 0.29),
    **dict.fromkeys(" .,:;!ft()[]/·-r", 0.38),
    **dict.fromkeys("ceszxvyk", 0.58),
    **dict.fromkeys("mMwW%…→←+<>=", 0.92),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ", 0.71),
}


def text_width(text: str, size: float, bold: bool = False) -> float:
    """An upper estimate of the width of one line of text in a sans font [px]."""
    em = sum(_ADVANCES.get(letter, 0.64 if ord(letter) < 0x2E80 else 1.0) for letter in text)
    return em * size * (1.08 if bold else 1.0)


def wrap(text: str, size: float, width: float, bold: bool = False) -> tuple[str, ...]:
    """Break text at spaces into lines of at most `width` [px]; a longer word stays whole."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, bold) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return tuple(lines)


def merge_labels(labels: Iterable[str]) -> str:
    """One label for marks that coincide: "a, b, c", or "batch 1…64" where only a number differs."""
    names = tuple(dict.fromkeys(labels))
    matches = [re.fullmatch(r"(.*?)(\d+)(\D*)", name) for name in names]
    found = [match for match in matches if match]
    if len(names) > 1 and len(found) == len(names) and len({(m[1], m[3]) for m in found}) == 1:
        numbers = sorted(int(match[2]) for match in found)
        return f"{found[0][1]}{numbers[0]}…{numbers[-1]}{found[0][3]}"
    return ", ".join(names)


def shortened(text: str, size: float, width: float, most: int = 2) -> tuple[str, ...]:
    """A label in at most `most` lines: names at the end give way to "+3 more", then letters to "…"."""
    names = text.split(", ")
    for kept in range(len(names), 0, -1):
        more = f" +{len(names) - kept} more" if kept < len(names) else ""
        lines = wrap(", ".join(names[:kept]) + more, size, width)
        if len(lines) <= most and all(text_width(line, size) <= width for line in lines):
            return lines
    line = names[0]
    while len(line) > 1 and text_width(line + "…", size) > width:
        line = line[:-1]
    return (f"{line}…",)


# Placing labels -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A rectangle [px]: left, top, right, bottom."""

    x0: float
    y0: float
    x1: float
    y1: float

    def overlaps(self, other: Box, gap: float = 0.0) -> bool:
        """Whether less than `gap` lies between the two."""
        return (
            self.x0 < other.x1 + gap
            and other.x0 < self.x1 + gap
            and self.y0 < other.y1 + gap
            and other.y0 < self.y1 + gap
        )

    def within(self, other: Box) -> bool:
        """Whether it lies inside the other."""
        return self.x0 >= other.x0 and self.y0 >= other.y0 and self.x1 <= other.x1 and self.y1 <= other.y1

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """Its point nearest to (x, y)."""
        return min(max(x, self.x0), self.x1), min(max(y, self.y0), self.y1)

    def gap(self, mark: Anchor) -> float:
        """What lies between it and the rim of a mark [px]."""
        x, y = self.nearest(mark.x, mark.y)
        return math.hypot(x - mark.x, y - mark.y) - mark.radius

    def touches(self, x: float, y: float, radius: float) -> bool:
        """Whether it meets the disc around (x, y)."""
        dx = self.x0 - x if x < self.x0 else x - self.x1 if x > self.x1 else 0.0
        dy = self.y0 - y if y < self.y0 else y - self.y1 if y > self.y1 else 0.0
        return dx * dx + dy * dy < radius * radius


@dataclass(frozen=True)
class Stroke:
    """A straight line [px]. weight: how much text over it hurts."""

    x0: float
    y0: float
    x1: float
    y1: float
    weight: float = 1.0

    def crosses(self, box: Box) -> bool:
        """Whether any of it lies in the box (Liang and Barsky 1984)."""
        if max(self.x0, self.x1) < box.x0 or min(self.x0, self.x1) > box.x1:
            return False
        if max(self.y0, self.y1) < box.y0 or min(self.y0, self.y1) > box.y1:
            return False
        dx, dy = self.x1 - self.x0, self.y1 - self.y0
        first, last = 0.0, 1.0
        for p, q in ((-dx, self.x0 - box.x0), (dx, box.x1 - self.x0), (-dy, self.y0 - box.y0), (dy, box.y1 - self.y0)):
            if p == 0:
                if q < 0:
                    return False
            elif p < 0:
                first = max(first, q / p)
            else:
                last = min(last, q / p)
        return first <= last

    def meets(self, other: Stroke) -> bool:
        """Whether the two cross."""

        def side(s: Stroke, x: float, y: float) -> float:
            return (s.x1 - s.x0) * (y - s.y0) - (s.y1 - s.y0) * (x - s.x0)

        return (
            side(self, other.x0, other.y0) * side(self, other.x1, other.y1) < 0
            and side(other, self.x0, self.y0) * side(other, self.x1, self.y1) < 0
        )

    def passes(self, x: float, y: float, radius: float) -> bool:
        """Whether it comes nearer than `radius` to (x, y)."""
        dx, dy = self.x1 - self.x0, self.y1 - self.y0
        along = ((x - self.x0) * dx + (y - self.y0) * dy) / max(dx * dx + dy * dy, 1e-9)
        along = min(max(along, 0.0), 1.0)
        return math.hypot(self.x0 + along * dx - x, self.y0 + along * dy - y) < radius


@dataclass(frozen=True)
class Anchor:
    """A mark that may want a label: centre and radius [px], lines of text (none for no label), weight (heavy first)."""

    x: float
    y: float
    radius: float
    lines: tuple[str, ...] = ()
    weight: float = 0.0
    tint: str = INK


@dataclass(frozen=True)
class Label:
    """Text that found its place. box: its extent. align: left, center or right. leader: line from mark to text."""

    lines: tuple[str, ...]
    box: Box
    align: str
    tint: str
    leader: Stroke | None = None


@dataclass(frozen=True)
class Scene:
    """What a label must keep clear of: marks, boxes taken, lines drawn; the frame it must stay in."""

    frame: Box
    marks: tuple[Anchor, ...]
    taken: tuple[Box, ...]
    strokes: tuple[Stroke, ...]


def coinciding(marks: Sequence[Anchor], indices: Iterable[int], within: float = 5.0) -> list[list[int]]:
    """Groups of marks whose centres lie within a few pixels of the group's first."""
    groups: list[list[int]] = []
    for i in indices:
        for group in groups:
            first = marks[group[0]]
            if math.hypot(marks[i].x - first.x, marks[i].y - first.y) <= within:
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


DISTANCES = (3.0, 7.0, 13.0, 20.0, 28.0, 38.0, 50.0, 64.0, 80.0, 98.0, 120.0, 145.0, 175.0)
#: What having no label costs at most places [px]; a worse place than that is no place.
UNLABELLED = 260.0
#: Beyond this distance a line leads from the mark to its label [px].
LEADER_FROM = 9.0


def place_labels(
    anchors: Sequence[Anchor],
    frame: Box,
    taken: Iterable[Box] = (),
    strokes: Iterable[Stroke] = (),
    size: float = 11.0,
) -> tuple[Label | None, ...]:
    """Find a place for every anchor's text; None where there is no room (or no text).

    Greedy from several orders, the heaviest first and others; each time labels may move again to better places, and
    the cheapest outcome wins. Guaranteed: boxes lie in the frame, overlap neither each other nor `taken`, and touch
    no mark; no leader crosses a text. Wished for: close to the mark, off the `strokes`, leaders that cross nothing.
    size: of the font [px]. The same input gives the same places.
    """
    scene = Scene(frame, tuple(anchors), tuple(taken), tuple(strokes))
    places = {i: _places(anchor, scene, size) for i, anchor in enumerate(anchors) if anchor.lines}
    best: dict[int, _Place] = {}
    lowest = math.inf
    for order in _orders(anchors, places):
        placed = _greedy(order, places)
        price = sum((placed[i].price if i in placed else UNLABELLED) * (1 + 2 * anchors[i].weight) for i in places)
        price += sum(_conflict(p.label, q.label) for i, p in placed.items() for j, q in placed.items() if i < j)
        if price < lowest:
            best, lowest = placed, price
    return tuple(best[i].label if i in best else None for i in range(len(anchors)))


@dataclass(frozen=True)
class _Place:
    """A label in a possible place, and what that costs whatever the others do [px]."""

    price: float
    label: Label


def _places(anchor: Anchor, scene: Scene, size: float) -> list[_Place]:
    """Every place for one label that marks, frame and taken boxes leave, the cheapest first."""
    places = []
    for distance, label in _candidates(anchor, size):
        if not _blocked(label, scene):
            price = distance + _direction_cost(anchor, label) + _price(label, anchor, scene)
            if price < UNLABELLED:
                places.append(_Place(price, label))
    return sorted(places, key=lambda place: place.price)


def _orders(anchors: Sequence[Anchor], places: Mapping[int, Sequence[_Place]]) -> Iterator[list[int]]:
    """Orders in which to place labels: heaviest, most constrained, by side, then shuffled (always the same way)."""
    yield sorted(places, key=lambda i: -anchors[i].weight)
    yield sorted(places, key=lambda i: len(places[i]))
    yield sorted(places, key=lambda i: anchors[i].x)
    yield sorted(places, key=lambda i: -anchors[i].x)
    yield sorted(places, key=lambda i: anchors[i].y)
    shuffler = random.Random(len(places))
    for _ in range(12 if len(places) > 3 else 0):
        yield shuffler.sample(sorted(places), len(places))


def _greedy(order: Sequence[int], places: Mapping[int, Sequence[_Place]]) -> dict[int, _Place]:
    """Place labels in an order, then let each move again while that helps."""
    placed: dict[int, _Place] = {}
    for _ in range(3):
        before = dict(placed)
        for i in order:
            best = _cheapest(places[i], [place.label for j, place in placed.items() if j != i])
            if best is not None:
                placed[i] = best
        if placed == before:
            break
    return placed


def _cheapest(places: Sequence[_Place], others: Sequence[Label]) -> _Place | None:
    """The cheapest place for one label beside the others."""
    best, lowest = None, math.inf
    for place in places:
        if place.price >= lowest:
            break
        price = place.price
        for other in others:
            price += _conflict(place.label, other)
            if price >= lowest:
                break
        if price < lowest:
            best, lowest = place, price
    return best


def _conflict(label: Label, other: Label) -> float:
    """What two labels cost each other: infinite where one covers the other or its leader, some if leaders cross."""
    if label.box.overlaps(other.box, 2):
        return math.inf
    if label.leader is not None and label.leader.crosses(other.box):
        return math.inf
    if other.leader is not None and other.leader.crosses(label.box):
        return math.inf
    return 110.0 if label.leader is not None and other.leader is not None and label.leader.meets(other.leader) else 0.0


def _candidates(anchor: Anchor, size: float) -> Iterator[tuple[float, Label]]:
    """Places around a mark, ring after ring."""
    width, height = _extent(anchor.lines, size)
    for distance in DISTANCES:
        for degrees in range(0, 360, 15):
            ux, uy = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
            x, y = anchor.x + ux * (anchor.radius + distance), anchor.y + uy * (anchor.radius + distance)
            align = "left" if ux > 0.3 else "right" if ux < -0.3 else "center"
            left = x - width * ALIGNS[align]
            top = y - height * (0.0 if uy > 0.6 else 1.0 if uy < -0.6 else 0.5)
            box = Box(left, top, left + width, top + height)
            leader = _leader(anchor, box) if distance > LEADER_FROM else None
            yield distance, Label(anchor.lines, box, align, anchor.tint, leader)


def _extent(lines: Sequence[str], size: float) -> tuple[float, float]:
    """Width and height of a text [px]."""
    return max(text_width(line, size) for line in lines), len(lines) * size * 1.2


def _direction_cost(anchor: Anchor, label: Label) -> float:
    """Beside the mark reads best, the right better than the left, then above and below [px]."""
    dx = (label.box.x0 + label.box.x1) / 2 - anchor.x
    dy = (label.box.y0 + label.box.y1) / 2 - anchor.y
    return 5.0 * abs(dy) / max(math.hypot(dx, dy), 1e-9) + (2.0 if dx < 0 else 0.0)


def _leader(anchor: Anchor, box: Box) -> Stroke:
    x, y = box.nearest(anchor.x, anchor.y)
    length = math.hypot(x - anchor.x, y - anchor.y)
    start, end = anchor.radius / length, (length - 2) / length
    dx, dy = x - anchor.x, y - anchor.y
    return Stroke(anchor.x + dx * start, anchor.y + dy * start, anchor.x + dx * end, anchor.y + dy * end)


def _blocked(label: Label, scene: Scene) -> bool:
    """Whether a place leaves the frame, touches a mark or covers what is taken."""
    box, leader = label.box, label.leader
    if not box.within(scene.frame) or any(box.overlaps(other, 2) for other in scene.taken):
        return True
    if any(box.touches(mark.x, mark.y, mark.radius + 1.5) for mark in scene.marks):
        return True
    return leader is not None and any(leader.crosses(other) for other in scene.taken)


def _price(label: Label, anchor: Anchor, scene: Scene) -> float:
    """What a place costs beside its distance [px].

    That is lines under the text, another mark nearer, a leader over marks or along lines.
    """
    price = 60.0 * sum(stroke.weight for stroke in scene.strokes if stroke.crosses(label.box))
    leader = label.leader
    others = [m for m in scene.marks if math.hypot(m.x - anchor.x, m.y - anchor.y) > 6]
    if leader is None:
        gap = label.box.gap(anchor) + 2
        return price + 35.0 * sum(label.box.gap(m) < gap for m in others)
    price += 150.0 * sum(leader.passes(m.x, m.y, m.radius + 1) for m in others)
    along = [(leader.x0 + (leader.x1 - leader.x0) * t, leader.y0 + (leader.y1 - leader.y0) * t) for t in (0.4, 0.9)]
    price += 90.0 * sum(all(stroke.passes(x, y, 4) for x, y in along) for stroke in scene.strokes)
    return price + 10.0 * sum(stroke.meets(leader) for stroke in scene.strokes)


# The plot ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plane:
    """The plot in pixels and in data: log axes from x0 to x1 [FLOP/byte] and from y0 to y1 [FLOP/s]."""

    width: float
    height: float
    x0: float
    x1: float
    y0: float
    y1: float

    @property
    def box(self) -> Box:
        """The plot, a little inside its edges."""
        return Box(3, 3, self.width - 3, self.height - 3)

    def px(self, intensity: float) -> float:
        """Pixels from the left edge."""
        return self.width * math.log(intensity / self.x0) / math.log(self.x1 / self.x0)

    def py(self, rate: float) -> float:
        """Pixels from the top edge."""
        return self.height * (1 - math.log(rate / self.y0) / math.log(self.y1 / self.y0))

    def data(self, x: float, y: float) -> dict[str, float]:
        """The data at a pixel, which may lie outside the plot."""
        return {
            "intensity": self.x0 * (self.x1 / self.x0) ** (x / self.width),
            "rate": self.y0 * (self.y1 / self.y0) ** (1 - y / self.height),
        }

    def corners(self, roof: Roof) -> tuple[tuple[float, float], ...]:
        """A roof's left end, ridge and right end [px]."""
        ridge = roof.ridge_flop_per_byte
        left = (0.0, self.py(roof.mem_bytes_per_s * self.x0))
        return left, (self.px(ridge), self.py(roof.peak_flops_per_s)), (self.width, self.py(roof.peak_flops_per_s))


# Roofs and their labels -----------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """A label of the chart itself.

    x, y: of its left end, middle or right end, as `align` says [px]. angle: clockwise [degree]. boxes: what it
    covers. wish: what this place costs against the best one [px].
    """

    text: str
    x: float
    y: float
    tint: str
    boxes: tuple[Box, ...]
    wish: float = 0.0
    angle: float = 0.0
    align: str = "center"


def _note(text: str, x: float, y: float, tint: str, size: float, wish: float, align: str = "center") -> Note:
    """A level note at (x, y)."""
    width, height = text_width(text, size), size * 1.2
    left = x - width * ALIGNS[align]
    return Note(text, x, y, tint, (Box(left, y - height / 2, left + width, y + height / 2),), wish, 0.0, align)


def _tilted(text: str, x: float, y: float, tint: str, size: float, wish: float, angle: float) -> Note:
    """A note around (x, y) at an angle [rad], covered by small boxes along it."""
    width, height = text_width(text, size), size * 1.2
    parts = max(2, math.ceil(width / height * 1.5))
    ux, uy, half = math.cos(angle), math.sin(angle), height * 0.55
    steps = [(i / (parts - 1) - 0.5) * (width - height) for i in range(parts)]
    boxes = tuple(Box(x + ux * s - half, y + uy * s - half, x + ux * s + half, y + uy * s + half) for s in steps)
    return Note(text, x, y, tint, boxes, wish, math.degrees(angle))


def _choose(candidates: Iterable[Note], scene: Scene) -> Note | None:
    """The best of several places for a note, None if every one leaves the plot or covers another note."""
    best, lowest = None, math.inf
    for note in candidates:
        if note.wish >= lowest:
            continue
        if not all(box.within(scene.frame) for box in note.boxes):
            continue
        if any(box.overlaps(other, 3) for box in note.boxes for other in scene.taken):
            continue
        marks = sum(any(box.touches(m.x, m.y, m.radius + 2) for box in note.boxes) for m in scene.marks)
        lines = sum(any(stroke.crosses(box) for box in note.boxes) for stroke in scene.strokes)
        near = sum(any(box.touches(m.x, m.y, m.radius + 16) for box in note.boxes) for m in scene.marks)
        price = note.wish + 200.0 * marks + 6.0 * near + 40.0 * lines
        if price < lowest:
            best, lowest = note, price
    return best


def _on_ceiling(text: str, plane: Plane, roof: Roof, tint: str, size: float) -> Iterator[Note]:
    """Places along a ceiling, from its right end to the left, above it and below it."""
    _, ridge, end = plane.corners(roof)
    width = text_width(text, size)
    for i in range(100):
        x = end[0] - 6 - 4 * i
        beyond = 30.0 if x - width < ridge[0] else 0.0
        for offset, cost in ((-size * 0.95, 0), (-size * 1.9, 12), (size * 1.05, 16)):
            if offset < 0 or not beyond:
                yield _note(text, x, end[1] + offset, tint, size, cost + 0.5 * i + beyond, "right")


def _on_slope(text: str, plane: Plane, roof: Roof, tint: str, size: float) -> Iterator[Note]:
    """Places along a slope, above it and below it, parallel to it; two thirds of the way up is preferred."""
    left, ridge, _ = plane.corners(roof)
    angle = math.atan2(ridge[1] - left[1], ridge[0] - left[0])
    for step in range(2, 39):
        part = step / 40
        x, y = left[0] + (ridge[0] - left[0]) * part, left[1] + (ridge[1] - left[1]) * part
        for offset, cost in ((-size * 0.95, 0.0), (-size * 1.7, 8.0), (size * 1.05, 16.0)):
            nx, ny = x - math.sin(angle) * offset, y + math.cos(angle) * offset
            yield _tilted(text, nx, ny, tint, size, cost + 40 * abs(part - 0.6), angle)


def _by_ridge(texts: tuple[str, str], plane: Plane, roof: Roof, size: float) -> Iterator[tuple[Note, Note]]:
    """Places for the two regions' names, left and right of the ridge, from the bottom upwards."""
    x, top = plane.corners(roof)[1]
    for i in range(12):
        y = plane.height - 12 - 10 * i
        if y > top + size:
            left = _note(texts[0], x - 7, y, FAINT, size, i, "right")
            yield left, _note(texts[1], x + 7, y, FAINT, size, i, "left")


def _ridge_label(plane: Plane, roof: Roof, size: float) -> Iterator[Note]:
    """Places for the ridge's value beside its rule, from the bottom upwards."""
    x, top = plane.corners(roof)[1]
    text = f"ridge {significant(roof.ridge_flop_per_byte)} FLOP/byte"
    for i in range(30):
        y = plane.height - 28 - 8 * i
        if y > top + size * 1.5:
            yield _note(text, x + 7, y, QUIET, size, 2.0 * i, "left")
            yield _note(text, x - 7, y, QUIET, size, 2.0 * i + 6, "right")


def roof_strokes(plane: Plane, roofs: Sequence[Roof]) -> tuple[Stroke, ...]:
    """Every line of the roofs and the rule at the ridge; the first roof is thick and dark."""
    strokes: list[Stroke] = []
    for i, roof in enumerate(roofs):
        left, ridge, end = plane.corners(roof)
        weight = 3.5 if i == 0 else 1.0
        strokes += [Stroke(*left, *ridge, weight), Stroke(*ridge, *end, weight)]
    x, top = plane.corners(roofs[0])[1]
    return (*strokes, Stroke(x, top, x, plane.height))


#: Names of the regions left and right of the ridge; the first pair that fits is taken.
REGIONS = (("← memory-bound", "compute-bound →"), ("memory-bound", "compute-bound"), ("memory", "compute"))


def roof_notes(plane: Plane, roofs: Sequence[Roof], marks: Sequence[Anchor], size: float) -> tuple[Note, ...]:
    """The roofs' own labels, each where it covers no mark: bandwidth, peak, ridge, regions, further devices."""
    scene = Scene(plane.box, tuple(marks), (), roof_strokes(plane, roofs))
    notes: list[Note] = []
    for candidates in _wanted(plane, roofs, size):
        note = _choose(candidates, replace(scene, taken=tuple(box for n in notes for box in n.boxes)))
        if note is not None:
            notes.append(note)
    return tuple(notes)


def _wanted(plane: Plane, roofs: Sequence[Roof], size: float) -> Iterator[Iterable[Note]]:
    """The places of each label of the roofs, the most important label first."""
    first = roofs[0]
    peak = f"{si(first.peak_flops_per_s, 'FLOP/s')} {first.dtype}".strip()
    if len(roofs) > 1 and first.device:
        peak = f"{first.device} · {peak}"
    yield _on_ceiling(peak, plane, first, INK, size)
    yield _on_slope(si(first.mem_bytes_per_s, "B/s"), plane, first, INK, size)
    for names in REGIONS:
        pairs = list(_by_ridge(names, plane, first, size))
        if pairs and all(box.within(plane.box) for note in pairs[0] for box in note.boxes):
            yield [pair[0] for pair in pairs]
            yield [pair[1] for pair in pairs]
            break
    yield _ridge_label(plane, first, size)
    for roof in roofs[1:]:
        text = roof.device if roof.dtype == first.dtype else f"{roof.device} {roof.dtype}".strip()
        ceilings = [plane.py(other.peak_flops_per_s) for other in roofs if other is not roof]
        alone = all(abs(plane.py(roof.peak_flops_per_s) - ceiling) > 4 for ceiling in ceilings)
        places = _on_ceiling(text, plane, roof, QUIET, size) if alone else ()
        yield [*places, *_on_slope(text, plane, roof, QUIET, size)]
