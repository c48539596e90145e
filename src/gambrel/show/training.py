"""Training for people: utilisation under every convention, a whole run, memory of a device, a step's bound."""

from __future__ import annotations

from dataclasses import replace

from gambrel import units
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

UTILISATION = (
    Column("convention", "convention"),
    Column("flops_per_token", "FLOP/token", "flops"),
    Column("mfu", "MFU", "share"),
    Column("executed_flops_per_token", "executed", "flops"),
    Column("hfu", "HFU", "share"),
    Column("formula", "formula"),
    Column("source", "source"),
)
RUNS = (
    Column("convention", "convention"),
    Column("tokens", "tokens", "parameters"),
    Column("flops", "FLOPs", "big"),
    Column("executed_flops", "executed", "big"),
    Column("device_hours", "device hours", "count"),
    Column("days", "days", "ratio"),
    Column("energy_mwh", "energy, MWh", "ratio"),
    Column("cost_usd", "cost, USD", "count"),
)


def mfu_tables(document: Mapping[str, Any]) -> list[Table]:
    """One row a convention; those above 100 % marked."""
    rows = document["utilisation"]
    marks = frozenset(i for i, row in enumerate(rows) if max(row["mfu"], row["hfu"]) > 1)
    told = "Marked: above 100 % of peak, since the formula counts work that no kernel does." if marks else ""
    return [Table("utilisation", "Measured speed as a share of peak", UTILISATION, rows, told, marks)]


def print_mfu(document: Mapping[str, Any]) -> None:
    """The answer in a sentence, the table, the source of each convention."""
    from gambrel.show.text import Page

    page, first = Page(), document["utilisation"][0]
    page.paragraph(
        f"{document['model']} at {units.count(document['tokens_per_s_per_device'])} token/s on each "
        f"{document['device']}: MFU {first['mfu']:.1%}, HFU {first['hfu']:.1%} by {first['convention']}, of "
        f"{units.si(document['peak_flops_per_s'], 'FLOP/s')} dense {document['dtype']}.",
        "bold",
    )
    page.tables([replace(table, columns=UTILISATION[:-2]) for table in mfu_tables(document)])
    page.line()
    page.line("How each counts the FLOPs of a token", "bold")
    page.pairs([(row["convention"], f"{row['formula']}; {row['source']}") for row in document["utilisation"]])
    page.line()
    page.paragraph(_attention(document), "dim")


def _attention(document: Mapping[str, Any]) -> str:
    again = document["utilisation"][0]["recompute"]
    inside = f", documents of {units.count(document['doc_tokens'])}" if document["doc_tokens"] else ""
    return (
        f"Sequences of {units.count(document['seq_tokens'])} tokens{inside}; {document['attention']} attention; "
        f"recomputation {again}. Executed FLOPs count what is computed again, MFU does not."
    )


