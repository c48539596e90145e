"""The readers beside this file can be imported by the tests here, and what was compared is printed at the end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
LINES: list[str] = []


@pytest.fixture(scope="session")
def tell():
    """Lines for the summary that pytest prints at the end."""
    return LINES.append


def pytest_terminal_summary(terminalreporter):
    if LINES:
        terminalreporter.section("bounds against published measurements")
        for line in LINES:
            terminalreporter.write_line(line)
