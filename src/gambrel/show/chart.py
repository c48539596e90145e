"""The roofline chart: one log-log picture of what limits a model on a device.

A chart is a Vega-Lite specification, built and validated by Altair and rendered offline by vl-convert. Every
label is placed beforehand (labels.py), so that none can cover another, a mark or an edge. Two layouts are made, one
for a page and one for a phone; pixels run right and down from the top left corner of the plot.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import json
import math
import os
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gambrel.show.labels import (
    ALIGNS,
    FAINT,
    INK,
    QUIET,
    Anchor,
    Label,
    Note,
    Plane,
    Stroke,
    coinciding,
    merge_labels,
    place_labels,
    roof_notes,
    roof_strokes,
    shortened,
    text_width,
    wrap,
)
from gambrel.types import GambrelError
from gambrel.units import si, significant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gambrel.plots import Point, Roof, RooflinePlot

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "Liberation Sans", sans-serif'
SUFFIXES = (".svg", ".png", ".html", ".json")
#: Layout for a phone: width and least height [px].
PHONE = (380, 540)
SMALLEST = (300, 280)

GRID = "#edeff2"
#: Colour of the mark, colour of its text and symbol by phase: the Okabe-Ito orange and blue differ in grey too.
PHASES = {
    "prefill": ("#E69F00", "#7a5200", "circle"),
    "decode": ("#0072B2", "#00507d", "square"),
    # A trace may mix both in one pass, or not tell.
    "mixed": ("#009E73", "#00614a", "diamond"),
    "unknown": ("#8c959f", "#59636e", "triangle-up"),
}


# The chart ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart that saves and shows itself, offline and without a browser.

    spec: the specification. phone: the same chart laid out for a narrow page. title: plain text.
    """

    spec: dict[str, Any]
    phone: dict[str, Any]
    title: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the chart in the format of the suffix: .svg .png .html .json; the whole file or nothing.

        The HTML needs no network. Raises GambrelError for another suffix or where the file cannot be written.
        """
        target = Path(path)
        suffix = target.suffix.lower()
        if suffix not in SUFFIXES:
            raise GambrelError(
                f"cannot save a chart as {target.name!r}; the suffix must be one of {' '.join(SUFFIXES)}"
            )
        if not target.parent.is_dir():
            raise GambrelError(f"cannot save {target}: there is no folder {target.parent}")
        _write_whole(target, self._rendered(suffix))
        return target

    def svg(self) -> str:
        """The chart as SVG text."""
        return str(_library("vl_convert").vegalite_to_svg(self.spec, allowed_base_urls=[]))

    def png(self, scale: float = 2.0) -> bytes:
        """The chart as PNG, `scale` pixels of the image to one of the layout."""
        return bytes(_library("vl_convert").vegalite_to_png(self.spec, scale=scale, allowed_base_urls=[]))

    def html(self) -> str:
        """A page of its own with the JavaScript in it; it scales to the width and changes layout on a phone."""
        bundle = str(_library("vl_convert").javascript_bundle())
        layouts = json.dumps([_anonymous(self.phone), _anonymous(self.spec)]).replace("<", "\\u003c")
        page = {"title": html.escape(self.title), "font": FONT, "bundle": bundle, "layouts": layouts}
        return re.sub(r"@(title|font|bundle|layouts)@", lambda match: page[match[1]], PAGE)

    def json(self) -> str:
        """The specification as text."""
        return json.dumps(self.spec, indent=2, ensure_ascii=False) + "\n"

    def _rendered(self, suffix: str) -> bytes:
        if suffix == ".png":
            return self.png()
        return {".svg": self.svg, ".html": self.html, ".json": self.json}[suffix]().encode()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows: Vega-Lite where it can, else the SVG."""
        version = re.search(r"v\d+", str(self.spec.get("$schema", ""))) or ["v6"]
        return {
            f"application/vnd.vegalite.{version[0]}.json": self.spec,
            "image/svg+xml": self.svg(),
            "text/plain": f"<Chart {self.title!r}>",
        }


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:;
 script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'">
