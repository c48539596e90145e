"""A checkpoint beside the prediction: what agrees, what differs, part by part."""

from __future__ import annotations

from gambrel import units
from gambrel.show.tables import Column, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gambrel.model.agreement import Agreement
    from gambrel.model.checkpoint import Checkpoint
    from gambrel.model.model import Model

#: Metadata that is shown, by the end of its key; a JSON document has the rest.
SHOWN = ("general.architecture", "general.name", "general.size_label", ".block_count", "format")

COLUMNS = (
    Column("group", "part"),
    Column("predicted_params", "predicted", "count"),
    Column("stored_params", "stored", "count"),
    Column("params_difference", "difference", "signed"),
    Column("predicted_bytes", "predicted bytes", "count"),
    Column("stored_bytes", "stored bytes", "count"),
    Column("bytes_difference", "difference", "signed"),
    Column("answer", "agrees"),
)
FORMAT_COLUMNS = (
    Column("group", "part"),
    Column("dtype", "dtype"),
    Column("tensors", "tensors", "count"),
    Column("params", "parameters", "count"),
    Column("bytes", "bytes", "count"),
)
BESIDE_COLUMNS = (Column("what", "what"), Column("tensors", "tensors", "count"), Column("bytes", "bytes", "count"))


def agreement_tables(agreement: Agreement) -> list[Table]:
    """Predicted and stored by part, stored by part and dtype, and what is beside the weights."""
    rows = [row.to_dict() for row in (*agreement.rows, agreement.total)]
    for row in rows:
        row["answer"] = "counted apart" if row["agrees"] is None else "yes" if row["agrees"] else "no"
    marks = frozenset(index for index, row in enumerate(rows) if row["agrees"] is False)
    tables = [
        Table("checkpoint", "Predicted and stored", COLUMNS, rows, marks=marks),
        Table("formats", "Stored, by part and dtype", FORMAT_COLUMNS, agreement.formats),
    ]
    if agreement.beside:
        caption = "Buffers, scales of activations and the like: no parameters, and no part of the comparison."
        tables.append(Table("beside", "Stored beside the weights", BESIDE_COLUMNS, agreement.beside, caption))
    return tables


def print_agreement(model: Model, agreement: Agreement, checkpoint: Checkpoint) -> None:
    """The answer, the tables, and what explains a difference."""
    from gambrel.show.text import Page

    page = Page()
    total = agreement.total
    different = [row.group for row in agreement.rows if not row.agrees]
    answer = "the checkpoint agrees with the config" if not different else f"they differ in {', '.join(different)}"
    pairs = [
        ("model", f"{model.name}, from {model.source}"),
        ("checkpoint", agreement.source),
        ("stored", f"{units.count(total.stored_params)} parameters, {units.gigabytes(total.stored_bytes)}"),
        ("answer", answer),
    ]
    told = [(key, text) for key, text in checkpoint.metadata.items() if key.endswith(SHOWN)]
    page.pairs(pairs + [(_plain(key), _plain(text)) for key, text in told])
    page.tables(agreement_tables(agreement))
    for note in (*model.reading.notes, *agreement.notes):
        page.paragraph(f"note: {note}", "warn", indent=6)


def _plain(text: str) -> str:
    text = text if len(text) <= 80 else f"{text[:80]}…"
    return text if text.isprintable() else ascii(text)
