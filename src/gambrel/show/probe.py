"""The words and tables of `probe`."""

from __future__ import annotations

from gambrel import units
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

LEVELS = (
    Column("concurrency", "clients", "count"),
    Column("ok", "ok", "count"),
    Column("failed", "failed", "count"),
    Column("ttft_p50_s", "TTFT p50", "time"),
    Column("ttft_p99_s", "p99", "time"),
    Column("tpot_p50_s", "TPOT p50", "time"),
    Column("tpot_p99_s", "p99", "time"),
    Column("itl_p99_s", "ITL p99", "time"),
    Column("output_tokens_per_s", "tokens/s", "ratio"),
    Column("flagged", "flags", "count"),
)
BOUNDS = (
    Column("concurrency", "clients", "count"),
    Column("context_tokens", "context", "count"),
    Column("tpot_p50_s", "TPOT", "time"),
    Column("decode_bound_s", "decode bound", "time"),
    Column("decode_fraction", "reached", "share"),
    Column("decode_binding", "limit"),
    Column("ttft_p50_s", "TTFT", "time"),
    Column("prefill_bound_s", "prefill bound", "time"),
    Column("prefill_fraction", "reached", "share"),
    Column("prefill_binding", "limit"),
)
CHECKS = (
    Column("concurrency", "clients", "count"),
    Column("quantity", "quantity"),
    Column("ours_shown", "here"),
    Column("server_shown", "server"),
    Column("difference_shown", "difference"),
    Column("source", "server's name for it"),
)


def probe_tables(document: Mapping[str, Any]) -> list[Table]:
    """Levels, then bounds and the server's own figures where there are any. Takes the JSON document."""
    levels = document["levels"]
    rows = [{**_plain(level), "flagged": len(level["flags"])} for level in levels]
    marks = frozenset(i for i, level in enumerate(levels) if level["flags"])
    tables = [Table("levels", "Measured", LEVELS, rows, "", marks)]
    bounds = [{"concurrency": x["concurrency"], **_times(x), **_plain(x["bound"])} for x in levels if x["bound"]]
    if bounds:
        caption = "Decode: all clients as one batch, context = prompt + output / 2. Prefill: one prompt, uncached."
        tables.append(Table("bounds", "Against the bound of the model on the device", BOUNDS, bounds, caption))
    checks = [{"concurrency": x["concurrency"], **_check(check)} for x in levels for check in x["checks"]]
    if checks:
        caption = "Difference: here less server. The server does not count the network, nor this client."
        tables.append(Table("checks", "Beside the server's own figures", CHECKS, checks, caption))
    return tables


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not isinstance(value, (list, dict))}


def _times(level: Mapping[str, Any]) -> dict[str, Any]:
    return {"tpot_p50_s": level["tpot_p50_s"], "ttft_p50_s": level["ttft_p50_s"]}


def _check(check: Mapping[str, Any]) -> dict[str, Any]:
    show = _signed if check["unit"] == "s" else lambda v: f"{v:,.0f}"
    return {**check, **{f"{key}_shown": show(check[key]) for key in ("ours", "server", "difference")}}


def _signed(seconds: float) -> str:
    return ("-" if seconds < 0 else "") + units.duration(abs(seconds))


def print_probe(document: Mapping[str, Any]) -> None:
    """What was measured, the tables, definitions, and what to know."""
    from gambrel.show.text import Page

    page, d = Page(), document
    engine = " ".join(part for part in (d["engine"], d["version"]) if part)
    page.paragraph(
        f"{d['served_model']} at {d['url']}{f' ({engine})' if engine else ''}: {units.count(d['input_tokens'])} tokens "
        f"in and {units.count(d['output_tokens'])} out, in {units.duration(d['elapsed_s'])}.",
        "bold",
    )
    measured, *others = probe_tables(d)
    page.tables([measured])
    page.line()
    page.pairs([*d["definitions"].items(), ("asked for", ", ".join(("stream", *d["fields"])))])
    page.tables(others)
    lines = list(_notes(d))
    if lines:
        page.line()
    for line in lines:
        page.paragraph(line, "warn", indent=6)


def _notes(document: Mapping[str, Any]) -> Sequence[str]:
    found = [f"note: {note}" for note in document["notes"]]
    for level in document["levels"]:
        at = f"at {level['concurrency']}: "
        found += [at + flag for flag in level["flags"]]
        found += [f"{at}{failure['count']} failed: {failure['message']}" for failure in level["failures"]]
        if level["bound"] and level["bound"]["note"]:
            found.append(at + level["bound"]["note"])
    found += [f"at {clients}: not measured, --max-time was over" for clients in document["skipped"]]
    return found
