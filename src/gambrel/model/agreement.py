"""A checkpoint held against what the config predicts: parameters and bytes, part by part."""

from __future__ import annotations

from gambrel.model.stored import BALANCING, MTP, OTHER, StoredWeight, stored_weights
from gambrel.units import count
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from gambrel.model.checkpoint import Checkpoint
    from gambrel.model.model import Model
    from gambrel.units import Num

#: How many names of a kind a note shows.
NAMED = 4


@frozen
class PartAgreement:
    """One part: predicted from the config and stored in the checkpoint.

    tensors: how many the checkpoint has. predicted_bytes: None where the config says nothing of the file's formats.
    compared: False where the prediction leaves the part out on purpose (layers for multi-token prediction).
    """

    group: str
    predicted_params: int
    stored_params: int
    predicted_bytes: Num | None
    stored_bytes: int
    tensors: int
    compared: bool = True

    @property
    def params_difference(self) -> int:
        """Stored minus predicted parameters."""
        return self.stored_params - self.predicted_params

    @property
    def bytes_difference(self) -> Num | None:
        """Stored minus predicted bytes [byte]."""
        return None if self.predicted_bytes is None else self.stored_bytes - self.predicted_bytes

    @property
    def agrees(self) -> bool:
        """Whether nothing differs, to the unit; True where nothing is compared."""
        return not self.compared or (self.params_difference == 0 and not self.bytes_difference)

    def to_dict(self) -> dict[str, Any]:
        """Every field with the differences; agrees is None where nothing is compared."""
        return {
            **vars(self),
            "params_difference": self.params_difference,
            "bytes_difference": self.bytes_difference,
            "agrees": self.agrees if self.compared else None,
        }


@frozen
class Agreement:
    """The comparison: rows by part, the stored tensors by part and dtype, and what is beside the weights.

    rows: parts in the order of the model; layers for multi-token prediction last. formats, beside, tensors: tables as
    plain data. notes: what explains a difference. unknown: names that no pattern knows, or whose packing nobody knows.
    """

    source: str
    kind: str
    rows: tuple[PartAgreement, ...]
    formats: tuple[dict[str, Any], ...]
    beside: tuple[dict[str, Any], ...]
    tensors: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def total(self) -> PartAgreement:
        """All parts that are compared, together."""
        rows = [row for row in self.rows if row.compared]
        known = [row.predicted_bytes for row in rows if row.predicted_bytes is not None]
        return PartAgreement(
            "total",
            sum(row.predicted_params for row in rows),
            sum(row.stored_params for row in rows),
            sum(known) if len(known) == len(rows) else None,
            sum(row.stored_bytes for row in rows),
            sum(row.tensors for row in rows),
        )

    @property
    def agrees(self) -> bool:
        """Whether every part agrees."""
        return all(row.agrees for row in self.rows)


def compare_checkpoint(model: Model, checkpoint: Checkpoint) -> Agreement:
    """Predicted and stored parameters and bytes of every part.

    A GGUF file has formats that the config does not know, so its bytes are shown and not compared.
    """
    weights = _with_balancing(model, stored_weights(checkpoint))
    rows = _rows(model, weights, checkpoint.kind != "gguf")
    beside = [w for w in weights if w.beside]
    unknown = [w.tensor.name for w in weights if not w.beside and (w.group == OTHER or not w.known)]
    return Agreement(
        checkpoint.source,
        checkpoint.kind,
        rows,
        tuple(_summed([w for w in weights if not w.beside], lambda w: {"group": w.group, "dtype": w.tensor.dtype})),
        tuple(_summed(beside, lambda w: {"what": w.kind})),
        tuple(_summed(weights, _like)),
        (*checkpoint.notes, *_notes(model, checkpoint, rows, weights)),
        tuple(unknown),
    )


def _with_balancing(model: Model, weights: tuple[StoredWeight, ...]) -> tuple[StoredWeight, ...]:
    """The balancing biases of routers as weights where the prediction counts them: some classes do, others do not."""
    predicted = model.params_by_group.get("router", 0)
    stored = sum(w.params for w in weights if w.group == "router")
    biases = sum(w.tensor.elements for w in weights if w.kind == BALANCING and w.group != MTP)
    if not biases or stored + biases != predicted:
        return weights
    return tuple(
        StoredWeight(w.tensor, "router", "weight", w.tensor.elements) if w.kind == BALANCING and w.group != MTP else w
        for w in weights
    )


def _rows(model: Model, weights: Iterable[StoredWeight], with_bytes: bool) -> tuple[PartAgreement, ...]:
    params: dict[str, int] = {}
    sizes: dict[str, Num] = {}
    for t in model.tensors:
        params[t.group] = params.get(t.group, 0) + t.params * t.copies
        sizes[t.group] = sizes.get(t.group, 0) + t.stored_bytes * t.copies
    stored: dict[str, tuple[int, int, int]] = {}
    for w in weights:
        if not w.beside:
            n, elements, size = stored.get(w.group, (0, 0, 0))
            stored[w.group] = (n + 1, elements + w.params, size + w.tensor.stored_bytes)
    rows = []
    for group in sorted({**params, **stored}, key=lambda group: (group == MTP, group == OTHER)):
        n, elements, size = stored.get(group, (0, 0, 0))
        compared = group != MTP or group in params
        predicted = sizes.get(group, 0) if with_bytes and compared else None
        rows.append(PartAgreement(group, params.get(group, 0), elements, predicted, size, n, compared))
    return tuple(rows)


def _like(w: StoredWeight) -> dict[str, Any]:
    """What equal tensors of different layers and experts have in common."""
    name = ".".join("#" if part.isdecimal() else part for part in w.tensor.name.split("."))
    return {
        "name": name,
        "group": w.group,
        "kind": w.kind,
        "dtype": w.tensor.dtype,
        "shape": list(w.tensor.shape),
        "params_each": w.params,
        "bytes_each": w.tensor.stored_bytes,
    }


def _summed(weights: Iterable[StoredWeight], key: Any) -> list[dict[str, Any]]:
    """Weights that are alike together: how many, their parameters and bytes."""
    rows: dict[str, dict[str, Any]] = {}
    for w in weights:
        shared = key(w)
        row = rows.setdefault(str(shared), {**shared, "tensors": 0, "params": 0, "bytes": 0})
        row["tensors"] += 1
        row["params"] += w.params
        row["bytes"] += w.tensor.stored_bytes
    return list(rows.values())


def _notes(
    model: Model, checkpoint: Checkpoint, rows: tuple[PartAgreement, ...], weights: tuple[StoredWeight, ...]
) -> list[str]:
    from gambrel.model.checkpoint import shown

    by_group = {row.group: row for row in rows}
    head, table = by_group.get("head"), by_group.get("embedding")
    notes = []
    if head and table and not head.predicted_params and head.stored_params == table.stored_params:
        notes.append("the config ties the output head to the embedding table, and the checkpoint stores both")
    for told, names in (
        ("no pattern knows these tensors", [w for w in weights if w.group == OTHER and not w.beside]),
        ("packed in a way that is not known, counted as stored", [w for w in weights if not w.known]),
    ):
        if names:
            listed = ", ".join(shown(w.tensor.name) for w in names[:NAMED])
            more = f" and {count(len(names) - NAMED)} more" if len(names) > NAMED else ""
            notes.append(f"{told}: {listed}{more}")
    if checkpoint.kind == "gguf":
        notes.append("bytes of a GGUF file are not compared: the config does not know its formats")
        blocks = checkpoint.metadata.get(f"{checkpoint.metadata.get('general.architecture')}.block_count")
        if blocks is not None and blocks != str(model.arch.n_layers):
            notes.append(f"the file says {shown(blocks)} blocks, the config {model.arch.n_layers} layers")
    return notes
