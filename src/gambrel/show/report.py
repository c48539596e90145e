"""The report's words and tables, from its data alone."""

from __future__ import annotations

from gambrel import units
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gambrel.cost.report import DecodeRow, PrefillRow, Report
    from gambrel.show.text import Page

DECODE_COLUMNS = (
    Column("batch", "batch", "count"),
    Column("context_tokens", "context", "count"),
    Column("kv_bytes", "KV read", "bytes"),
    Column("intensity_flop_per_byte", "FLOP/byte", "ratio"),
    Column("memory_s", "memory", "time"),
    Column("compute_s", "compute", "time"),
    Column("bound_s", "step bound", "time"),
    Column("tokens_per_s", "token/s", "count"),
    Column("binding", "limit"),
    Column("fits_text", "fits"),
)
EXPECTED_COLUMNS = (
    Column("expected_bound_s", "expected", "time"),
    Column("expected_tokens_per_s", "token/s", "count"),
)
PREFILL_COLUMNS = (
    Column("tokens", "tokens", "count"),
    Column("keys", "attention"),
    Column("flops", "FLOPs", "flops"),
    Column("bound_s", "bound", "time"),
    Column("estimate_s", "estimate", "time"),
    Column("operators_s", "op by op", "time"),
    Column("binding", "limit"),
    Column("fits_text", "fits"),
)


def answer(report: Report) -> str:
    """The answer first: two sentences of plain language."""
    first = report.decode[0]
    many = f"{units.count(first.batch)} sequences" if first.batch > 1 else "one sequence"
    speed = (
        f"{report.model.name} on {_devices(report)} cannot decode {many} at {units.count(first.context_tokens)} tokens "
        f"of context faster than {units.duration(first.bound_s)} a step, at most {units.count(first.tokens_per_s)} "
        f"token/s; {_limit(first.binding)}."
    )
    return f"{speed} {_prefill_clause(report)}{_room_clause(report)}."


def _devices(report: Report) -> str:
    tp = report.options.tp
    return f"{tp} x {report.device.name}" if tp > 1 else report.device.name


def _limit(binding: str) -> str:
    return "memory bandwidth is the limit" if binding == "memory" else "arithmetic is the limit"


def _prefill_clause(report: Report) -> str:
    if not report.prefill:
        return ""
    row = report.prefill[0]
    work = "Reading a source" if report.model.arch.encodes else "A prefill"
    return f"{work} of {tokens(row.tokens)} takes at least {units.duration(row.bound_s)}, and "


def tokens(number: int) -> str:
    """A number of tokens in words."""
    return f"{units.count(number)} token{'' if number == 1 else 's'}"


def _room_clause(report: Report) -> str:
    context = report.options.contexts[0]
    room, most = report.capacity, report.capacity.max_batch(context)
    if room.budget_bytes <= 0:
        have = units.gigabytes(room.usable_bytes * room.utilization)
        enough = f", which --tp {report.fits_with_tp} gives" if report.fits_with_tp else ""
        return f"weights and reserve do not fit: they need {units.gigabytes(-room.budget_bytes)} beyond {have}{enough}"
    if context == 0:
        return f"{units.gigabytes(room.budget_bytes)} are left beside the weights for KV"
    if most == 0:
        return f"the weights fit, but not one sequence of {units.count(context)} tokens beside them"
    noun = "sequence fits" if most == 1 else "sequences fit"
    return f"{units.count(most)} {noun} beside the weights at {units.count(context)} tokens each"


def model_line(report: Report) -> list[tuple[str, str]]:
    """What is known of model and device, as name and value."""
    model, device = report.model, report.device
    dtypes, crossing = model.reading.precision, report.crossover
    context = report.options.contexts[0]
    flops = model.flops_per_token(context)
    experts = f", {units.parameters(model.params_active)} active" if model.params_active != model.params_total else ""
    return [
        ("model", f"{model.name}, from {model.source}"),
        (
            "parameters",
            f"{units.count(model.params_total)} ({units.parameters(model.params_gemm)} in matrix products{experts})",
        ),
        ("dtypes", f"weights {dtypes.weights_name}, KV {model.numerics.kv.name}, products in {crossing.dtype}"),
        (
            "FLOPs a token",
            f"{units.si(flops['gemm'], 'FLOP')} weights + {units.si(flops['attention'], 'FLOP')} attention "
            f"at {units.count(context)} tokens",
        ),
        (
            "weights",
            f"{units.gigabytes(model.weight_bytes())} resident, "
            f"{units.gigabytes(model.weight_bytes(streamed_only=True))} streamed by a step",
        ),
        ("KV cache", _kv_text(report)),
        (
            "device",
            f"{device.name}: {units.si(device.peak(crossing.dtype), 'FLOP/s')} {crossing.dtype} dense, "
            f"{units.si(device.mem_bytes_per_s, 'B/s')}, "
            f"ridge {units.significant(crossing.ridge_flop_per_byte)} FLOP/byte{_changed(report)}",
        ),
        ("memory", memory_text(report)),
    ]


def _changed(report: Report) -> str:
    changed = report.device.changed
    return f" (yours: {', '.join(changed)})" if changed else ""


def _kv_text(report: Report) -> str:
    model, context = report.model, report.options.contexts[0]
    each = units.binary(model.kv_bytes_per_token)
    windowed, reserved = model.state_bytes(context), model.state_bytes(context, reserved=True)
    text = f"{each} a token, {units.binary(windowed)} a sequence of {units.count(context)}"
    return text if windowed == reserved else f"{text} with windows, {units.binary(reserved)} as reserved in full pages"


