"""What a checkpoint stores, from its headers alone: name, dtype, shape and bytes of every tensor.

Safetensors: 8 bytes with the length of the header (little-endian), the header as JSON, then the data, which is never
read. The checks are those of the format's own library, https://huggingface.co/docs/safetensors: offsets that tile the
data without a hole, sizes that follow from dtype and shape, no name twice.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import field
from itertools import pairwise
from math import prod

from gambrel.types import GambrelError
from gambrel.units import count
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Largest header or index that is read, as in the format's own library [byte].
LIMIT_BYTES = 100_000_000
#: Most sides of a tensor, and their largest length.
LIMIT_SIDES, LIMIT_SIDE = 64, 2**63 - 1
SINGLE, INDEX, ENDING = "model.safetensors", "model.safetensors.index.json", ".safetensors"
#: Bits of one element by the dtype's name in a header.
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
#: How many characters of a hostile name a message shows.
LONGEST = 80


class CheckpointError(GambrelError):
    """A checkpoint that cannot be read: broken, truncated, or not there."""


@frozen
class StoredTensor:
    """One tensor of a file, as its header has it: dtype and shape are those of the storage, packed or not.

    stored_bytes: size of its data [byte].
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored_bytes: int

    @property
    def elements(self) -> int:
        """Elements as stored."""
        return prod(self.shape)


@frozen
class Checkpoint:
    """The tensors of a checkpoint and where they are from.

    source: one line for people. kind: "safetensors" or "gguf". metadata: what the headers say beside the tensors.
    quantization: the quantization_config of the config beside it, which some packings need. notes: what is odd.
    """

    tensors: tuple[StoredTensor, ...]
    source: str
    kind: str = "safetensors"
    metadata: Mapping[str, str] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors, headers left out."""
        return sum(t.stored_bytes for t in self.tensors)


def read_checkpoint(path: str, config: Mapping[str, Any] | None = None) -> Checkpoint:
    """The tensors of a folder, a .safetensors file or a .gguf file; no data is read.

    A folder is read as transformers does: model.safetensors, else the shards of model.safetensors.index.json, else
    every .safetensors file, else its one .gguf. config: used where no config.json lies beside the files.
    Raises CheckpointError in one line.
    """
    path = os.path.expanduser(path)
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {place(path)}: {getattr(error, 'strerror', error)}") from None
    if stat.S_ISDIR(mode):
        found = _read_folder(path)
        folder = path
    else:
        found = _read_file(path)
        folder = os.path.dirname(path) or "."
    quantization = quantization_of(_config_beside(folder) or config or {})
    return Checkpoint(found.tensors, found.source, found.kind, found.metadata, quantization, found.notes)


def checkpoint_of(model: str, asked: str, config: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint that is asked for: a path, "hub" for the model's headers there, or "" for the model's own folder.

    model: as given, by path, name or hub id. config: the model's. Raises CheckpointError.
    """
    if asked == "hub":
        from gambrel.model.hub_checkpoint import read_hub

        return read_hub(model, config)
    if asked:
        return read_checkpoint(asked, config)
    path = os.path.expanduser(model)
    if os.path.isdir(path):
        return read_checkpoint(path, config)
    if os.path.isfile(path):
        return read_checkpoint(os.path.dirname(path) or ".", config)
    raise CheckpointError(f"{place(model)} is no folder; give --checkpoint a folder or file, or --checkpoint hub")


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quantisation that a config names, under any of the usual keys; empty where it names none."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config", "quantization"):
            if isinstance(part.get(key), dict):
                return dict(part[key])
    return {}


def shown(text: str) -> str:
    """A name from a file, cut, and quoted where it would garble a terminal."""
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return text if text.isprintable() else ascii(text)


def place(path: str) -> str:
    """A path in full, quoted where it would garble a terminal."""
    return path if path.isprintable() else ascii(path)


# Files and folders ------------------------------------------------------------------------------


def _config_beside(folder: str) -> Mapping[str, Any] | None:
    from gambrel.model.sources import CONFIG, find_config

    path = os.path.join(folder, CONFIG)
    return find_config(path if path.startswith(os.sep) else f".{os.sep}{path}").config if os.path.isfile(path) else None


