"""What a model is made of and does: parameters by part, operators of a step, marks of a chart."""

from __future__ import annotations

from gambrel import units
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gambrel.api import Model
    from gambrel.cost.verify import Verification
    from gambrel.plots import RooflinePlot
    from gambrel.types import Device


def params_tables(model: Model) -> list[Table]:
    """Parameters by group."""
    stored: dict[str, float] = {}
    for t in model.tensors:
        stored[t.group] = stored.get(t.group, 0) + t.stored_bytes * t.copies
    rows = [
        {"group": group, "params": params, "share": params / model.params_total, "bytes": stored[group]}
        for group, params in model.params_by_group.items()
    ]
    rows.append({"group": "total", "params": model.params_total, "share": 1.0, "bytes": model.weight_bytes()})
    columns = (
        Column("group", "part"),
        Column("params", "parameters", "count"),
        Column("share", "share", "share"),
        Column("bytes", "bytes", "bytes"),
    )
    return [Table("params", "Parameters", columns, rows)]


def print_params(model: Model, context_tokens: int) -> None:
    """Totals, then the parts."""
    from gambrel.show.text import Page

    page = Page()
    windowed = model.state_bytes(context_tokens)
    reserved = model.state_bytes(context_tokens, reserved=True)
    state = f"{units.binary(windowed)} a sequence of {units.count(context_tokens)}"
    if windowed != reserved:
        state += f" with windows, {units.binary(reserved)} as reserved in full pages"
    pairs = [
        ("model", f"{model.name}, from {model.source}"),
        ("parameters", f"{units.count(model.params_total)} ({units.parameters(model.params_total)})"),
        ("in products", units.count(model.params_gemm)),
        ("active", units.count(model.params_active)),
        (
            "weights",
            f"{units.gigabytes(model.weight_bytes())} resident, "
            f"{units.gigabytes(model.weight_bytes(streamed_only=True))} streamed by a step, "
            f"{model.reading.precision.weights_name}",
        ),
        ("KV cache", f"{units.binary(model.kv_bytes_per_token)} a token ({model.numerics.kv.name}), {state}"),
    ]
    page.pairs(pairs)
    page.tables(params_tables(model))
    for note in model.reading.notes:
        page.paragraph(f"note: {note}", "warn", indent=6)


OPS_COLUMNS = (
    Column("name", "operator"),
    Column("block", "where"),
    Column("count", "x", "count"),
    Column("shape", "shape"),
    Column("flops", "FLOPs", "flops"),
    Column("weight_bytes", "weights", "size"),
    Column("kv_bytes", "KV", "size"),
    Column("act_bytes", "activ.", "size"),
    Column("intensity_flop_per_byte", "FLOP/B", "ratio"),
)
TIME_COLUMNS = (Column("total_s", "time", "time"), Column("share", "share", "share"), Column("binding", "limit"))


def ops_table(rows: Sequence[dict[str, Any]], device: Device | None) -> Table:
    """Every operator of one step."""
    columns = (*OPS_COLUMNS, *TIME_COLUMNS) if device else OPS_COLUMNS
    caption = "FLOPs and bytes of one operator; time of all of them, none fused with another." if device else ""
    return Table("ops", "Operators of one step", columns, rows, caption)


def verify_table(result: Verification) -> Table:
    """Analytic and traced FLOPs, operator by operator."""
    columns = (
        Column("phase", "phase"),
        Column("role", "role"),
        Column("operator", "operator"),
        Column("analytic_flops", "analytic", "count"),
        Column("traced_flops", "traced", "count"),
        Column("difference", "difference", "count"),
    )
    caption = "FLOPs with every key and every row through the head, as the module runs; MLA expanded."
    marks = frozenset(i for i, row in enumerate(result.rows) if row["difference"])
    return Table("verify", "Analytic against traced", columns, result.rows, caption, marks)


def print_verification(result: Verification) -> None:
    """The verdict, then the table."""
    from gambrel.show.text import Page

    page = Page()
    verdict = "equal to the unit" if result.equal else "they differ"
    page.paragraph(f"{result.model_name}: analytic and traced, {verdict}.", "bold" if result.equal else "warn")
    page.line()
    page.pairs(
        [("parameters", f"{units.count(result.params_analytic)} analytic, {units.count(result.params_traced)} traced")]
    )
    page.tables([verify_table(result)])


def plot_table(plot: RooflinePlot) -> Table:
    """The marks of a roofline chart."""
    columns = (
        Column("phase", "phase"),
        Column("label", "mark"),
        Column("intensity_flop_per_byte", "FLOP/byte", "ratio"),
        Column("rate_flops_per_s", "attainable", "rate"),
        Column("share", "share of time", "share"),
    )
    return Table("points", plot.title, columns, [_point(p) for p in plot.points], plot.subtitle)


def _point(point: Any) -> dict[str, Any]:
    return {
        "phase": point.phase,
        "label": point.label,
        "intensity_flop_per_byte": point.intensity_flop_per_byte,
        "rate_flops_per_s": point.rate_flops_per_s,
        "share": point.share or None,
    }