<title>@title@</title>
<style>
body { margin: 0; background: #fff; font-family: @font@; }
#chart { display: block; max-width: 1140px; margin: 0 auto; }
#chart svg { display: block; width: 100%; height: auto; }
#vg-tooltip-element { font-family: inherit; }
</style>
<script>@bundle@</script>
</head>
<body>
<figure id="chart"></figure>
<script>
const layouts = @layouts@;
const totalWidth = (spec) => spec.width + spec.padding.left + spec.padding.right;
const figure = document.getElementById("chart");
let shown = null, result = null;
async function draw() {
  const [phone, page] = layouts;
  const narrow = figure.clientWidth < (totalWidth(phone) + totalWidth(page)) / 2;
  const spec = narrow ? phone : page;
  if (spec === shown) return;
  shown = spec;
  if (result) result.finalize();
  result = await vegaEmbed(figure, spec, { mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false });
}
draw();
window.addEventListener("resize", draw);
</script>
</body>
</html>
"""


def _anonymous(spec: dict[str, Any]) -> dict[str, Any]:
    """The specification without the address of its schema: the page names no other."""
    return {key: value for key, value in spec.items() if key != "$schema"}


def _write_whole(target: Path, content: bytes) -> None:
    """Write through a temporary file beside the target, so that no reader ever sees half of it."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise GambrelError(f"cannot save {target}: {error.strerror or error}") from error
        raise


def _library(name: str) -> Any:
    """Import a library on first use. Raises GambrelError with what to install."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise GambrelError("charts need altair and vl-convert-python: pip install altair vl-convert-python") from None


# Axes ------------------------------------------------------------------------------------------


def _round_down(value: float) -> float:
    """The next lower of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * max(step for step in (1, 2, 5) if step * power <= value * (1 + 1e-9) or step == 1)


def _round_up(value: float) -> float:
    """The next higher of 1, 2, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * min(step for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))


def domains(roofs: Sequence[Roof], points: Sequence[Point]) -> tuple[float, float, float, float]:
    """x0, x1 [FLOP/byte], y0, y1 [FLOP/s] that hold every point, every ridge, slope and ceiling with room around.

    Ends are 1, 2 or 5 times a power of ten, ticks the powers themselves.
    """
    ridges = [roof.ridge_flop_per_byte for roof in roofs]
    x = [point.intensity_flop_per_byte for point in points]
    y = [point.rate_flops_per_s for point in points]
    x0 = _round_down(min(*(value / 1.6 for value in x), *(ridge / 30 for ridge in ridges), math.inf))
    x1 = _round_up(max(*(value * 2 for value in x), *(ridge * 6 for ridge in ridges), 0.0))
    slopes = [roof.mem_bytes_per_s * x0 for roof in roofs]
    peaks = [roof.peak_flops_per_s * 3 for roof in roofs]
    y0 = _round_down(min(*(value / 2 for value in y), *(value / 1.2 for value in slopes), math.inf))
    return x0, x1, y0, _round_up(max(*(value * 1.6 for value in y), *peaks, 0.0))


def _powers(low: float, high: float, most: int) -> list[float]:
    """The powers of ten from low to high, thinned to at most `most`."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**k for k in range(first, last + 1, max(1, math.ceil((last - first + 1) / most)))]


# Marks and their labels -----------------------------------------------------------------------


def usable(points: Sequence[Point]) -> tuple[tuple[Point, ...], tuple[str, ...]]:
    """The points that a log axis can show, and the names of those that it cannot (zero, infinite or no number)."""

    def fine(value: float) -> bool:
        return math.isfinite(value) and value > 0

    shown = tuple(p for p in points if fine(p.intensity_flop_per_byte) and fine(p.rate_flops_per_s))
    kept = {id(point) for point in shown}
    return shown, tuple(dict.fromkeys(point.label for point in points if id(point) not in kept))


def mark_area(share: float, largest: float) -> float:
    """Area of a mark [px²]: `largest` times its share, at least a twentieth of that so that none vanishes."""
    within = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    return largest * max(within, 0.05)


def _half_width(phase: str, area: float) -> float:
    """Half the diameter of a circle or half the side of a square of an area [px]."""
    return math.sqrt(area / math.pi) if PHASES[phase][2] == "circle" else math.sqrt(area) / 2


def combined(points: Sequence[Point], plane: Plane) -> tuple[Point, ...]:
    """Points of one phase that coincide, as one mark at the heaviest with the sum of their shares.

    Points of a path stay apart: each is a step of its own, so their shares do not add.
    """
    marks = [Anchor(plane.px(p.intensity_flop_per_byte), plane.py(p.rate_flops_per_s), 0.0) for p in points]
    groups = [[i] for i, p in enumerate(points) if p.path]
    for kind in dict.fromkeys((p.phase, p.hollow) for p in points if not p.path):
        members = [i for i, p in enumerate(points) if not p.path and (p.phase, p.hollow) == kind]
        groups += coinciding(marks, sorted(members, key=lambda i: -points[i].share))
    result = []
    for group in sorted(groups, key=lambda group: min(group)):
        label = merge_labels(points[i].label for i in sorted(group))
        total = sum(points[i].share for i in group)
        result.append(replace(points[group[0]], label=label, share=total))
    return tuple(result)


def anchors(points: Sequence[Point], plane: Plane, largest: float, size: float) -> tuple[Anchor, ...]:
    """The points as marks, in their order; of those within a few pixels one carries a label for all.

    A hollow point has no label where a filled one of its phase has the same.
    """
    marks = []
    for p in points:
        half = _half_width(p.phase, mark_area(p.share, largest))
        radius = half if PHASES[p.phase][2] == "circle" else half * 1.3
        marks.append(Anchor(plane.px(p.intensity_flop_per_byte), plane.py(p.rate_flops_per_s), radius))
    measured = {(p.phase, name) for p in points if not p.hollow for name in p.label.split(", ")}
    named = [i for i, p in enumerate(points) if p.label]
    named = [i for i in named if not (points[i].hollow and _names(points[i]) <= measured)]
    for group in coinciding(marks, named):
        members = [points[i] for i in group]
        head = max(group, key=lambda i: marks[i].radius)
        tint = PHASES[members[0].phase][1] if len({point.phase for point in members}) == 1 else INK
        lines = shortened(_group_label(members), size, min(190.0, plane.width * 0.4))
        weight = sum(point.share for point in members) + (1.0 if members[0].path else 0.0)
        marks[head] = replace(marks[head], lines=lines, weight=weight, tint=tint)
    return tuple(marks)


def _names(point: Point) -> set[tuple[str, str]]:
    return {(point.phase, name) for name in point.label.split(", ")}


def _group_label(points: Sequence[Point]) -> str:
    """The label of marks in one place; where they are of both phases it says which is whose."""
    by_phase: dict[str, list[str]] = {}
    for point in points:
        by_phase.setdefault(point.phase, []).extend(point.label.split(", "))
    if len(by_phase) == 1:
        return merge_labels(name for names in by_phase.values() for name in names)
    every = dict.fromkeys(name for names in by_phase.values() for name in names)
    owners = {name: [phase for phase, names in by_phase.items() if name in names] for name in every}
    return ", ".join(f"{name} ({owner[0] if len(owner) == 1 else 'both'})" for name, owner in owners.items())


def _path_strokes(points: Sequence[Point], marks: Sequence[Anchor]) -> tuple[Stroke, ...]:
    """The lines that join points of one path."""
    last: dict[str, Anchor] = {}
    strokes = []
    for point, mark in zip(points, marks, strict=True):
        if point.path and point.path in last:
            strokes.append(Stroke(last[point.path].x, last[point.path].y, mark.x, mark.y))
        last[point.path] = mark
    return tuple(strokes)


# Layout and specification ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Key:
    """One entry of the legend: a symbol (phase, area, hollow) or none, and its text."""

    text: str
    phase: str = ""
    area: float = 0.0
    hollow: bool = False


@dataclass(frozen=True)
class _Layout:
    """Sizes of everything around the plot [px], and the text in it."""

    plane: Plane
    margin: float
    left: float
    top: float
    size: float
    largest: float
    title: tuple[str, ...]
    subtitle: tuple[str, ...]
    keys: tuple[tuple[_Key, float, float], ...]
    key_rows: int

    @property
    def shift(self) -> float:
        """From the left end of the text above the plot to the plot [px]."""
        return self.left - self.margin


def _keys(points: Sequence[Point], largest: float) -> list[list[_Key]]:
    """The legend's entries in groups that stay together: the phases that occur, what hollow and what area mean."""
    phases = [phase for phase in PHASES if any(p.phase == phase for p in points)]
    keys = [[_Key(phase, phase, largest * 0.12)] for phase in phases]
    if any(p.hollow for p in points):
        keys.append([_Key("hollow: predicted")])
    if any(p.share > 0 for p in points):
        samples = [_Key(f"{part} %", phases[0], mark_area(part / 100, largest), True) for part in (10, 50)]
        keys.append([_Key("area: share of the phase's time"), *samples])
    return keys


def _flow(groups: Sequence[Sequence[_Key]], size: float, width: float) -> tuple[list[tuple[_Key, float, float]], int]:
    """Legend entries in rows: each with the left end of its text and its row's number."""

    def symbol(key: _Key) -> float:
        return 2 * _half_width(key.phase, key.area) + 5 if key.phase else 0.0

    placed, x, row = [], 0.0, 0
    for group in groups:
        widths = [symbol(key) + text_width(key.text, size) * 0.95 for key in group]
        if x and x + sum(widths) + 10 * (len(group) - 1) > width:
            x, row = 0.0, row + 1
        for key, needed in zip(group, widths, strict=True):
            placed.append((key, x + symbol(key), float(row)))
            x += needed + 10
        x += 6
    return placed, row + 1 if groups else 0


#: Above the plot: heights of one line of title, subtitle and legend, and of the rest; below it [px].
TITLE_ROW, SUBTITLE_ROW, KEY_ROW, AXIS_ROW, BELOW = 20, 16, 21, 26, 46


def _layout(plot: RooflinePlot, points: Sequence[Point], notes: Sequence[str], width: int, height: int) -> _Layout:
    """Divide the picture: title, subtitle and legend above, ticks left and below, the plot in the rest."""
    narrow = width < 520
    size, largest, margin = (10.0, 420.0, 10.0) if narrow else (11.0, 720.0, 14.0)
    x0, x1, y0, y1 = domains(plot.roofs, points)
    left = margin + 10 + max(text_width(si(value, "FLOP/s", 1), size) for value in _powers(y0, y1, 9))
    room = width - 2 * margin
    title = wrap(plot.title, size + 5, room, bold=True)
    subtitle = tuple(line for text in (plot.subtitle, *notes) for line in wrap(text, size + 1, room))
    keys, rows = _flow(_keys(points, largest), size, room)
    top = margin + TITLE_ROW * len(title) + SUBTITLE_ROW * len(subtitle) + KEY_ROW * rows + AXIS_ROW + 18
    inner = max(height - top - BELOW, 300.0 if narrow else 180.0)
    plane = Plane(width - left - margin - 4, inner, x0, x1, y0, y1)
    return _Layout(plane, margin, left, top, size, largest, title or ("",), subtitle, tuple(keys), rows)


def _checked(plot: RooflinePlot, width: int, height: int) -> None:
    """Raise GambrelError for what cannot be drawn."""
    if not plot.roofs:
        raise GambrelError("a roofline needs at least one roof")
    for roof in plot.roofs:
        for name in ("peak_flops_per_s", "mem_bytes_per_s"):
            value = getattr(roof, name)
            if not (math.isfinite(value) and value > 0):
                raise GambrelError(f"the roof of {roof.device} has {name} = {value}; it must be a positive number")
    for point in plot.points:
        if point.phase not in PHASES:
            raise GambrelError(f"{point.label} has the phase {point.phase!r}; it must be one of {', '.join(PHASES)}")
    if width < SMALLEST[0] or height < SMALLEST[1]:
        raise GambrelError(f"a chart needs at least {SMALLEST[0]} x {SMALLEST[1]} pixels, not {width} x {height}")


def roofline_chart(plot: RooflinePlot, width: int = 760, height: int = 460) -> Chart:
    """Draw a roofline: the first roof in full, further ones in grey, prefill as circles and decode as squares.

    width, height: of the whole picture [px]; a picture grows higher where its title and legend need the room. Points
    that a log axis cannot show are left out and named under the title. Raises GambrelError without a roof, for a
    roof without a positive peak or bandwidth, an unknown phase, or a picture too small to read.
    """
    _checked(plot, width, height)
    return Chart(_specification(plot, width, height), _specification(plot, *PHONE), plot.title)


CROWDED = "Where there is no room, the smallest marks have no label."


def _specification(plot: RooflinePlot, width: int, height: int) -> dict[str, Any]:
    points, left_out = usable(plot.points)
    remarks = [f"Not on the chart, as their intensity is zero or infinite: {', '.join(left_out)}"] if left_out else []
    layout = _layout(plot, points, remarks, width, height)
    shown = combined(points, layout.plane)
    marks = anchors(shown, layout.plane, layout.largest, layout.size)
    notes = roof_notes(layout.plane, plot.roofs, marks, layout.size)
    strokes = (*roof_strokes(layout.plane, plot.roofs), *_path_strokes(shown, marks))
    taken = [box for n in notes for box in n.boxes]
    labels = place_labels(marks, layout.plane.box, taken, strokes, layout.size)
    if any(mark.lines and label is None for label, mark in zip(labels, marks, strict=True)):
        taller = _layout(plot, points, [*remarks, CROWDED], width, height)
        layout = replace(taller, plane=layout.plane)
    return _assemble(plot, shown, layout, notes, [label for label in labels if label])


def _assemble(
    plot: RooflinePlot, points: Sequence[Point], layout: _Layout, notes: Sequence[Note], labels: Sequence[Label]
) -> dict[str, Any]:
    """The layers, from back to front, and the frame around them; Altair validates the whole."""
    alt = _library("altair")
    plane = layout.plane
    layers = [
        *_roof_layers(alt, plot.roofs, layout),
        *_path_layers(alt, points, layout),
        *_leader_layers(alt, labels, plane),
        *_mark_layers(alt, points, layout),
        *_text_layers(alt, notes, labels, layout),
        *_key_layers(alt, layout),
        *_subtitle_layers(alt, layout),
    ]
    title = alt.TitleParams(
        text=list(layout.title),
        orient="none",
        anchor="start",
        align="left",
        baseline="alphabetic",
        offset=0,
        dx=-layout.shift,
        dy=-layout.top + layout.margin + 14,
    )
    chart = alt.layer(*layers, title=title, width=plane.width, height=plane.height)
    chart = chart.properties(
        background="white",
        description=f"Roofline chart. {plot.title}",
        autosize=alt.AutoSizeParams(type="none"),
        padding={"left": layout.left, "top": layout.top, "right": layout.margin + 4, "bottom": BELOW},
    )
    spec: dict[str, Any] = _styled(chart, layout).to_dict()
    return spec


def _styled(chart: Any, layout: _Layout) -> Any:
    """Quiet axes and one font."""
    size = layout.size
    return (
        chart.configure(font=FONT)
        .configure_view(stroke=None)
        .configure_title(fontSize=15 if size < 11 else 16, fontWeight=600, color=INK, lineHeight=20)
        .configure_axis(
            gridColor=GRID,
            domainColor=FAINT,
            tickColor=FAINT,
            tickSize=4,
            labelColor=QUIET,
            labelFontSize=size,
            labelPadding=4,
            titleColor=QUIET,
            titleFontSize=size,
            titleFontWeight="normal",
        )
    )


def _positions(alt: Any, layout: _Layout) -> dict[str, Any]:
    """The encodings of x and y that every layer shares, with their axes."""
    plane = layout.plane
    x_axis = alt.Axis(
        title="arithmetic intensity [FLOP/byte]",
        values=_powers(plane.x0, plane.x1, max(3, int(plane.width // 42))),
        labelExpr="format(datum.value, datum.value < 0.001 ? '~e' : ',~r')",
        titlePadding=8,
        labelOverlap=False,
    )
    y_axis = alt.Axis(
        title="rate [FLOP/s]",
        values=_powers(plane.y0, plane.y1, 9),
        labelExpr="replace(format(datum.value, '~s'), regexp('([A-Za-z]?)$'), ' $1FLOP/s')",
        labelOverlap=False,
        titleAngle=0,
        titleAlign="left",
        titleBaseline="bottom",
        titleX=-layout.shift,
        titleY=-12,
    )
    x_scale = alt.Scale(type="log", domain=[plane.x0, plane.x1], nice=False)
    y_scale = alt.Scale(type="log", domain=[plane.y0, plane.y1], nice=False)
    return {"x": alt.X("intensity:Q", scale=x_scale, axis=x_axis), "y": alt.Y("rate:Q", scale=y_scale, axis=y_axis)}


def _layer(alt: Any, rows: Sequence[dict[str, Any]]) -> Any:
    return alt.Chart(alt.InlineData(values=list(rows)))


def _roof_layers(alt: Any, roofs: Sequence[Roof], layout: _Layout) -> list[Any]:
    """The rule at the ridge, then the roofs, the first on top."""
    plane, position = layout.plane, _positions(alt, layout)
    ridge, top = roofs[0].ridge_flop_per_byte, roofs[0].peak_flops_per_s
    rule = [{"intensity": ridge, "rate": top, "floor": plane.y0}]
    layers = [
        _layer(alt, rule)
        .mark_rule(color=FAINT, strokeWidth=1, strokeDash=[3, 3], tooltip=None)
        .encode(**position, y2="floor:Q")
    ]
    for i in range(len(roofs) - 1, -1, -1):
        roof = roofs[i]
        tip = {
            "device": f"{roof.device} {roof.dtype}".strip(),
            "peak": si(roof.peak_flops_per_s, "FLOP/s"),
            "bandwidth": si(roof.mem_bytes_per_s, "B/s"),
            "ridge": f"{significant(roof.ridge_flop_per_byte)} FLOP/byte",
        }
        rows = [{**plane.data(x, y), **tip} for x, y in plane.corners(roof)]
        color, thick = (INK, 2.0) if i == 0 else ("#b3bac2", 1.5)
        line = _layer(alt, rows).mark_line(color=color, strokeWidth=thick, strokeJoin="round", strokeCap="round")
        layers.append(line.encode(**position, tooltip=[alt.Tooltip(f"{key}:N") for key in tip]))
    return layers


def _path_layers(alt: Any, points: Sequence[Point], layout: _Layout) -> list[Any]:
    """A thin line along each path."""
    position = _positions(alt, layout)
    layers = []
    for path in dict.fromkeys(point.path for point in points if point.path):
        members = [point for point in points if point.path == path]
        rows = [
            {"intensity": p.intensity_flop_per_byte, "rate": p.rate_flops_per_s, "order": i}
            for i, p in enumerate(members)
        ]
        line = _layer(alt, rows).mark_line(color=PHASES[members[0].phase][0], strokeWidth=1.5, tooltip=None)
        layers.append(line.encode(**position, order="order:Q"))
    return layers


def _leader_layers(alt: Any, labels: Sequence[Label], plane: Plane) -> list[Any]:
    """Lines from marks to labels that stand far from them."""
    rows = []
    for label in labels:
        if label.leader is not None:
            start, end = plane.data(label.leader.x0, label.leader.y0), plane.data(label.leader.x1, label.leader.y1)
            rows.append({**start, "intensity2": end["intensity"], "rate2": end["rate"]})
    if not rows:
        return []
    rule = _layer(alt, rows).mark_rule(color=FAINT, strokeWidth=0.75, tooltip=None)
    return [rule.encode(x="intensity:Q", y="rate:Q", x2="intensity2:Q", y2="rate2:Q")]


def _vega_size(phase: str, area: float) -> float:
    """Vega's size of a symbol of an area: it gives that of the square around a circle."""
    return area * 4 / math.pi if PHASES[phase][2] == "circle" else area


def _mark_layers(alt: Any, points: Sequence[Point], layout: _Layout) -> list[Any]:
    """The points: hollow ones behind, then the large before the small."""
    layers = []
    for hollow in (True, False):
        chosen = [point for point in points if point.hollow == hollow]
        rows = [_mark_row(p, layout.largest) for p in sorted(chosen, key=lambda p: -p.share)]
        if not rows:
            continue
        style: dict[str, Any] = {"filled": not hollow, "opacity": 1, "strokeWidth": 1.6 if hollow else 1.0}
        style |= {"fill": "transparent"} if hollow else {"stroke": "white"}
        channel = alt.Stroke if hollow else alt.Fill
        tips = [alt.Tooltip(f"{key}:N", title=title) for key, title in TIPS.items()]
        encoding = {
            **_positions(alt, layout),
            "fill" if not hollow else "stroke": channel("colour:N", scale=None),
            "shape": alt.Shape("symbol:N", scale=None),
            "size": alt.Size("area:Q", scale=None),
            "tooltip": tips,
        }
        layers.append(_layer(alt, rows).mark_point(**style).encode(**encoding))
    return layers


#: Fields of a mark's tooltip and their titles.
TIPS = {"operator": "operator", "phase": "phase", "at": "intensity", "attains": "rate", "part": "share"}


def _mark_row(point: Point, largest: float) -> dict[str, Any]:
    colour, _, symbol = PHASES[point.phase]
    return {
        "intensity": point.intensity_flop_per_byte,
        "rate": point.rate_flops_per_s,
        "colour": colour,
        "symbol": symbol,
        "area": _vega_size(point.phase, mark_area(point.share, largest)),
        "operator": point.label + (" (predicted)" if point.hollow else ""),
        "phase": point.phase,
        "at": f"{significant(point.intensity_flop_per_byte)} FLOP/byte",
        "attains": si(point.rate_flops_per_s, "FLOP/s"),
        "part": f"{significant(100 * point.share, 2)} % of {point.phase} time" if point.share > 0 else "not given",
    }


def _text_layers(alt: Any, notes: Sequence[Note], labels: Sequence[Label], layout: _Layout) -> list[Any]:
    """The roofs' labels, then the marks', one layer for each way of aligning them."""
    plane = layout.plane
    rows = [{**plane.data(n.x, n.y), "text": n.text, "tint": n.tint, "align": n.align, "angle": n.angle} for n in notes]
    for label in labels:
        box = label.box
        x = box.x0 + (box.x1 - box.x0) * ALIGNS[label.align]
        row = {"text": "\n".join(label.lines), "tint": label.tint, "align": label.align, "angle": 0}
        rows.append({**plane.data(x, (box.y0 + box.y1) / 2 - (len(label.lines) - 1) * layout.size * 0.6), **row})
    layers = []
    for align in ALIGNS:
        chosen = [row for row in rows if row["align"] == align]
        if chosen:
            text = _layer(alt, chosen).mark_text(
                align=align,
                baseline="middle",
                fontSize=layout.size,
                lineHeight=layout.size * 1.2,
                lineBreak="\n",
                tooltip=None,
            )
            color, angle = alt.Color("tint:N", scale=None), alt.Angle("angle:Q", scale=None)
            layers.append(text.encode(x="intensity:Q", y="rate:Q", text="text:N", color=color, angle=angle))
    return layers


def _key_layers(alt: Any, layout: _Layout) -> list[Any]:
    """The legend, above the plot."""
    if not layout.keys:
        return []
    texts, symbols = [], []
    for key, x, row in layout.keys:
        left = x - layout.shift
        y = -AXIS_ROW - 6 - KEY_ROW * (layout.key_rows - row - 0.5)
        texts.append({**layout.plane.data(left, y), "text": key.text})
        if key.phase:
            colour, _, symbol = PHASES[key.phase]
            at = layout.plane.data(left - 5 - _half_width(key.phase, key.area), y)
            stroke, fill = (QUIET, "white") if key.hollow else (colour, colour)
            size = _vega_size(key.phase, key.area)
            symbols.append({**at, "symbol": symbol, "fill": fill, "stroke": stroke, "area": size})
    spots = _layer(alt, symbols).mark_point(filled=True, strokeWidth=1, opacity=1, tooltip=None)
    spots = spots.encode(
        x="intensity:Q",
        y="rate:Q",
        shape=alt.Shape("symbol:N", scale=None),
        size=alt.Size("area:Q", scale=None),
        fill=alt.Fill("fill:N", scale=None),
        stroke=alt.Stroke("stroke:N", scale=None),
    )
    return [spots, _words(alt, texts, layout.size, INK)]


def _subtitle_layers(alt: Any, layout: _Layout) -> list[Any]:
    """The lines under the title; text, because Vega puts the subtitle of a free title on top of it."""
    if not layout.subtitle:
        return []
    first = -layout.top + layout.margin + TITLE_ROW * len(layout.title) + SUBTITLE_ROW * 0.65
    rows = [
        {**layout.plane.data(-layout.shift, first + SUBTITLE_ROW * i), "text": line}
        for i, line in enumerate(layout.subtitle)
    ]
    return [_words(alt, rows, layout.size + 1, QUIET)]


def _words(alt: Any, rows: Sequence[dict[str, Any]], size: float, color: str) -> Any:
    """Texts that begin where they are put."""
    text = _layer(alt, rows).mark_text(align="left", baseline="middle", fontSize=size, color=color, tooltip=None)
    return text.encode(x="intensity:Q", y="rate:Q", text="text:N")