def _read_folder(folder: str) -> Checkpoint:
    try:
        files = sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"cannot read {place(folder)}: {error.strerror}") from None
    if SINGLE in files:
        return _read_file(os.path.join(folder, SINGLE))
    if INDEX in files:
        return _read_index(folder)
    shards = [name for name in files if name.lower().endswith(ENDING)]
    if shards:
        parts = {name: read_header(os.path.join(folder, name)) for name in shards}
        return joined(parts, f"{_files(len(parts))} of {place(folder)}")
    from gambrel.model import gguf_file

    first = gguf_file.first_of(folder, files)
    if first is not None:
        return gguf_file.read_gguf(first)
    raise CheckpointError(f"{place(folder)} has no {ENDING} and no .gguf file; --checkpoint hub asks the hub instead")


def _read_file(path: str) -> Checkpoint:
    ending = os.path.splitext(path)[1].lower()
    if ending == ".gguf":
        from gambrel.model.gguf_file import read_gguf

        return read_gguf(path)
    if ending != ENDING:
        raise CheckpointError(f"{place(path)} is no {ENDING} and no .gguf file; give one, or a folder of them")
    tensors, metadata = read_header(path)
    return Checkpoint(tensors, f"file {place(path)}", metadata=metadata)


def _files(number: int) -> str:
    return f"{number} file" if number == 1 else f"{count(number)} files"


def _read_index(folder: str) -> Checkpoint:
    where = os.path.join(folder, INDEX)
    data = _read_bytes(where, LIMIT_BYTES)
    if len(data) > LIMIT_BYTES:
        raise CheckpointError(f"{place(where)} is over {LIMIT_BYTES // 10**6} MB, too large for an index")
    places = weight_map(_json_object(data, place(where)), place(where))
    parts = {}
    for shard in sorted(set(places.values())):
        path = os.path.join(folder, shard)
        if not os.path.exists(path):
            raise CheckpointError(f"{place(where)} names {shown(shard)}, which is not there")
        parts[shard] = read_header(path)
    return indexed(places, parts, f"{_files(len(parts))} of {place(folder)}")


def weight_map(index: Mapping[str, Any], where: str) -> dict[str, str]:
    """Tensor name -> shard of an index; a shard is a plain file name, so that no index leads out of its folder."""
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f'{where} has no object "weight_map" with tensors')
    for shard in set(map(str, places.values())):
        if shard in ("", ".", "..") or any(c in shard for c in "/\\\0") or not shard.endswith(ENDING):
            raise CheckpointError(f"{where} names {shown(shard)!r} as a shard; accepted is the name of a {ENDING} file")
    return {name: str(shard) for name, shard in places.items()}


def indexed(places: Mapping[str, str], parts: Mapping[str, Part], source: str) -> Checkpoint:
    """The shards of an index together. Raises CheckpointError where a shard lacks a tensor that the index promises."""
    stored = {shard: {t.name for t in tensors} for shard, (tensors, _) in parts.items()}
    for name, shard in places.items():
        if name not in stored[shard]:
            raise CheckpointError(f"{shown(shard)} lacks {shown(name)}, which the index promises")
    found = joined(parts, source)
    beyond = len(found.tensors) - len(places)
    notes = (f"the shards hold {count(beyond)} tensors that the index does not name; they are counted",)
    return Checkpoint(found.tensors, source, metadata=found.metadata, notes=notes if beyond else ())


def joined(parts: Mapping[str, Part], source: str) -> Checkpoint:
    """The tensors of several files. Raises CheckpointError for a name that two of them have."""
    places: dict[str, str] = {}
    merged: dict[str, str] = {}
    for file, (tensors, metadata) in parts.items():
        for t in tensors:
            if t.name in places:
                raise CheckpointError(f"{shown(t.name)} is in {shown(places[t.name])} and in {shown(file)}")
            places[t.name] = file
        merged.update(metadata)
    return Checkpoint(tuple(t for tensors, _ in parts.values() for t in tensors), source, metadata=merged)


