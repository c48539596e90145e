"""The words and tables of `calibrate` and `runs`."""

from __future__ import annotations

from gambrel import units
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gambrel.measure.against import Difference
    from gambrel.measure.calibrate import Ceilings
    from gambrel.measure.record import Measurement

# calibrate ------------------------------------------------------------------------------------

CEILING_COLUMNS = (
    Column("name", "ceiling"),
    Column("rate_text", "measured"),
    Column("spread", "spread", "share"),
    Column("datasheet_text", "datasheet"),
    Column("of_datasheet", "reached", "share"),
    Column("kernel", "by"),
    Column("shape", "size"),
    Column("threads", "threads", "count"),
    Column("busy", "busy", "yes"),
)
RESULT_COLUMNS = (
    Column("kind", "kind"),
    Column("kernel", "kernel"),
    Column("dtype", "dtype"),
    Column("shape", "size"),
    Column("threads", "threads", "count"),
    Column("rate_text", "rate"),
    Column("median_s", "median", "time"),
    Column("spread", "spread", "share"),
    Column("repeats", "times", "count"),
    Column("rejected", "rejected", "count"),
    Column("busy", "busy", "yes"),
)
NAMES = {"read": "memory read", "copy": "memory copy", "launch": "launch"}


def calibrate_tables(document: Mapping[str, Any]) -> list[Table]:
    """The ceilings, then every result."""
    ceilings = [{**row, **_texts(row)} for row in document["ceilings"]]
    results = [{**row, **_texts({**row, "name": ""})} for row in document["results"]]
    columns = [c for c in CEILING_COLUMNS if document["datasheet"] or c.key not in ("datasheet_text", "of_datasheet")]
    marks = frozenset(index for index, row in enumerate(ceilings) if row["busy"])
    caption = "Best medians. Spread: interquartile range over the median. A better kernel may exceed them."
    every = "Rejected: repetitions that other work on this machine disturbed."
    return [
        Table("ceilings", "Ceilings of this machine", columns, ceilings, caption, marks),
        Table("results", "Every kernel and size", RESULT_COLUMNS, results, every),
    ]


def _texts(row: Mapping[str, Any]) -> dict[str, Any]:
    kind, sheet = row["kind"], row.get("datasheet")
    unit = "FLOP/s" if kind == "product" else "B/s"
    rate = units.duration(row["median_s"]) if kind == "launch" else units.si(row["rate"], unit)
    name = NAMES.get(row["name"], f"{row['name']} product")
    return {"name": name, "rate_text": rate, "datasheet_text": units.si(sheet, unit) if sheet else "-"}


def print_calibration(ceilings: Ceilings, answer: str, document: Mapping[str, Any]) -> None:
    """The answer, whether the machine was busy, the tables, what is left out."""
    from gambrel.show.text import Page

    page = Page()
    page.paragraph(answer, "bold")
    if ceilings.busy:
        page.paragraph(
            "warning: the machine was busy: other work ran during the repetitions (or before the start), so these "
            "ceilings are too low. Repeat on an idle machine.",
            "warn",
        )
    page.tables(calibrate_tables(document))
    for note in (*ceilings.notes, *ceilings.left_out):
        page.paragraph(f"note: {note}", "warn", indent=6)


# runs -----------------------------------------------------------------------------------------

RUN_COLUMNS = (
    Column("id", "id"),
    Column("name", "run"),
    Column("median_s", "median", "time"),
    Column("spread", "spread", "share"),
    Column("repeats", "times", "count"),
    Column("device", "device"),
    Column("busy", "busy", "yes"),
    Column("started_at", "started"),
)
DIFFERENCE_COLUMNS = (
    Column("id", "id"),
    Column("name", "run"),
    Column("median_s", "median", "time"),
    Column("quartile_1_s", "25 %", "time"),
    Column("quartile_3_s", "75 %", "time"),
    Column("spread", "spread", "share"),
    Column("repeats", "times", "count"),
    Column("busy", "busy", "yes"),
)


def runs_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """One row a run."""
    many = f"{len(rows)} run{'' if len(rows) == 1 else 's'}"
    return [Table("runs", many, RUN_COLUMNS, rows, "`gambrel runs ID` shows one, `gambrel runs ID ID` compares two.")]


def print_runs(rows: Sequence[Mapping[str, Any]]) -> None:
    """All runs, or that there are none."""
    from gambrel.show.text import Page

    page = Page()
    if rows:
        page.tables(runs_tables(rows))
    else:
        page.line("no runs yet")


def run_tables(row: Mapping[str, Any]) -> list[Table]:
    """One run with all its metadata, flat."""
    rows = [{"key": key, "value": value} for key, value in flat({**row["metadata"], **_timed(row)})]
    return [Table("run", f"{row['id']}: {row['name']}", (Column("key", "key"), Column("value", "value")), rows)]


def _timed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("median_s", "spread", "values_s", "warmups_s")}


def flat(data: Mapping[str, Any], at: str = "") -> list[tuple[str, str]]:
    """Nested metadata as dotted keys and text."""
    pairs: list[tuple[str, str]] = []
    for key, value in data.items():
        name = f"{at}.{key}" if at else key
        if isinstance(value, dict):
            pairs += flat(value, name)
        elif isinstance(value, list) and value and isinstance(value[0], float):
            pairs.append((name, ", ".join(units.duration(each) for each in value)))
        else:
            pairs.append((name, "-" if value is None else str(value)))
    return pairs


def print_run(run: Measurement, row: Mapping[str, Any]) -> None:
    """One run, everything known of it."""
    from gambrel.show.text import Page

    page = Page()
    page.paragraph(
        f"{run.name} ({run.id}): {units.duration(run.median_s)}, spread {run.spread:.1%}, "
        f"{len(run.values_s)} repetitions after {len(run.warmups_s)} warm-ups.",
        "bold",
    )
    if run.metadata.get("busy"):
        page.paragraph("warning: the machine was busy while this was measured", "warn")
    page.line()
    page.pairs(flat({**row["metadata"], **_timed(row)}))


def difference_tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The two runs."""
    return [Table("runs", "The two runs", DIFFERENCE_COLUMNS, rows)]


def print_difference(difference: Difference, rows: Sequence[Mapping[str, Any]]) -> None:
    """The verdict, the two runs, what makes it doubtful."""
    from gambrel.show.text import Page

    page = Page()
    one, other = difference.one, difference.other
    page.paragraph(
        f"{other.id} takes {units.significant(difference.ratio)} times as long as {one.id} "
        f"({units.duration(other.median_s)} after {units.duration(one.median_s)}): {difference.verdict}.",
        "bold",
    )
    page.tables(difference_tables(rows))
    if difference.differing:
        page.paragraph(f"warning: not comparable, they differ in {', '.join(difference.differing)}", "warn")
    if difference.busy:
        page.paragraph("warning: a machine was busy, so the difference may be that of its other work", "warn")
