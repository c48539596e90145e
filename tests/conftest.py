"""Where the shared data is, and loading helpers."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

#: The stub servers beside this file can be imported.
sys.path.insert(0, str(Path(__file__).parent))
ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("GAMBREL_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data; tests that need it skip, saying so, where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared data at {SHARED} (set GAMBREL_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def assert_placed_well():
    """Whether labels of a chart lie in the frame and cover no other, no mark and nothing taken."""

    def check(anchors, labels, frame, taken=()):
        boxes = [label.box for label in labels if label]
        assert all(box.within(frame) for box in boxes)
        assert not any(
            a.overlaps(b) for a, b in itertools.combinations([*boxes, *taken], 2) if a in boxes or b in boxes
        )
        assert not any(box.touches(a.x, a.y, max(a.radius, 1)) for box in boxes for a in anchors)
        leaders = [label.leader for label in labels if label and label.leader]
        assert not any(leader.crosses(box) for leader in leaders for box in [*boxes, *taken])

    return check
