"""Text for a terminal, with rich tables; plain and wide enough in a pipe."""

from __future__ import annotations

import sys

from gambrel.show import report as words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table as RichTable

    from gambrel.cost.report import Report
    from gambrel.show.tables import Table

#: Columns of output where there is no terminal to ask.
PIPE_WIDTH = 116


def console(file: object = None) -> Console:
    """A console that keeps whole tables in a pipe and adapts to a terminal."""
    from rich.console import Console

    out = file or sys.stdout
    wide = None if getattr(out, "isatty", lambda: False)() else PIPE_WIDTH
    return Console(file=out, width=wide, highlight=False, emoji=False, markup=False)  # type: ignore[arg-type]


def rich_table(table: Table) -> RichTable:
    """A table of ours for rich; marked rows stand out."""
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for column in table.columns:
        shown.add_column(column.heading, justify="left" if column.kind == "text" else "right")
    for index, row in enumerate(table.rows):
        style = "yellow" if index in table.marks else ""
        shown.add_row(*(Text(column.show(row)) for column in table.columns), style=style)
    return shown


def print_tables(out: Console, tables: Sequence[Table]) -> None:
    """Title, table, caption, for each."""
    for table in tables:
        out.print()
        out.print(table.title, style="bold")
        out.print(rich_table(table))
        if table.caption:
            out.print(table.caption, style="dim")


def print_pairs(out: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Name and value in two columns."""
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in pairs:
        grid.add_row(name, Text(value))
    out.print(grid)


def print_report(report: Report, out: Console | None = None) -> None:
    """The report: the answer, the inputs, the tables, the crossover, the notes."""
    out = out or console()
    out.print(words.answer(report), style="bold")
    out.print()
    print_pairs(out, words.model_line(report))
    print_tables(out, words.report_tables(report))
    out.print()
    out.print(words.crossover_sentence(report))
    for note in words.notes(report):
        out.print(f"note: {note}", style="yellow")


def report_text(report: Report) -> str:
    """The report as a string."""
    import io

    buffer = io.StringIO()
    print_report(report, console(buffer))
    return buffer.getvalue().rstrip("\n")