def run_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The runs with days and MWh, as people say them."""
    return [
        {
            **row,
            "days": row["time_s"] / 86_400,
            "energy_mwh": None if row["energy_j"] is None else row["energy_j"] / 3.6e9,
        }
        for row in document["runs"]
    ]


def train_tables(document: Mapping[str, Any]) -> list[Table]:
    """The run, one row a convention."""
    rows = run_rows(document)
    columns = tuple(c for c in RUNS if any(row[c.key] is not None for row in rows))
    return [Table("runs", "The run, at the stated share of peak (an estimate)", columns, rows)]


def print_train(document: Mapping[str, Any]) -> None:
    """The answer in a sentence, the table, what is assumed."""
    from gambrel.show.text import Page

    page, row = Page(), run_rows(document)[0]
    share = f"{document['efficiency']:.0%} {'HFU' if document['of_executed'] else 'MFU'}"
    page.paragraph(
        f"{document['model']}, {units.parameters(row['tokens'])} tokens on {units.count(document['n_devices'])} x "
        f"{document['device']} at {share}: {units.significant(row['days'])} days, "
        f"{units.count(row['device_hours'])} device hours.",
        "bold",
    )
    page.tables(train_tables(document))
    page.line()
    page.pairs(_assumed(document, row))


def _assumed(document: Mapping[str, Any], row: Mapping[str, Any]) -> list[tuple[str, str]]:
    optimum = document["chinchilla_tokens"]
    told = [
        ("peak", f"{units.si(document['peak_flops_per_s'], 'FLOP/s')} dense {document['dtype']} a device"),
        ("recompute", str(document["recompute"])),
        (
            "Chinchilla",
            f"{units.parameters(optimum)} tokens would be compute-optimal (20 an active parameter, "
            f"Hoffmann et al. 2022); these are {units.significant(row['tokens'] / optimum)} times as many",
        ),
    ]
    if row["energy_j"] is not None:
        told.append(("energy", f"{units.count(document['power_w'])} W a device, board power; no host, no cooling"))
    return told


# memory ---------------------------------------------------------------------------------------

KINDS = (Column("kind", "kind"), Column("bytes", "bytes", "bytes"), Column("share", "share", "share"))
LAYERS = (
    Column("layers", "layers"),
    Column("tensor", "kept for the backward pass"),
    Column("bytes", "bytes", "size"),
)
TRAFFIC = (
    Column("name", "traffic"),
    Column("collective", "collective"),
    Column("group", "devices", "count"),
    Column("sent_bytes", "sent by each", "size"),
    Column("link", "link"),
    Column("time_s", "at least", "time"),
)
CHANGES = (
    Column("what", "change"),
    Column("total_bytes", "memory", "bytes"),
    Column("fits", "fits", "yes"),
)
NAMES = ("parameters", "gradients", "optimizer", "activations", "loss", "buffers")


def memory_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Memory by kind and in all."""
    found = document["memory"]
    total = found["total_bytes"]
    rows = [{"kind": name, "bytes": found[f"{name}_bytes"], "share": found[f"{name}_bytes"] / total} for name in NAMES]
    return [*rows, {"kind": "total", "bytes": total, "share": 1.0}]


def memory_tables(document: Mapping[str, Any]) -> list[Table]:
    """Memory by kind, one layer of each kind tensor by tensor, traffic, and what to change."""
    told = "Before recomputation, for one micro-batch on one device."
    if document["estimated_parts"]:
        told += f" Estimates for {', '.join(document['estimated_parts'])}: half of what its operators move."
    tables = [
        Table("memory", "Memory of the fullest device (an estimate)", KINDS, memory_rows(document)),
        Table("layers", "One layer of each kind", LAYERS, document["layers"], told),
    ]
    if document["traffic"]:
        tables.append(Table("traffic", "What each device sends in one step", TRAFFIC, document["traffic"]))
    if document["changes"]:
        rows = document["changes"]
        marks = frozenset(i for i, row in enumerate(rows) if not row["fits"])
        tables.append(Table("changes", "What to change, at a micro-batch of 1", CHANGES, rows, "", marks))
    return tables


def print_memory(document: Mapping[str, Any]) -> None:
    """Whether it fits, the tables, the step's bound."""
    from gambrel.show.text import Page

    page, found = Page(), document["memory"]
    room = document["usable_bytes"] * document["utilization"]
    verdict = "fits" if document["fits"] else "does not fit"
    largest = document["largest_micro_batch"]
    page.paragraph(
        f"{document['model']} on {units.count(document['layout']['devices'])} x {document['device']}: "
        f"{units.gigabytes(found['total_bytes'])} a device {verdict} in {units.gigabytes(room)}; "
        f"{f'the largest micro-batch is {largest}' if largest else 'no micro-batch fits'}.",
        "bold" if document["fits"] else "warn",
    )
    page.tables(memory_tables(document))
    page.line()
    page.line("One step", "bold")
    page.pairs(_step(document))


def _step(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    step = document["step"]
    limits = ", ".join(f"{units.duration(value)} {name}" for name, value in step["limits_s"].items())
    told = [
        ("tokens", units.count(step["tokens"])),
        ("bound", f"{units.duration(step['bound_s'])}, limited by {step['binding']} ({limits})"),
        ("MFU at most", f"{step['mfu_ceiling']:.1%} at the bound; {step['mfu_serial']:.1%} with nothing overlapped"),
    ]
    if step["bubble"]:
        told.append(("bubble", f"{step['bubble']:.1%} on top of the arithmetic: (p - 1) / (v m)"))
    return told
