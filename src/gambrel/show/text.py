"""Text for a terminal or a pipe: bold and colour only on a terminal, columns aligned.

Aligning is done here, in a few lines: importing rich or tabulate takes longer than the whole report, which has a
start-up budget.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

    from gambrel.show.tables import Table

#: Widest text where there is no terminal to ask, and in any case.
WIDTH = 116
STYLES = {"bold": "\033[1m", "dim": "\033[2m", "warn": "\033[33m"}
RESET = "\033[0m"


class Page:
    """Where text goes: wraps paragraphs, aligns tables, styles only where a terminal shows it."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.styled = self.out.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self.width = max(min(_columns(self.out), WIDTH), 20)

    def line(self, text: str = "", style: str = "") -> None:
        """One line as it is."""
        self.out.write(f"{STYLES[style]}{text}{RESET}\n" if self.styled and style and text else f"{text}\n")

    def paragraph(self, text: str, style: str = "", indent: int = 0) -> None:
        """Text wrapped to the width; further lines indented."""
        for line in wrap(text, self.width - indent, indent):
            self.line(line, style)

    def pairs(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Name and value in two columns."""
        left = max(len(name) for name, _ in pairs) + 2
        for name, value in pairs:
            first, *more = wrap(value, self.width - left, 0)
            shown = f"{STYLES['dim']}{name:<{left}}{RESET}" if self.styled else f"{name:<{left}}"
            self.line(shown + first)
            for line in more:
                self.line(" " * left + line)

    def tables(self, tables: Sequence[Table]) -> None:
        """Title, table, caption, for each, with an empty line before."""
        for table in tables:
            self.line()
            self.line(table.title, "bold")
            for index, line in enumerate(align(table)):
                self.line(line, "dim" if index == 0 else "warn" if index - 1 in table.marks else "")
            if table.caption:
                self.paragraph(table.caption, "dim")


def _columns(out: TextIO) -> int:
    if not out.isatty():
        return WIDTH
    try:
        return os.get_terminal_size(out.fileno()).columns
    except OSError:
        return WIDTH


def align(table: Table) -> list[str]:
    """Heading and rows with aligned columns: text to the left, quantities to the right."""
    cells = [[column.heading for column in table.columns]]
    cells += [[column.show(row) for column in table.columns] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [column.kind == "text" for column in table.columns]
    return [
        "  ".join(
            c.ljust(w) if to_left else c.rjust(w) for c, w, to_left in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in cells
    ]


def wrap(text: str, width: int, indent: int) -> list[str]:
    """Words filled into lines of at most `width`; a longer word stands alone."""
    lines: list[str] = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(" " * indent + word)
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines
