"""The words and tables of `run`."""

from __future__ import annotations

from gambrel import units
from gambrel.show.counters import counters_lines, counters_tables
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

NAMES = {"torch": "eager", "compile": "torch.compile", "graph": "CUDA graph", "": ""}


def execution_tables(document: Mapping[str, Any]) -> list[Table]:
    """Every timed engine, then the verdicts."""
    runs, bounded = document["runs"], document["hardware"] is not None
    floor = "at ceilings" if document["ceilings"] else "bound"
    columns = [
        Column("phase", "phase"),
        Column("engine_name", "engine"),
        Column("median_s", "measured", "time"),
        Column("low_s", "10 %", "time"),
        Column("high_s", "90 %", "time"),
        *([Column("bound_s", floor, "time"), Column("fraction", "fraction", "share")] if bounded else []),
        *([Column("of_reads", "of reads", "share")] if any(row["of_reads"] for row in runs) else []),
        Column("tokens_per_s", "tokens/s", "ratio"),
        Column("repeats", "times", "count"),
        Column("busy", "busy", "yes"),
        Column("id", "record"),
    ]
    rows = [{**row, "engine_name": NAMES[row["engine"]]} for row in runs]
    marks = frozenset(index for index, row in enumerate(rows) if row["busy"])
    most = units.duration(max(row["harness_s"] for row in runs))
    harness = f"Putting the cache back is part of every time: {most} at the most."
    caption = " ".join([*([f"Fraction: {floor} over measured."] if bounded else []), *_reads(runs), harness])
    judged = (
        Column("phase", "phase"),
        Column("verdict", "verdict"),
        Column("gain", "gain", "ratio"),
        Column("evidence", "evidence"),
    )
    return [
        Table("runs", f"Measured: {_steps(runs)}", columns, rows, caption, marks),
        Table("verdicts", "What limits it", judged, document["verdicts"]),
        *_counters(runs),
    ]


def _reads(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the share of the reads is, and how fast those were."""
    rates = sorted(row["read_bytes_per_s"] for row in runs if row["of_reads"])
    if not rates:
        return []
    least, most = units.si(rates[0], "B/s"), units.si(rates[-1], "B/s")
    told = most if least == most else f"{least} to {most}"
    return [f"Of reads: weights and cache moved per second over what reads in turn with the steps reached ({told})."]


def _counters(runs: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The counters of each run that has them."""
    return [table for row in runs for table in counters_tables(row.get("counters", {}), _where(row))]


def _where(row: Mapping[str, Any]) -> str:
    return f"{row['phase']}, {NAMES[row['engine']]}"


def _without(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What counters could not be read and why, and what held the clocks; once for all runs that share it."""
    told: dict[str, list[str]] = {}
    for row in runs:
        for line in counters_lines(row.get("counters", {})):
            told.setdefault(line, []).append(_where(row))
    return [line if len(where) == len(runs) else f"{'; '.join(where)}: {line}" for line, where in told.items()]


def _steps(runs: Sequence[Mapping[str, Any]]) -> str:
    """What was run: batch 1, prefill of 512 tokens, decode at 512."""
    phases = {row["phase"]: row for row in runs}
    told = [f"batch {units.count(runs[0]['batch'])}"]
    if "prefill" in phases:
        told.append(f"prefill of {units.count(phases['prefill']['new_tokens'])} tokens")
    if "decode" in phases:
        told.append(f"decode at {units.count(phases['decode']['context_tokens'])} keys")
    return ", ".join(told)


def print_execution(document: Mapping[str, Any]) -> None:
    """The verdicts, the table, where the records are, what to know about them."""
    from gambrel.show.text import Page

    page = Page()
    figures = "ceilings" if document["ceilings"] else "bounds"
    page.paragraph(
        f"{document['model']} with random weights in {document['dtype']} on {document['device']}, "
        f"{document['threads']} thread{'' if document['threads'] == 1 else 's'}"
        + (f"; beside the {figures} of {document['hardware']}" if document["hardware"] else ""),
        "bold",
    )
    for judged in document["verdicts"]:
        page.paragraph(f"{judged['phase']} is {judged['verdict']}: {judged['evidence']}.", indent=2)
    page.tables([*execution_tables(document)[:1], *_counters(document["runs"])])
    for line in _without(document["runs"]):
        page.paragraph(line, indent=2)
    apart = [row for row in document["runs"] if row["difference"] is not None]
    for row in apart:
        tokens = "the same tokens" if row["same_tokens"] else "other tokens, where logits are that near"
        page.line(
            f"{row['phase']}, {NAMES[row['engine']]}: {tokens} as the first engine; logits differ by at most "
            f"{units.significant(row['difference'])} of the largest"
        )
    page.line()
    page.paragraph(
        f"records: {', '.join(row['id'] for row in document['runs'])} in {document['file']}; "
        "gambrel compare MODEL --run ID --device DEVICE explains one",
        indent=2,
    )
    for note in document["notes"]:
        page.paragraph(f"note: {note}", "warn", indent=6)
