"""The catalogues as tables: models, devices, and one device with every source."""

from __future__ import annotations

from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gambrel.types import Device

MODEL_COLUMNS = (
    Column("name", "name"),
    Column("hub_id", "hub id"),
    Column("family", "family"),
    Column("params_total", "parameters", "parameters"),
    Column("params_active", "active", "parameters"),
    Column("weights", "weights"),
    Column("kv_bytes_per_token", "KV a token", "binary"),
    Column("max_context_tokens", "context", "count"),
)
DEVICE_COLUMNS = (
    Column("id", "id"),
    Column("name", "device"),
    Column("bf16", "bf16", "rate"),
    Column("fp8", "fp8", "rate"),
    Column("fp4", "fp4", "rate"),
    Column("mem_bytes", "memory", "size"),
    Column("mem_bytes_per_s", "bandwidth", "bandwidth"),
    Column("ridge_flop_per_byte", "ridge", "ratio"),
)


def models_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The bundled models."""
    return Table("models", f"{len(rows)} bundled models", MODEL_COLUMNS, rows)


def types_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The model types that can be read."""
    return Table("types", f"{len(rows)} model types", (Column("model_type", "model_type"),), rows)


def device_rows(devices: Sequence[Device]) -> list[dict[str, Any]]:
    """One row a device."""
    return [
        {
            "id": d.id,
            "name": d.name,
            "kind": d.kind,
            "peak_flops_per_s": dict(d.peak_flops_per_s),
            "bf16": d.peak_flops_per_s.get("bf16"),
            "fp8": d.peak_flops_per_s.get("fp8"),
            "fp4": d.peak_flops_per_s.get("fp4"),
            "mem_bytes": d.mem_bytes,
            "usable_bytes": d.usable_bytes,
            "mem_bytes_per_s": d.mem_bytes_per_s,
            "ridge_flop_per_byte": d.ridge("bf16") if "bf16" in d.peak_flops_per_s else None,
            "note": d.note,
        }
        for d in devices
    ]


def devices_table(rows: Sequence[dict[str, Any]]) -> Table:
    """The catalogue."""
    caption = "Dense peaks, datasheet figures. `gambrel devices DEVICE` shows each number with its source."
    return Table("devices", f"{len(rows)} devices", DEVICE_COLUMNS, rows, caption)


def figure_rows(device: Device) -> list[dict[str, Any]]:
    """Every number of one device with where it is from, and what other sources say."""
    rows = []
    for key, figure in device.figures.items():
        for other in (figure, *figure.also):
            origin = device.sources.get(other.source, {})
            rows.append(
                {
                    "key": key,
                    "value": other.value,
                    "used": other is figure,
                    "source": other.source,
                    "title": origin.get("title", ""),
                    "url": origin.get("url", ""),
                    "date": str(origin.get("date", "")),
                    "checked": bool(origin.get("checked", False)),
                }
            )
    return rows


def figures_table(device: Device, rows: Sequence[dict[str, Any]]) -> Table:
    """One device, number by number."""
    shown = [
        {**row, "quantity": _quantity(row["key"], row["value"]), "also": "" if row["used"] else "also"} for row in rows
    ]
    columns = (
        Column("key", "number"),
        Column("quantity", "value"),
        Column("also", ""),
        Column("source", "source"),
    )
    return Table("figures", f"{device.id}: {device.name}", columns, shown, device.note)


def print_device(device: Device) -> None:
    """One device: its numbers, then its sources."""
    from gambrel.show.text import Page

    page = Page()
    page.tables([figures_table(device, figure_rows(device))])
    page.line()
    page.line("Sources", "bold")
    page.pairs([(name, _source(origin)) for name, origin in device.sources.items()] or [("yours", "no source given")])


def _source(origin: Any) -> str:
    seen = "" if origin.get("checked") else "; from memory of it, its text was not at hand"
    return f"{origin.get('title', '')}, {origin.get('url', '')}, {origin.get('date', '')}{seen}"


def _quantity(key: str, value: float) -> str:
    from gambrel.units import si

    section, _, name = key.partition(".")
    unit = "FLOP/s" if section.startswith("peak") else "B/s" if name.endswith("bytes_per_s") else "B"
    return si(value, "W" if section == "power" else "" if section == "units" else unit, 4)


def print_table(table: Table) -> None:
    """One table on standard output."""
    from gambrel.show.text import Page

    Page().tables([table])
