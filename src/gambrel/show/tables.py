"""Tables as data, and their plain renderings: markdown and CSV. Text tables are in text.py."""

from __future__ import annotations

from gambrel import units
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

#: How a cell is shown, by kind; the raw value goes to CSV and JSON untouched.
FORMATS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "count": units.count,
    "signed": lambda v: f"{v:+,.0f}" if v else "0",
    "parameters": units.parameters,
    "flops": lambda v: units.si(v, "FLOP"),
    "big": lambda v: f"{v:.3g}",
    "rate": lambda v: units.si(v, "FLOP/s"),
    "bandwidth": lambda v: units.si(v, "B/s"),
    "bytes": units.gigabytes,
    "size": lambda v: units.si(v, "B"),
    "binary": units.binary,
    "time": units.duration,
    "ratio": units.significant,
    "share": lambda v: f"{v:.1%}",
    "yes": lambda v: "yes" if v else "no",
}


@frozen
class Column:
    """A column: key in the rows, heading, and the kind of its values (a key of FORMATS)."""

    key: str
    heading: str
    kind: str = "text"

    def show(self, row: Mapping[str, Any]) -> str:
        """The cell for people; an absent value is a dash."""
        value = row.get(self.key)
        return "-" if value is None else FORMATS[self.kind](value)


@frozen
class Table:
    """Rows with columns. name: identifies the rows in CSV. marks: rows to stand out, by index (a warning)."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    caption: str = ""
    marks: frozenset[int] = frozenset()


def to_markdown(tables: Sequence[Table]) -> str:
    """GitHub-flavoured tables, one after the other."""
    parts = []
    for table in tables:
        align = ["---" if c.kind == "text" else "---:" for c in table.columns]
        lines = [f"**{table.title}**", "", _row(c.heading for c in table.columns), _row(align)]
        lines += [_row(c.show(row) for c in table.columns) for row in table.rows]
        if table.caption:
            lines += ["", table.caption]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _row(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def to_csv(tables: Sequence[Table]) -> str:
    """All rows of all tables in one tidy CSV, raw SI values; the first column names the table."""
    import csv
    import io

    keys = list(dict.fromkeys(key for table in tables for row in table.rows for key in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, ["table", *keys], lineterminator="\n")
    writer.writeheader()
    for table in tables:
        writer.writerows({"table": table.name, **row} for row in table.rows)
    return out.getvalue().rstrip("\n")
