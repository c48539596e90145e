"""GGUF headers: metadata and tensors, the data left alone.

The gguf package (the extra gambrel[gguf]) says what the type numbers mean and how large their blocks are. The header
is walked here: the package's own reader makes an array of every token of the vocabulary, touches the data, and does not
end on a header that promises 2**60 elements. Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import os
import re
import struct
from importlib import import_module
from itertools import pairwise
from math import prod

from gambrel.model.checkpoint import Checkpoint, CheckpointError, StoredTensor, joined, open_regular, place, shown
from gambrel.units import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any, BinaryIO

    from gambrel.model.checkpoint import Part

#: Largest header that is read; a vocabulary takes some 10 MB of it [byte].
LIMIT_BYTES = 500_000_000
#: Longest name or shown value [byte], most sides of a tensor, deepest array of arrays.
LIMIT_NAME, LIMIT_SIDES, LIMIT_DEPTH = 65_536, 8, 4
VERSIONS = (2, 3)
ALIGNMENT = 32
#: One file of several, as llama.cpp names them.
SPLIT = re.compile(r"(.*-)(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
#: struct codes of the scalar types, by the name of the type in gguf.GGUFValueType.
SCALARS = {
    **{"UINT8": "B", "INT8": "b", "UINT16": "H", "INT16": "h", "UINT32": "I", "INT32": "i"},
    **{"UINT64": "Q", "INT64": "q", "FLOAT32": "f", "FLOAT64": "d", "BOOL": "?"},
}


def first_of(folder: str, files: Sequence[str]) -> str | None:
    """The one .gguf file of a folder, the first of its parts; None for none. Raises CheckpointError for several."""
    found = [name for name in files if name.lower().endswith(".gguf")]
    firsts = [name for name in found if not (part := SPLIT.fullmatch(name)) or int(part[2]) == 1]
    if len(firsts) > 1:
        names = ", ".join(shown(name) for name in firsts[:6]) + (", …" if len(firsts) > 6 else "")
        raise CheckpointError(f"{place(folder)} has {count(len(firsts))} GGUF files, give one of them: {names}")
    return os.path.join(folder, (firsts or found)[0]) if found else None


def read_gguf(path: str) -> Checkpoint:
    """The tensors of a GGUF file, its other parts included. Shapes are those of the matrices, outputs first."""
    library = _library()
    folder, file = os.path.split(path)
    split = SPLIT.fullmatch(file)
    files = [file] if split is None else [f"{split[1]}{i:05}-of-{split[3]}.gguf" for i in range(1, int(split[3]) + 1)]
    if len(files) == 1:
        tensors, metadata = _read_part(library, path)
        return Checkpoint(tensors, f"file {place(path)}", "gguf", metadata)
    parts: dict[str, Part] = {}
    for name in files:
        if not os.path.exists(os.path.join(folder, name)):
            raise CheckpointError(f"{place(path)} is one of {count(len(files))} files; {shown(name)} is not there")
        parts[name] = _read_part(library, os.path.join(folder, name))
    whole = joined(parts, f"{count(len(files))} files of {place(folder or '.')}")
    return Checkpoint(whole.tensors, whole.source, "gguf", whole.metadata)


def _library() -> ModuleType:
    try:
        return import_module("gguf")
    except ImportError as error:
        raise CheckpointError(f"GGUF files need gguf ({error}): pip install 'gambrel[gguf]'") from None


def _read_part(library: ModuleType, path: str) -> Part:
    where = place(path)
    try:
        with open_regular(path) as file:
            return _Header(library, file, os.fstat(file.fileno()).st_size).read()
    except OSError as error:
        raise CheckpointError(f"cannot read {where}: {error.strerror}") from None
    except (CheckpointError, struct.error) as error:
        raise CheckpointError(f"{where} has a broken header: {error}") from None


class _Header:
    """Walks the header of one file; every length is held against what the file still has."""

    def __init__(self, library: ModuleType, file: BinaryIO, size: int) -> None:
        self.library, self.file, self.size = library, file, size
        self.at, self.order = 0, "<"

    def read(self) -> Part:
        """Tensors and metadata."""
        if self._take(4) != struct.pack("<I", self.library.GGUF_MAGIC):
            raise CheckpointError("it does not begin with GGUF")
        version = self._number("I")
        if version and version & 0xFFFF == 0:
            self.order = ">"
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in VERSIONS:
            raise CheckpointError(f"version {version}; accepted is {' or '.join(map(str, VERSIONS))}")
        n_tensors, n_values = self._number("Q"), self._number("Q")
        metadata: dict[str, str] = {}
        for _ in range(n_values):
            key = self._text()
            if key in metadata:
                raise CheckpointError(f"the key {shown(key)} is there twice")
            metadata[key] = self._value(self._number("I"), 0)
        infos = [self._info() for _ in range(n_tensors)]
        return self._tensors(infos, metadata), {key: value for key, value in metadata.items() if value}

    def _take(self, n_bytes: int) -> bytes:
        self._skip(n_bytes)
        return self.file.read(n_bytes)

    def _skip(self, n_bytes: int, seek: bool = False) -> None:
        self.at += n_bytes
        if self.at > self.size:
            raise CheckpointError(f"truncated, it would go on to byte {self.at} of {self.size}")
        if self.at > LIMIT_BYTES:
            raise CheckpointError(f"it is over {LIMIT_BYTES // 10**6} MB")
        if seek:
            self.file.seek(self.at)

    def _number(self, code: str) -> Any:
        return struct.unpack(self.order + code, self._take(struct.calcsize(f"={code}")))[0]

    def _text(self) -> str:
        length = self._number("Q")
        if length > LIMIT_NAME:
            raise CheckpointError(f"a name of {length} bytes")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise CheckpointError("a name that is not UTF-8") from None

    def _value(self, number: int, depth: int) -> str:
        """A value of the metadata as text; arrays and long strings are stepped over and give an empty one."""
        kind = self._kind(number)
        if kind in SCALARS:
            return str(self._number(SCALARS[kind]))
        if kind == "STRING":
            length = self._number("Q")
            if length > LIMIT_NAME:
                self._skip(length, seek=True)
                return ""
            return self._take(length).decode("utf-8", "replace")
        if depth >= LIMIT_DEPTH:
            raise CheckpointError("arrays nested too deeply")
        inner, length = self._number("I"), self._number("Q")
        self._array(inner, length, depth)
        return ""

    def _array(self, inner: int, length: int, depth: int) -> None:
        kind = self._kind(inner)
        if kind in SCALARS:
            self._skip(length * struct.calcsize(f"={SCALARS[kind]}"), seek=True)
            return
        for _ in range(length):
            if kind == "STRING":
                self._skip(self._number("Q"), seek=True)
            else:
                self._value(inner, depth + 1)

    def _kind(self, number: int) -> str:
        try:
            return str(self.library.GGUFValueType(number).name)
        except ValueError:
            raise CheckpointError(f"a value of the unknown type {number}") from None

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, n_sides = self._text(), self._number("I")
        if n_sides > LIMIT_SIDES:
            raise CheckpointError(f"{shown(name)} has {n_sides} sides")
        sides = tuple(self._number("Q") for _ in range(n_sides))
        return name, sides[::-1], self._number("I"), self._number("Q")

    def _tensors(self, infos: list[tuple[str, tuple[int, ...], int, int]], metadata: dict[str, str]) -> Any:
        alignment = int(metadata.get("general.alignment") or ALIGNMENT)
        if alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(f"general.alignment is {alignment}; accepted is a power of two")
        start = -(-self.at // alignment) * alignment
        spans, found, names = [], [], set()
        for name, shape, number, offset in infos:
            dtype, stored = self._stored(name, shape, number)
            if name in names:
                raise CheckpointError(f"{shown(name)} is there twice")
            if start + offset + stored > self.size:
                raise CheckpointError(
                    f"truncated, {shown(name)} would end at byte {start + offset + stored} of {self.size}"
                )
            names.add(name)
            spans.append((offset, offset + stored, name))
            found.append(StoredTensor(name, dtype, shape, stored))
        spans.sort()
        for (_, end, _), (begin, _, name) in pairwise(spans):
            if begin < end:
                raise CheckpointError(f"{shown(name)} overlaps the tensor before it")
        return tuple(found)

    def _stored(self, name: str, shape: tuple[int, ...], number: int) -> tuple[str, int]:
        """The type of a tensor and its size: rows of whole blocks [byte]."""
        try:
            dtype = self.library.GGMLQuantizationType(number)
            block, block_bytes = self.library.GGML_QUANT_SIZES[dtype]
        except (ValueError, KeyError):
            raise CheckpointError(f"{shown(name)} has the unknown type {number}") from None
        if (shape or (1,))[-1] % block:
            raise CheckpointError(
                f"{shown(name)} has rows of {shape[-1]}, no multiple of {block} as {dtype.name} needs"
            )
        return str(dtype.name), prod(shape) // block * block_bytes
