"""The words and tables of `crossover`, `fit` and `request`."""

from __future__ import annotations

from gambrel import units
from gambrel.show import report as words
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gambrel.cost.capacity import Capacity, Fit
    from gambrel.cost.compare import Comparison
    from gambrel.cost.report import Report
    from gambrel.cost.request import Request, Rig, Serving

# crossover ------------------------------------------------------------------------------------


def crossover_table(reports: Sequence[Report]) -> Table:
    """One row a context."""
    columns = (
        Column("context_tokens", "context", "count"),
        Column("weights_batch", "weights alone", "ratio"),
        Column("step_batch", "whole step", "ratio"),
        Column("max_batch", "fits at most", "count"),
        Column("intensity_limit", "FLOP/byte, B → ∞", "ratio"),
        Column("ridge_flop_per_byte", "ridge", "ratio"),
        Column("cache_bytes", "KV at weights alone", "binary"),
    )
    return Table("crossover", "Batch at which decode turns compute-bound", columns, [_crossing(r) for r in reports])


def _crossing(report: Report) -> dict[str, Any]:
    row = dict(vars(report.crossover))
    return {**row, "intensity_limit": None if row["intensity_limit"] == float("inf") else row["intensity_limit"]}


def print_crossover(reports: Sequence[Report], limit: int | None) -> None:
    """A sentence for each context, the table, and what would change it."""
    from gambrel.show.text import Page

    page = Page()
    for report in reports:
        page.paragraph(words.crossover_sentence(report), "bold")
    page.tables([crossover_table(reports)])
    page.line()
    page.paragraph(_what_changes(reports[0], limit))


def _what_changes(report: Report, limit: int | None) -> str:
    c, room = report.crossover, report.capacity
    if limit is None:
        return "A compute-bound batch exists at every context: the cache grows slower than the work on it."
    if limit < 1:
        return "No context has a compute-bound batch: one sequence's cache costs more time than its work."
    at_limit = room.max_batch(limit)
    advice = " (--kv-dtype fp8)" if report.model.numerics.kv.bits > 8 else ""
    return (
        f"What would change it: a context of at most {units.count(limit)} tokens (where "
        f"{units.count(at_limit)} sequences fit), a smaller cache per token{advice}, or a device with a lower "
        f"ridge than {units.significant(c.ridge_flop_per_byte)} FLOP/byte. Quantised weights with their own faster "
        "products move bytes and peak together, so the weights' batch stays."
    )


# fit ------------------------------------------------------------------------------------------


def fit_tables(fit: Fit) -> list[Table]:
    """Contexts, then batches."""
    rows = fit.rows
    windows = any(r["sequence_bytes"] != r["sequence_bytes_reserved"] for r in rows)
    columns = [
        Column("context_tokens", "context", "count"),
        Column("sequence_bytes", "KV a sequence", "binary"),
        *([Column("sequence_bytes_reserved", "reserved", "binary")] if windows else []),
        Column("max_batch", "largest batch", "count"),
        *([Column("max_batch_reserved", "reserved", "count")] if windows else []),
        *(Column(f"fits_{batch}", f"batch {batch}") for batch in fit.batches),
    ]
    shown = [
        {**r, **{f"fits_{b}": _yes(r["fits"][str(b)], r["beyond_max_context"]) for b in fit.batches}} for r in rows
    ]
    marks = frozenset(i for i, r in enumerate(rows) if not r["max_batch"] or r["beyond_max_context"])
    batches = (Column("batch", "batch", "count"), Column("max_context_tokens", "longest context", "count"))
    longest = fit.max_context
    limit = f"At most this model's maximum context of {units.count(longest)} tokens." if longest else ""
    return [
        Table("contexts", "What fits, by context", columns, shown, _reserved_caption(windows), marks),
        Table("batches", "Longest context, by batch", batches, fit.longest, limit),
    ]


