"""Placing labels: none covers another, a mark or an edge, and each is close to its mark where there is room."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gambrel.show.labels import Anchor, Box, Plane, Stroke, merge_labels, place_labels, shortened, text_width


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 600), st.floats(0, 300), st.floats(2, 18), st.text("abcdefg_", min_size=1, max_size=18)),
        max_size=18,
    )
)
def test_no_label_overlaps_another_a_mark_or_the_edge(assert_placed_well, marks):
    frame = Box(0, 0, 600, 300)
    taken = [Box(250, 100, 350, 120)]
    anchors = [Anchor(x, y, radius, (text,), radius) for x, y, radius, text in marks]
    labels = place_labels(anchors, frame, taken, [Stroke(0, 300, 300, 0)])
    assert len(labels) == len(anchors)
    assert_placed_well(anchors, labels, frame, taken)


def test_a_lone_mark_has_its_label_close_and_without_a_leader():
    (label,) = place_labels([Anchor(100, 100, 5, ("attention",))], Box(0, 0, 300, 200))
    assert label is not None
    assert label.leader is None
    assert label.align == "left"
    assert label.box.touches(100, 100, 5 + 4)


def test_a_mark_in_a_corner_turns_its_label_inwards():
    (label,) = place_labels([Anchor(295, 5, 5, ("attention",))], Box(0, 0, 300, 200))
    assert label is not None
    assert label.box.x1 < 295


def test_a_displaced_label_has_a_leader_from_its_mark():
    anchors = [Anchor(150 + 8 * i, 100, 4, (f"operator {i}",), i) for i in range(6)]
    labels = place_labels(anchors, Box(0, 0, 400, 200))
    assert all(labels)
    far = [(a, label.leader) for a, label in zip(anchors, labels, strict=True) if label and label.leader]
    assert far
    assert all(math.hypot(leader.x0 - a.x, leader.y0 - a.y) == pytest.approx(a.radius) for a, leader in far)


def test_labels_keep_off_lines_where_they_can():
    line = Stroke(0, 100, 300, 100)
    (label,) = place_labels([Anchor(150, 100, 5, ("attention",))], Box(0, 0, 300, 200), (), [line])
    assert label is not None
    assert not line.crosses(label.box)


def test_without_room_there_is_no_label_and_the_same_input_gives_the_same_places():
    anchors = [Anchor(20, 10, 5, ("a label far too long for the frame",))]
    assert place_labels(anchors, Box(0, 0, 40, 20)) == (None,)
    many = [Anchor(40 * i, 90, 4, (f"name {i}",)) for i in range(1, 9)]
    assert place_labels(many, Box(0, 0, 400, 200)) == place_labels(many, Box(0, 0, 400, 200))


@pytest.mark.parametrize(
    ("labels", "merged"),
    [
        (["qkv_proj"], "qkv_proj"),
        (["gate", "up", "down", "up"], "gate, up, down"),
        (["batch 64", "batch 1", "batch 8"], "batch 1…64"),
        (["batch 8", "prefill 8"], "batch 8, prefill 8"),
    ],
)
def test_labels_of_coinciding_marks_merge(labels, merged):
    assert merge_labels(labels) == merged


def test_a_long_label_is_shortened_but_says_how_many():
    lines = shortened(", ".join(f"operator_{i}" for i in range(9)), 11, 150)
    assert len(lines) == 2
    assert re.search(r"\+\d more$", lines[-1])
    assert all(text_width(line, 11) <= 150 for line in (*lines, *shortened("x" * 90, 11, 150)))


def test_pixels_and_data_are_inverse():
    plane = Plane(600, 300, 0.5, 1e4, 1e12, 5e15)
    back = plane.data(plane.px(295), plane.py(989e12))
    assert back["intensity"] == pytest.approx(295)
    assert back["rate"] == pytest.approx(989e12)
