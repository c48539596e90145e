"""The roofline chart: what it shows, what the specification says, and that files are whole and offline."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from gambrel.plots import Point, Roof, RooflinePlot
from gambrel.show import chart
from gambrel.show.chart import roofline_chart
from gambrel.show.labels import Plane, place_labels, roof_notes
from gambrel.types import GambrelError

H100 = Roof("H100 SXM", "bf16", 989e12, 3.35e12)
H100_FP8 = Roof("H100 SXM", "fp8", 1979e12, 3.35e12)
A100 = Roof("A100 SXM 80GB", "bf16", 312e12, 2.0e12)
H200 = Roof("H200", "bf16", 989e12, 4.8e12)


def point(label, phase, intensity, share=0.1, path="", efficiency=1.0, hollow=False):
    rate = efficiency * min(H100.peak_flops_per_s, intensity * H100.mem_bytes_per_s)
    return Point(label, phase, intensity, rate, share, path, hollow)


PAIR = (point("prefill 8192", "prefill", 2900, 1.0), point("decode", "decode", 14.8, 1.0))


def plot(*points, roofs=(H100,), title="Decode is memory-bound", subtitle="Llama-3-8B, bf16"):
    return RooflinePlot(title, subtitle, tuple(roofs), tuple(points))


def crowd(seed, n=30):
    rnd = random.Random(seed)
    return [
        point(
            f"operator_{i}",
            rnd.choice(("prefill", "decode")),
            10 ** rnd.uniform(-0.5, 3.6),
            rnd.random() ** 3,
            efficiency=rnd.uniform(0.3, 1),
        )
        for i in range(n)
    ]


def rows(spec):
    """Every row of data in a specification."""
    found = [row for values in spec.get("datasets", {}).values() for row in values]
    for layer in spec["layer"]:
        found += layer.get("data", {}).get("values", [])
    return found


def texts(spec):
    return [row["text"] for row in rows(spec) if "text" in row]


# Domains, marks and labels


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("width", "height"), [(760, 460), chart.PHONE, chart.SMALLEST])
def test_a_crowd_of_thirty_points_is_placed_well(seed, width, height, assert_placed_well):
    shape = plot(*crowd(seed), roofs=(H100, A100))
    points, _ = chart.usable(shape.points)
    layout = chart._layout(shape, points, [], width, height)
    marks = chart.anchors(chart.combined(points, layout.plane), layout.plane, layout.largest, layout.size)
    notes = roof_notes(layout.plane, shape.roofs, marks, layout.size)
    taken = [box for note in notes for box in note.boxes]
    labels = place_labels(marks, layout.plane.box, taken, (), layout.size)
    assert all(box.within(layout.plane.box) for box in taken)
    for a, b in itertools.combinations(notes, 2):
        assert not any(p.overlaps(q) for p in a.boxes for q in b.boxes)
    assert_placed_well(marks, labels, layout.plane.box, taken)


@pytest.mark.parametrize("roofs", [(H100,), (H100, A100), (H100, H200, H100_FP8)])
@pytest.mark.parametrize("points", [(), PAIR, (point("tiny", "decode", 0.003), point("huge", "prefill", 9e5))])
def test_neither_slope_nor_ceiling_nor_point_is_cut(roofs, points):
    x0, x1, y0, y1 = chart.domains(roofs, points)
    for roof in roofs:
        assert x0 < roof.ridge_flop_per_byte < x1
        assert y0 < roof.mem_bytes_per_s * x0
        assert roof.peak_flops_per_s < y1
    assert all(x0 < p.intensity_flop_per_byte < x1 and y0 < p.rate_flops_per_s < y1 for p in points)
    assert len(chart._powers(x0, x1, 9)) >= 2
    assert len(chart._powers(y0, y1, 9)) >= 2


def test_area_is_proportional_to_share_with_a_floor_and_alike_for_both_shapes():
    assert chart.mark_area(0.6, 700) == pytest.approx(2 * chart.mark_area(0.3, 700))
    assert chart.mark_area(0, 700) == chart.mark_area(0.001, 700) > 0
    assert chart._vega_size("prefill", 100) * math.pi / 4 == pytest.approx(chart._vega_size("decode", 100))


def test_points_in_one_place_become_one_mark_with_the_sum_of_their_shares():
    plane = Plane(600, 300, 0.5, 1e4, 1e12, 5e15)
    gemms = [point("gate", "decode", 64, 0.2), point("up", "decode", 64, 0.3), point("attention", "decode", 4, 0.5)]
    assert [(p.label, p.share) for p in chart.combined(gemms, plane)] == [("gate, up", 0.5), ("attention", 0.5)]
    steps = [point("batch 64", "decode", 14.8, 1, "step"), point("batch 65", "decode", 14.8, 1, "step")]
    assert len(chart.combined(steps, plane)) == 2


# The specification


def test_roof_is_labelled_with_bandwidth_peak_ridge_and_regions():
    said = texts(roofline_chart(plot(*PAIR)).spec)
    for text in ("3.35 TB/s", "989 TFLOP/s bf16", "ridge 295 FLOP/byte", "← memory-bound", "compute-bound →"):
        assert text in said
    assert {"prefill", "decode", "area: share of the phase's time", "Llama-3-8B, bf16"} <= set(said)


def test_further_roofs_carry_their_device():
    spec = roofline_chart(plot(*PAIR, roofs=(H100, A100, H100_FP8))).spec
    assert {"H100 SXM · 989 TFLOP/s bf16", "A100 SXM 80GB", "H100 SXM fp8"} <= set(texts(spec))


def test_phases_differ_in_shape_and_colour():
    marks = {row["phase"]: row for row in rows(roofline_chart(plot(*PAIR)).spec) if "phase" in row}
    assert (marks["prefill"]["symbol"], marks["prefill"]["colour"]) == ("circle", "#E69F00")
    assert (marks["decode"]["symbol"], marks["decode"]["colour"]) == ("square", "#0072B2")


def test_hollow_marks_are_strokes_behind_the_filled_and_need_no_second_label():
    both = (point("GEMM", "decode", 60, hollow=True), point("GEMM", "decode", 60, efficiency=0.4))
    spec = roofline_chart(plot(*both)).spec
    layers = [
        layer for layer in spec["layer"] if layer["mark"].get("type") == "point" and "tooltip" in layer["encoding"]
    ]
    assert [layer["mark"]["filled"] for layer in layers] == [False, True]
    assert texts(spec).count("GEMM") == 1
    assert "hollow: predicted" in texts(spec)


def test_points_of_a_path_are_joined_in_order():
    steps = [point(f"batch {b}", "decode", i, 0, "step") for b, i in ((1, 1.2), (8, 6.8), (64, 14.8), (295, 17.2))]
    spec = roofline_chart(plot(*steps)).spec
    assert [row["intensity"] for row in rows(spec) if "order" in row] == [1.2, 6.8, 14.8, 17.2]
    assert not any("area" in text for text in texts(spec))


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_points_without_a_finite_intensity_are_left_out_and_named(value):
    spec = roofline_chart(plot(*PAIR, Point("embedding", "decode", value, 1e12))).spec
    assert any("embedding" in text and "Not on the chart" in text for text in texts(spec))
    assert "NaN" not in json.dumps(spec)


@pytest.mark.parametrize("roofs", [(H100,), (H100, A100), (H100, A100, H200)])
@pytest.mark.parametrize("points", [(), PAIR[:1], PAIR, tuple(crowd(1))])
def test_every_number_of_roofs_and_points_renders(roofs, points):
    made = roofline_chart(plot(*points, roofs=roofs))
    assert ElementTree.fromstring(made.svg()).tag.endswith("svg")
    assert made.png()[:8] == b"\x89PNG\r\n\x1a\n"


def test_long_titles_wrap_and_the_picture_grows():
    made = roofline_chart(plot(*PAIR, title="a long answer " * 20, subtitle="an assumption " * 40))
    assert len(made.spec["title"]["text"]) > 2
    assert made.spec["height"] >= 180
    assert made.spec["width"] + made.spec["padding"]["left"] + made.spec["padding"]["right"] == pytest.approx(760)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (plot(*PAIR, roofs=()), "at least one roof"),
        (plot(roofs=[Roof("X", "bf16", 0, 1e12)]), "peak_flops_per_s"),
        (plot(roofs=[Roof("X", "bf16", 1e12, math.inf)]), "mem_bytes_per_s"),
        (plot(Point("x", "training", 1, 1e12)), "prefill, decode"),
    ],
)
def test_what_cannot_be_drawn_says_why(bad, said):
    with pytest.raises(GambrelError, match=said):
        roofline_chart(bad)


def test_a_chart_too_small_to_read_is_refused():
    with pytest.raises(GambrelError, match="300 x 280"):
        roofline_chart(plot(*PAIR), width=200)


# Files


@pytest.fixture(scope="module")
def made():
    return roofline_chart(plot(*PAIR, title="Who needs </script> & <b>?"))


@pytest.mark.parametrize(
    ("suffix", "start"), [(".svg", b"<svg"), (".png", b"\x89PNG"), (".html", b"<!DOC"), (".json", b"{")]
)
def test_save_goes_by_the_suffix_and_leaves_nothing_else(made, tmp_path, suffix, start):
    path = made.save(tmp_path / f"roof{suffix}")
    assert path.read_bytes().startswith(start)
    assert [file.name for file in tmp_path.iterdir()] == [f"roof{suffix}"]


def test_json_is_the_specification(made, tmp_path):
    assert json.loads(made.save(tmp_path / "roof.json").read_text(encoding="utf-8")) == made.spec


def test_unknown_suffix_and_missing_folder_raise(made, tmp_path):
    with pytest.raises(GambrelError, match=r"\.svg \.png \.html \.json"):
        made.save(tmp_path / "roof.pdf")
    with pytest.raises(GambrelError, match="no folder"):
        made.save(tmp_path / "missing" / "roof.svg")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_keeps_the_old_file(made, tmp_path, monkeypatch):
    target = tmp_path / "roof.json"
    target.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chart.os, "replace", fail)
    with pytest.raises(GambrelError, match="No space left"):
        made.save(target)
    assert target.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_html_is_offline_and_made_for_phones_too(made):
    page = made.html()
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "default-src 'none'" in page
    frame = page.replace(re.search(r"<script>.*?</script>", page, re.DOTALL)[0], "", 1)
    assert len(frame) < 60_000
    assert "http:" not in frame
    assert "https:" not in frame
    assert page.count("</script>") == 2
    layouts = json.loads(re.search(r"const layouts = (.*);\n", page)[1])
    assert [round(s["width"] + s["padding"]["left"] + s["padding"]["right"]) for s in layouts] == [380, 760]
    assert all("$schema" not in layout and "http" not in json.dumps(layout) for layout in layouts)


def test_marks_have_tooltips(made):
    fields = {
        tip["title"] for layer in made.spec["layer"] for tip in layer["encoding"].get("tooltip", []) if "title" in tip
    }
    assert fields == {"operator", "phase", "intensity", "rate", "share"}


def test_notebooks_get_vega_lite_and_svg(made):
    bundle = made._repr_mimebundle_()
    assert re.fullmatch(r"application/vnd\.vegalite\.v\d+\.json", next(iter(bundle)))
    assert bundle["image/svg+xml"].startswith("<svg")


def test_importing_the_chart_imports_no_altair():
    code = "import gambrel.show.chart, sys; sys.exit(any(m in sys.modules for m in ('altair', 'vl_convert', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