# Headers ----------------------------------------------------------------------------------------

if TYPE_CHECKING:
    Part = tuple[tuple[StoredTensor, ...], dict[str, str]]


def read_header(path: str) -> Part:
    """Tensors and metadata of one .safetensors file. Raises CheckpointError that names the file and what is wrong."""
    where = place(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8:
                raise CheckpointError(f"{where} is truncated: {size} bytes, no header")
            if length > LIMIT_BYTES:
                raise CheckpointError(f"{where} is no safetensors file: its header would have {length} bytes")
            if length > size - 8:
                raise CheckpointError(f"{where} is truncated: a header of {length} bytes in a file of {size}")
            data = file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read {where}: {error.strerror}") from None
    return parse_header(_json_object(data, where), where, size - 8 - length)


def open_regular(path: str) -> Any:
    """The file, opened for reading. Raises CheckpointError for a pipe or a device, which would block or never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise CheckpointError(f"{place(path)} is no regular file")
    return open(path, "rb")


def _read_bytes(path: str, limit: int) -> bytes:
    try:
        with open_regular(path) as file:
            return bytes(file.read(limit + 1))
    except OSError as error:
        raise CheckpointError(f"cannot read {place(path)}: {error.strerror}") from None


def _json_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in a header or an index."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise CheckpointError(f"{where} has a broken header: no JSON in UTF-8 ({what})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} has a broken header: accepted is one JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = sorted(key for key, _ in pairs)
        twice = next(name for name, following in pairwise(names) if name == following)
        raise CheckpointError(f"{shown(twice)!r} is there twice in one object")
    return table


def _refuse(text: str) -> Any:
    raise CheckpointError(f"{text} is no number")


def parse_header(header: Mapping[str, Any], where: str, data_bytes: int | None = None) -> Part:
    """Tensors and metadata of a header; data_bytes is what follows it in the file, None where nobody knows [byte]."""
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{where}: __metadata__ is no object of strings")
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    spans = sorted((*_offsets(name, entry, where), name) for name, entry in entries)
    end = 0
    for start, stop, name in spans:
        if start != end:
            what = "overlaps the tensor before it" if start < end else "leaves a hole before it"
            raise CheckpointError(f"{where}: {shown(name)} {what} (data_offsets {start}, {stop})")
        end = stop
    if data_bytes is not None and end != data_bytes:
        what = "is truncated" if end > data_bytes else "has data that no tensor owns"
        raise CheckpointError(f"{where} {what}: tensors end at {end}, data at {data_bytes}")
    return tuple(_tensor(name, entry, where) for name, entry in entries), metadata


def _offsets(name: str, entry: Any, where: str) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, (list, tuple)) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise CheckpointError(f"{where}: {shown(name)} has data_offsets {offsets!r:.60}; accepted is two whole numbers")
    start, stop = offsets
    if stop < start:
        raise CheckpointError(f"{where}: {shown(name)} has data_offsets {start}, {stop}, which end before they begin")
    return start, stop


def _tensor(name: str, entry: Mapping[str, Any], where: str) -> StoredTensor:
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where}: {shown(name)} has dtype {dtype!r:.40}; accepted is {', '.join(DTYPE_BITS)}")
    if not isinstance(shape, (list, tuple)) or len(shape) > LIMIT_SIDES or not all(map(_is_size, shape)):
        raise CheckpointError(f"{where}: {shown(name)} has shape {shape!r:.60}; accepted is a list of whole numbers")
    start, stop = entry["data_offsets"]
    if prod(shape) * DTYPE_BITS[dtype] != (stop - start) * 8:
        sides = ", ".join(map(str, shape))
        raise CheckpointError(f"{where}: {shown(name)} has {stop - start} bytes, which {dtype} [{sides:.60}] has not")
    if any("\ud800" <= c <= "\udfff" for c in name):
        raise CheckpointError(f"{where}: {shown(name)} has half of a surrogate pair")
    return StoredTensor(name, dtype, tuple(shape), stop - start)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LIMIT_SIDE