def memory_text(report: Report) -> str:
    """Every term of the budget."""
    room = report.capacity
    return (
        f"{units.gigabytes(room.usable_bytes)} usable x {room.utilization:g} - {units.gigabytes(room.weights_bytes)} "
        f"weights - {units.gigabytes(room.reserve_bytes)} reserve = {units.gigabytes(room.budget_bytes)} for KV"
    )


def report_tables(report: Report) -> list[Table]:
    """The decode and the prefill table."""
    moe = report.model.arch.experts is not None
    columns: tuple[Column, ...] = DECODE_COLUMNS
    if moe:
        columns = (*DECODE_COLUMNS[:8], *EXPECTED_COLUMNS, *DECODE_COLUMNS[8:])
    columns = _with_ceilings(columns, report)
    decode = [_with_fits(row) for row in report.decode]
    weights = report.options.weights
    caption = f"Step bound: max(ΣFLOPs/peak, Σbytes/bandwidth), weights {weights}, activations kept on chip."
    if moe:
        caption += " Bound: all tokens pick the same experts; expected: uniform routing."
    caption += _ceilings_text(report)
    tables = [
        Table("decode", "Decode, one step", columns, decode, caption, _marks(report.decode)),
    ]
    if report.prefill:
        tables.append(_prefill_table(report))
    return tables


def _prefill_table(report: Report) -> Table:
    encodes = report.model.arch.encodes
    rows = [
        {**_with_fits(row), "keys": "source" if encodes else "causal" if row.causal else "every key"}
        for row in report.prefill
    ]
    options = report.options
    caption = (
        f"Bound at peak, {options.logits} logits; estimate at {options.efficiency:.0%} of peak (--efficiency); "
        "op by op: no operator fused with another."
    )
    columns = _with_ceilings(PREFILL_COLUMNS, report)
    return Table("prefill", "Prefill, one prompt", columns, rows, caption, _marks(report.prefill))


def _with_ceilings(columns: tuple[Column, ...], report: Report) -> tuple[Column, ...]:
    """The bound at measured ceilings, right of the datasheet's."""
    if report.ceilings is None:
        return columns
    at = 1 + next(index for index, column in enumerate(columns) if column.key == "bound_s")
    return (*columns[:at], Column("measured_ceiling_s", "as measured", "time"), *columns[at:])


def _ceilings_text(report: Report) -> str:
    """What the measured column rests on."""
    measured, device, dtype = report.ceilings, report.device, report.crossover.dtype
    if measured is None:
        return ""
    peak, rate = measured.peak(dtype), measured.mem_bytes_per_s
    return (
        f" As measured: the same at the ceilings of {measured.name.removesuffix(', measured')}, "
        f"{units.si(peak, 'FLOP/s')} {dtype} ({peak / device.peak(dtype):.0%} of the datasheet's) and "
        f"{units.si(rate, 'B/s')} ({rate / device.mem_bytes_per_s:.0%}); a better kernel may beat them."
    )


def _with_fits(row: DecodeRow | PrefillRow) -> dict[str, Any]:
    data = dict(vars(row))
    missing = data.get("missing_bytes", 0)
    text = "yes" if row.fits else f"no, {units.gigabytes(missing)} short" if missing else "no"
    data["fits_text"] = f"{text}, beyond max" if row.beyond_max_context else text
    return data


def _marks(rows: Sequence[DecodeRow | PrefillRow]) -> frozenset[int]:
    return frozenset(i for i, row in enumerate(rows) if not row.possible)


def crossover_sentence(report: Report) -> str:
    """The batch, whether it fits, whether it exists at all."""
    c = report.crossover
    weights = (
        f"Weights alone turn compute-bound at batch {units.count(c.weights_batch)} "
        f"(ridge {units.significant(c.ridge_flop_per_byte)} FLOP/byte in {c.dtype})"
    )
    context = units.count(c.context_tokens)
    if c.step_batch is not None:
        fit = "which fits" if c.fits else f"which does not fit (at most {units.count(c.max_batch)} do)"
        return f"{weights}; with the KV cache of {context} tokens at batch {units.count(c.step_batch)}, {fit}."
    return (
        f"{weights}, whose KV at {context} tokens would be {units.binary(c.cache_bytes)}; with that cache no batch is "
        f"compute-bound: intensity tends to {units.significant(c.intensity_limit)} FLOP/byte as the batch grows."
    )


def notes(report: Report) -> list[str]:
    """What the reader should know: choices the config left open, unread keys, contexts beyond the maximum."""
    model, told = report.model, list(report.model.reading.notes)
    longest = model.arch.max_context
    beyond = {row.context_tokens for row in report.decode if row.beyond_max_context}
    beyond |= {row.tokens for row in report.prefill if row.beyond_max_context}
    if beyond and longest is not None:
        lengths = ", ".join(units.count(tokens) for tokens in sorted(beyond))
        told.append(f"{lengths} tokens are beyond this model's maximum context of {units.count(longest)}")
    return told


def print_report(report: Report, page: Page | None = None) -> None:
    """The report: the answer, the inputs, the tables, the crossover, the notes."""
    from gambrel.show.text import Page

    page = page or Page()
    page.paragraph(answer(report), "bold")
    page.line()
    page.pairs(model_line(report))
    page.tables(report_tables(report))
    page.line()
    page.paragraph(crossover_sentence(report))
    for note in notes(report):
        page.paragraph(f"note: {note}", "warn", indent=6)


def report_text(report: Report) -> str:
    """The report as a string."""
    import io

    from gambrel.show.text import Page

    buffer = io.StringIO()
    print_report(report, Page(buffer))
    return buffer.getvalue().rstrip("\n")
