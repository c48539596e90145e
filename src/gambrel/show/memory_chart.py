"""The chart of training memory: stacked bars by kind, one for each choice, and what a device has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gambrel.show.chart import FONT, Chart, _library

if TYPE_CHECKING:
    from gambrel.plots import MemoryPlot

#: Colours by kind, bottom to top: Okabe and Ito's, told apart in grey by their order.
COLORS = {
    "parameters": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#009E73",
    "activations": "#E69F00",
    "loss": "#D55E00",
    "buffers": "#8c959f",
}
BAR = 26
INK, QUIET = "#1f2328", "#59636e"
GB = "datum.bytes / 1e9"


def memory_chart(plot: MemoryPlot, width: int = 620) -> Chart:
    """Horizontal bars with their totals at the right edge, which no bar reaches; a rule where the device is full."""
    return Chart(_specification(plot, width), _specification(plot, 230), plot.title)


def _specification(plot: MemoryPlot, width: int) -> dict[str, Any]:
    order = [bar.label for bar in plot.bars]
    kinds = list(COLORS)
    rows = [
        {"choice": bar.label, "kind": kind, "order": kinds.index(kind), "bytes": value}
        for bar in plot.bars
        for kind, value in bar.kinds.items()
    ]
    totals = [{"choice": bar.label, "bytes": bar.total_bytes} for bar in plot.bars]
    y = {"field": "choice", "type": "nominal", "sort": order, "title": None}
    most = 1.14 * max(plot.room_bytes, *(bar.total_bytes for bar in plot.bars)) / 1e9
    x = {"field": "gb", "type": "quantitative", "title": "GB a device", "scale": {"domain": [0, most], "nice": False}}
    room = f"{plot.room_bytes / 1e9:.0f} GB usable"
    scale = [{"calculate": GB, "as": "gb"}]
    rule = {"data": {"values": [{"bytes": plot.room_bytes}]}, "transform": scale}
    spec = {
        "title": {
            "text": _lines(plot.title, width),
            "subtitle": [*_lines(plot.subtitle, width), room],
            "anchor": "start",
        },
        "width": width,
        "height": {"step": BAR},
        "padding": {"left": 12, "right": 16, "top": 12, "bottom": 12},
        "layer": [
            {
                "data": {"values": rows},
                "transform": scale,
                "mark": {"type": "bar", "stroke": "white", "strokeWidth": 0.7},
                "encoding": {"y": y, "x": {**x, "stack": "zero"}, "color": _color(width), "order": {"field": "order"}},
            },
            {
                "data": {"values": totals},
                "transform": scale,
                "mark": {"type": "text", "align": "right", "color": INK},
                "encoding": {"y": y, "x": {"value": width}, "text": {"field": "gb", "format": ",.0f"}},
            },
            {**rule, "mark": {"type": "rule", "strokeDash": [5, 4], "color": INK}, "encoding": {"x": x}},
        ],
        "config": _config(),
    }
    return dict(_library("altair").LayerChart.from_dict(spec).to_dict())


def _color(width: int) -> dict[str, Any]:
    legend = {"orient": "bottom", "columns": 6 if width > 400 else 3, "title": None}
    scale = {"domain": list(COLORS), "range": list(COLORS.values())}
    return {"field": "kind", "type": "nominal", "scale": scale, "legend": legend}


def _config() -> dict[str, Any]:
    text = {"labelColor": QUIET, "titleColor": QUIET, "labelFontSize": 12, "titleFontSize": 12}
    return {
        "font": FONT,
        "view": {"stroke": None},
        "axis": {**text, "grid": False, "labelLimit": 160},
        "legend": text,
        "title": {"color": INK, "subtitleColor": QUIET, "fontSize": 15, "subtitleFontSize": 12},
    }


def _lines(text: str, width: int) -> list[str]:
    """Words filled into lines of about 7 pixels a letter; the labels stand beside the plot's own width."""
    most = (width + 90) // 7
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