def _yes(fits: bool, beyond: bool) -> str:
    return ("yes" if fits else "no") + (", beyond max" if beyond else "")


def _reserved_caption(windows: bool) -> str:
    return "Reserved: as a paged engine does that gives window layers full-length pages." if windows else ""


def print_fit(fit: Fit) -> None:
    """The terms, then the tables."""
    from gambrel.show.text import Page

    page, room = Page(), fit.room
    tokens = units.count(room.max_tokens())
    page.paragraph(f"{fit.model_name} on {fit.device_name}: {_room_answer(fit)}", "bold")
    page.line()
    each = units.binary(fit.kv_bytes_per_token)
    terms = (
        f"{units.gigabytes(room.budget_bytes)} as stated"
        if room.stated_budget_bytes is not None
        else f"{units.gigabytes(room.usable_bytes)} usable x {room.utilization:g} - "
        f"{units.gigabytes(room.weights_bytes)} weights - {units.gigabytes(room.reserve_bytes)} reserve "
        f"= {units.gigabytes(room.budget_bytes)}"
    )
    page.pairs(
        [
            ("KV budget", terms),
            ("KV a token", each + (" on each device" if room.tp > 1 else "")),
            ("tokens", f"{tokens} with every layer at full length"),
        ]
    )
    page.tables(fit_tables(fit))
    for note in fit.notes:
        page.paragraph(f"note: {note}", "warn", indent=6)


def _room_answer(fit: Fit) -> str:
    if fit.room.budget_bytes <= 0:
        return f"does not fit, {units.gigabytes(-fit.room.budget_bytes)} short before any KV cache."
    return f"fits, with {units.gigabytes(fit.room.budget_bytes)} for the KV cache."


# request --------------------------------------------------------------------------------------


def request_tables(one: Request, gains: Serving) -> list[Table]:
    """The request's parts, and the serving designs."""
    parts = (Column("part", "part"), Column("time_s", "time", "time"), Column("what", "what it is"))
    moe = one.decode_bound_s != one.decode_s
    kind = "expected under uniform routing" if moe else "floor"
    rows = [
        {"part": "prefill", "time_s": one.prefill_s, "what": f"estimate at {one.efficiency:.0%} of peak"},
        {"part": "prefill bound", "time_s": one.prefill_bound_s, "what": "bound, at peak"},
        {"part": "decode", "time_s": one.decode_s, "what": f"{kind}, {one.new_tokens - 1} steps"},
        *([{"part": "decode bound", "time_s": one.decode_bound_s, "what": "bound, fewest experts"}] if moe else []),
        {"part": "one decode step", "time_s": one.step_s, "what": f"{kind}, the first"},
        {"part": "total", "time_s": one.total_s, "what": f"{one.decode_share:.0%} of it decode"},
    ]
    designs = (Column("design", "design"), Column("gain", "from the same numbers"))
    named = [{"design": design, "gain": gain} for design, gain in _designs(gains)]
    return [
        Table("request", "One request" if one.batch == 1 else f"{one.batch} requests together", parts, rows),
        Table("serving", "What serving designs gain", designs, named),
    ]


def _designs(g: Serving) -> list[tuple[str, str]]:
    d = units.duration
    link = f", {d(g.transfer_s)} over the scale-up link" if g.transfer_s is not None else ""
    return [
        (
            "continuous batching",
            f"a step of {g.batch} takes {d(g.step_b_s)}, of one {d(g.step_1_s)}: "
            f"{units.significant(g.batching_gain)} times the tokens a second",
        ),
        (
            "chunked prefill",
            f"decodes wait {d(g.chunk_s)} for a chunk of {units.count(g.chunk_tokens)} ({g.chunks} chunks, the longest "
            f"{d(g.chunk_max_s)}) instead of {d(g.stall_s)}; one step with both saves {d(g.mixed_saved_s)}",
        ),
        ("disaggregation", f"{units.binary(g.transfer_bytes)} of KV to send for each prompt{link}"),
    ]


