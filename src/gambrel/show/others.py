"""The words and tables of `compare --file`: what other tools measured, and what engines said of their memory."""

from __future__ import annotations

from gambrel import units
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gambrel.cost.others import Line, Row, Setup
    from gambrel.measure.logs import Receipt
    from gambrel.measure.results import ServingResult

ROW_COLUMNS = (
    Column("run", "run", "count"),
    Column("metric", "figure"),
    Column("measured_s", "measured", "time"),
    Column("bound_s", "bound", "time"),
    Column("fraction", "of possible", "share"),
    Column("batch", "batch", "count"),
    Column("context_tokens", "context", "count"),
    Column("binding", "limit"),
    Column("why", "note"),
)
RUN_COLUMNS = (
    Column("run", "run", "count"),
    Column("tool", "tool"),
    Column("model_id", "model told"),
    Column("concurrency", "concurrency", "ratio"),
    Column("input_tokens", "tokens in", "ratio"),
    Column("output_tokens", "tokens out", "ratio"),
    Column("output_tokens_per_s", "tokens/s", "ratio"),
    Column("requests", "requests", "count"),
    Column("errors", "errors", "count"),
)
LINE_COLUMNS = (
    Column("name", "figure"),
    Column("predicted", "predicted", "ratio"),
    Column("told", "told", "ratio"),
    Column("unit", "unit"),
    Column("agrees", "agrees", "yes"),
    Column("why", "note"),
)
#: More runs than these are in the tables and the JSON only.
FEW = 3


def row_dict(row: Row) -> dict[str, Any]:
    """A figure with its fraction."""
    return {**vars(row), "fraction": row.fraction}


def result_tables(rows: Sequence[Row], results: Sequence[ServingResult]) -> list[Table]:
    """Figures against bounds, then what the file says of its runs."""
    runs = [{"run": index, **_flat(result)} for index, result in enumerate(results, 1)]
    marks = frozenset(i for i, row in enumerate(rows) if row.bound_s is None)
    return [
        Table("rows", "Measured against the bound", ROW_COLUMNS, [row_dict(row) for row in rows], marks=marks),
        Table("runs", "The runs, as the file tells", RUN_COLUMNS, runs),
    ]


def _flat(result: ServingResult) -> dict[str, Any]:
    plain = ("notes", "not_comparable", "metadata")
    return {key: value for key, value in vars(result).items() if key not in plain}


def print_results(setup: Setup, rows: Sequence[Row], results: Sequence[ServingResult]) -> None:
    """A sentence for the best comparable figure, the tables, the tool's definitions."""
    from gambrel.show.text import Page

    page = Page()
    page.paragraph(_answer(setup, rows, results), "bold")
    page.tables(result_tables(rows, results))
    page.line()
    for note in dict.fromkeys(f"{result.tool}: {note}" for result in results for note in result.notes):
        page.paragraph(note, "dim", indent=2)


def _answer(setup: Setup, rows: Sequence[Row], results: Sequence[ServingResult]) -> str:
    where = f"{setup.model.name} on {setup.device.name}"
    runs = f"{len(results)} run{'s' if len(results) > 1 else ''} of {results[0].tool}"
    best = max((row for row in rows if row.fraction is not None), key=lambda row: row.fraction or 0, default=None)
    if best is None or best.fraction is None or best.measured_s is None or best.bound_s is None:
        return f"{where}, {runs}: nothing is comparable; the notes say why."
    return (
        f"{where}, {runs}: {best.metric} of {units.duration(best.measured_s)} is {best.fraction:.0%} of the possible "
        f"speed, {units.duration(best.bound_s)} (run {best.run})."
    )


def receipt_tables(lines: Sequence[Line]) -> list[Table]:
    """The engine's figures beside ours."""
    marks = frozenset(i for i, line in enumerate(lines) if line.agrees is False)
    return [Table("receipt", "Predicted and told", LINE_COLUMNS, [dict(vars(line)) for line in lines], marks=marks)]


def print_receipt(setup: Setup, lines: Sequence[Line], receipt: Receipt) -> None:
    """What the engine said, the table, and the lines that it stands on."""
    from gambrel.show.text import Page

    page = Page()
    tokens = f"{units.count(receipt.kv_tokens)} tokens" if receipt.kv_tokens is not None else "no count of tokens"
    memory = f" in {units.binary(receipt.kv_bytes)}" if receipt.kv_bytes else ""
    page.paragraph(
        f"{receipt.engine} told {tokens} of KV{memory}; {setup.model.name} on {setup.device.name} should have "
        f"{units.count(setup.room.max_tokens())} at {setup.room.utilization:g} of the memory.",
        "bold",
    )
    page.tables(receipt_tables(lines))
    page.line()
    for number, text in receipt.lines[:12]:
        page.line(f"line {number}: {text}"[: page.width], "dim")
    for note in receipt.notes:
        page.paragraph(f"note: {note}", "warn", indent=6)
