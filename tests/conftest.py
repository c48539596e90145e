"""Where the shared data is, and loading helpers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("GAMBREL_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data; tests that need it skip, saying so, where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared data at {SHARED} (set GAMBREL_SHARED)")
    return SHARED
