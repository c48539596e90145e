"""What was measured, as records that never change: values, warm-ups, and everything needed to judge them."""

from __future__ import annotations

import json
import os
from dataclasses import field

from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: What two records must share to be comparable.
SAME = ("machine", "device", "dtype", "phase", "batch", "context_tokens", "new_tokens", "model")


class RecordError(GambrelError):
    """A record that cannot be read, found or compared; the message names the field."""


@frozen
class Measurement:
    """One thing measured several times.

    id: unique in its store. name: for people. values_s: timed repetitions, warm-ups apart [s]. warmups_s [s].
    metadata: model, phase ("prefill" or "decode"), batch, new_tokens, context_tokens, dtype, engine, device, machine,
    threads, versions, clocks, git revision, started_at, busy (whether the machine was), and what else is known.
    """

    id: str
    name: str
    values_s: tuple[float, ...]
    warmups_s: tuple[float, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        """The middle of the timed repetitions [s]."""
        return quantile(self.values_s, 0.5)

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """The values below which a quarter and three quarters of the repetitions lie [s]."""
        return quantile(self.values_s, 0.25), quantile(self.values_s, 0.75)

    @property
    def spread(self) -> float:
        """Interquartile range over the median [1]."""
        low, high = self.quartiles_s
        return (high - low) / self.median_s if self.median_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "id": self.id,
            "name": self.name,
            "values_s": list(self.values_s),
            "warmups_s": list(self.warmups_s),
            "metadata": dict(self.metadata),
        }


def quantile(values: tuple[float, ...], share: float) -> float:
    """The value below which `share` of the values lie, interpolated. Raises RecordError where there are none."""
    if not values:
        raise RecordError("a measurement without values has no median")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def comparable(one: Measurement, other: Measurement) -> list[str]:
    """Fields in which two measurements differ that must be the same; empty where they may be compared."""
    return [key for key in SAME if one.metadata.get(key) != other.metadata.get(key)]


def store_path() -> str:
    """The file of records: $GAMBREL_DATA, else the user's data folder as the XDG specification has it."""
    folder = os.environ.get("GAMBREL_DATA") or os.path.join(
        os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share"), "gambrel"
    )
    return os.path.join(folder, "runs.jsonl")


def append(measurement: Measurement, path: str | None = None) -> str:
    """Add a record, whole or not at all: one line, one write, flushed to disk. Returns the file's path.

    A write that fails is cut off again. A file that ends in half a line, left by a crash, gets its own line end first,
    so that the new record stays whole.
    """
    path = path or store_path()
    line = json.dumps(measurement.to_dict(), allow_nan=False, sort_keys=True) + "\n"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "ab+", buffering=0) as file:
            _lock(file)
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            try:
                _write(file, line.encode())
            except BaseException:
                file.truncate(size)
                raise
    except OSError as error:
        raise RecordError(f"cannot write the record to {path}: {error}") from None
    return path


def _write(file: Any, data: bytes) -> None:
    if file.write(data) != len(data):
        raise OSError("only part of it could be written")
    os.fsync(file.fileno())


def _lock(file: Any) -> None:
    """Keep other writers out until the file is closed, where the system can."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX)


def read_all(path: str | None = None) -> tuple[list[Measurement], list[str]]:
    """Every whole record, oldest first, and a line about each that is not: earlier records stay intact."""
    path = path or store_path()
    records, told = [], []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                records.append(_record(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                told.append(f"{path} line {number} is not a whole record ({type(error).__name__}); left as it is")
    return records, told


def _record(data: Any) -> Measurement:
    values = tuple(float(value) for value in data["values_s"])
    warmups = tuple(float(value) for value in data.get("warmups_s", ()))
    return Measurement(str(data["id"]), str(data["name"]), values, warmups, dict(data.get("metadata", {})))


def find(record_id: str, path: str | None = None) -> Measurement:
    """The record whose id is, or uniquely begins with, this; "last" is the newest."""
    records, _ = read_all(path)
    if record_id == "last" and records:
        return records[-1]
    found = [record for record in records if record.id.startswith(record_id)] if record_id else []
    exact = [record for record in found if record.id == record_id]
    if len(exact or found) != 1:
        some = ", ".join(record.id for record in (found or records)[-5:]) or "none yet"
        what = "several runs begin with" if found else "no run"
        raise RecordError(f"{what} {record_id!r}; the newest are: {some}")
    return (exact or found)[0]