def request_notes(rig: Rig, one: Request, room: Capacity) -> list[str]:
    """What stands in the way of it: memory, and the model's maximum context."""
    longest, told = rig.model.arch.max_context, []
    missing = room.missing_bytes(one.batch, one.context_tokens)
    if missing > 0:
        told.append(f"it does not fit: {units.gigabytes(missing)} short at {units.count(one.context_tokens)} tokens")
    if longest is not None and one.context_tokens > longest:
        told.append(
            f"{units.count(one.context_tokens)} tokens are beyond the maximum context of {units.count(longest)}"
        )
    return told


def print_request(rig: Rig, one: Request, gains: Serving, room: Capacity) -> None:
    """The answer, then the tables."""
    from gambrel.show.text import Page

    page = Page()
    page.paragraph(
        f"{rig.model.name} on {rig.device.name}: {units.count(one.prompt_tokens)} tokens in and "
        f"{units.count(one.new_tokens)} out take about {units.duration(one.total_s)}, "
        f"{one.decode_share:.0%} of it decode.",
        "bold",
    )
    page.tables(request_tables(one, gains)[:1])
    page.line()
    page.line("What serving designs gain", "bold")
    page.pairs(_designs(gains))
    for note in request_notes(rig, one, room):
        page.paragraph(f"note: {note}", "warn", indent=6)


# compare --------------------------------------------------------------------------------------


def compare_tables(result: Comparison) -> list[Table]:
    """The parts of the measured time, then what to try."""
    whole = result.measured_s
    parts = [{**vars(part), "share": part.time_s / whole} for part in result.parts]
    columns = (
        Column("name", "part"),
        Column("time_s", "time", "time"),
        Column("share", "share", "share"),
        Column("kind", "word"),
        Column("why", "what it is"),
    )
    tries = (Column("what", "try"), Column("gain_s", "at most", "time"), Column("why", "why"))
    return [
        Table("parts", "Where the time went", columns, parts),
        Table("suggestions", "What to try, by what it would buy", tries, [dict(vars(s)) for s in result.suggestions]),
    ]


def print_comparison(result: Comparison) -> None:
    """The verdict, then the tables."""
    from gambrel.show.text import Page

    page = Page()
    verdict = "more than twice its floor: a fault to find" if result.fault else f"{_limit(result.binding)}-bound floor"
    possible = "speed at the measured ceilings" if result.ceilings else "possible speed"
    page.paragraph(
        f"{result.model_name} on {result.device_id}: {units.duration(result.measured_s)} measured is "
        f"{result.fraction:.0%} of the {possible}, {units.duration(result.bound_s)} ({verdict}).",
        "warn" if result.fault else "bold",
    )
    page.line()
    moved = f"{units.gigabytes(result.weight_bytes)} of weights, {units.gigabytes(result.kv_bytes)} of KV"
    pairs = [
        ("step", _step(result)),
        ("at ceilings" if result.ceilings else "bound", f"{units.duration(result.bound_s)}, {moved}"),
    ]
    if result.measured_ceiling_s is not None:
        share = result.measured_ceiling_s / result.measured_s
        pairs.append(("as measured", f"{units.duration(result.measured_ceiling_s)} at measured ceilings, {share:.0%}"))
    page.pairs(pairs)
    page.tables(compare_tables(result))


def _step(result: Comparison) -> str:
    """What was compared, in words."""
    step, shared = result.step, f", TP={result.tp}" if result.tp > 1 else ""
    context = f"{step.context_tokens:,} tokens of context" if step.context_tokens else "no KV (--context 0)"
    new = "decode" if step.new_tokens == 1 else f"{step.new_tokens:,} new tokens a sequence"
    return f"{new}, batch {step.batch:,}, {context}{shared}"


def _limit(binding: str) -> str:
    return "memory" if binding == "memory" else "compute"
