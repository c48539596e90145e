"""The chart of training memory: every choice and kind is in it, nothing is cut, and it saves like the roofline."""

from __future__ import annotations

import pytest

import gambrel
from gambrel.cost.footprint import Plan
from gambrel.cost.parallel import Layout
from gambrel.cost.trainplan import memory_plot
from gambrel.show.memory_chart import COLORS, memory_chart


@pytest.fixture(scope="module")
def plot():
    plan = Plan(gambrel.load_model("llama-3-8b"), layout=Layout(dp=8), zero=1)
    return memory_plot(plan, gambrel.load_device("h100-sxm"), 0.9)


@pytest.mark.parametrize("layout", ["spec", "phone"])
def test_bars_are_stacked_by_kind(plot, layout):
    spec = getattr(memory_chart(plot), layout)
    bars, totals, rule = spec["layer"]
    rows = bars["data"]["values"]
    assert {row["kind"] for row in rows} == set(COLORS)
    assert [row["choice"] for row in totals["data"]["values"]] == [bar.label for bar in plot.bars]
    assert plot.bars[0].label == "ZeRO-1, none"
    assert len(plot.bars) == len({bar.label for bar in plot.bars}) == 8
    for bar in plot.bars:
        assert sum(row["bytes"] for row in rows if row["choice"] == bar.label) == pytest.approx(bar.total_bytes)
    low, high = bars["encoding"]["x"]["scale"]["domain"]
    assert low == 0
    assert high * 1e9 > 1.1 * max(plot.room_bytes, *(bar.total_bytes for bar in plot.bars))
    assert rule["data"]["values"] == [{"bytes": plot.room_bytes}]


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html", ".json"])
def test_it_saves(plot, suffix, tmp_path):
    target = memory_chart(plot).save(tmp_path / f"memory{suffix}")
    assert target.stat().st_size > 1000
    if suffix == ".svg":
        assert "llama-3-8b" in target.read_text()
