"""Profiler traces made elsewhere: Kineto and Chrome JSON, plain or gzip, read as a stream.

A trace is somebody else's file. It is read piece by piece, nothing in it is run, and every size is bounded: text in
all, one value, events kept, digits of a number, nesting. What is broken is named and what was read before it is kept.
Source: the Chrome "Trace Event Format" (durations of phase "X", times in microseconds) and the categories of Kineto.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import sys
import zlib
from dataclasses import field

from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO, Any


class TraceError(GambrelError):
    """A trace that cannot be used; the message names what is wrong with it."""


@frozen
class Limits:
    """What a trace may cost to read. text_bytes: decompressed text. value_chars: one event. events: kept in memory."""

    text_bytes: int = 8 * 2**30
    value_chars: int = 8 * 2**20
    events: int = 4_000_000


#: Category of ours by category of the trace, in lower case; old Kineto wrote "Kernel", "Runtime" and "Operator".
CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_profiler_range": "profiler_range",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "hip_runtime": "launch",
    "hip_driver": "launch",
    "xpu_runtime": "launch",
    "xpu_driver": "launch",
    "mtia_runtime": "launch",
    "privateuse1_runtime": "launch",
    "privateuse1_driver": "launch",
    "runtime": "launch",
    "driver": "launch",
    "cpu_op": "op",
    "operator": "op",
    "python_function": "module",
    "user_annotation": "range",
    "gpu_user_annotation": "device_range",
}
DEVICE = ("kernel", "memcpy", "memset", "profiler_range")
MODULE = "nn.Module: "
#: Kinds of which the name says whether they are a module's call: a frame of the Python stack, or a hook's range.
NAMED = ("module", "range", "device_range")
#: Arguments of an operator or a copy that are kept, by their spelling in the trace in lower case.
KEPT = {
    "input dims": "dims",
    "input shapes": "dims",
    "input type": "types",
    "input strides": "strides",
    "concrete inputs": "concrete",
    "bytes": "bytes",
    "grid": "grid",
}
#: Top-level keys that are read; all others are passed over without being kept.
HEADERS = ("schemaVersion", "deviceProperties", "displayTimeUnit", "distributedInfo")
#: What other tools write, by a top-level key of theirs.
OTHERS = {
    "shared": "a speedscope profile",
    "nodes": "a Chrome CPU profile",
    "stringIds": "an Nsight Systems export",
    "rocprofiler-sdk-tool": "a rocprofv3 result",
    "metricDefinitions": "an Nsight Compute export",
    "config": "",
}
CHUNK = 2**20
LONGEST_NAME = 4096
#: Beyond this many microseconds a time is taken for broken: three thousand years, and ten thousand days a duration.
LATEST_US, LONGEST_US = 1e17, 1e15


@frozen
class Event:
    """Something that took time.

    category: kernel, memcpy, memset, profiler_range, launch, op, module, range or device_range. start_s: since the
    first event of the file [s]; duration_s [s]. thread: process and thread, or device and stream, as the trace has
    them. correlation: ties a kernel to its launch. external_id: ties it to its operator. device, stream: of a kernel.
    args: of an operator, dims, types, strides and concrete as the trace has them, unchecked; bytes of a copy; grid.
    """

    name: str
    category: str
    start_s: float
    duration_s: float
    thread: tuple[str, str]
    correlation: int | None = None
    external_id: int | None = None
    device: str = ""
    stream: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """Where it ends [s]."""
        return self.start_s + self.duration_s


@frozen
class Trace:
    """What was read of a file.

    source: the path. events: in the order of the file. devices: names of the GPUs. seen: events of any kind.
    malformed: events left out because their name, times or arguments are none. warnings: for people.
    """

    source: str
    events: tuple[Event, ...]
    devices: tuple[str, ...] = ()
    seen: int = 0
    malformed: int = 0
    warnings: tuple[str, ...] = ()


class _Broken(Exception):
    """The text cannot be read on; the message says why."""


class _Text:
    """Decompressed, decoded text of a file, a window of it at a time."""

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self.file, self.limits = file, limits
        self.buffer, self.at = "", 0
        self.read_bytes = 0
        self.ended = False
        self.fault = ""
        self.decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        first = file.read(2)
        file.seek(0)
        self.unzip: Any = zlib.decompressobj(31) if first == b"\x1f\x8b" else None
        self.pending = b""

    def more(self, least: int = CHUNK) -> bool:
        """Read on, `least` characters where the file has them; False at its end."""
        parts = [self.buffer[self.at :]]
        got = 0
        while got < least and not self.ended:
            text = self.decode(self._bytes(), self.ended)
            parts.append(text)
            got += len(text)
        self.buffer, self.at = "".join(parts), 0
        return got > 0

    def _bytes(self) -> bytes:
        """The next piece of the file, decompressed; notes why it ends."""
        try:
            data = self._unzipped() if self.unzip is not None else self.file.read(CHUNK)
        except (OSError, zlib.error) as error:
            data, self.ended, self.fault = b"", True, f"the file cannot be read on: {error}"
        if not data and not self.ended and self.unzip is None:
            self.ended = True
        self.read_bytes += len(data)
        if self.read_bytes > self.limits.text_bytes:
            self.ended = True
            self.fault = f"it has more than {self.limits.text_bytes:,} bytes of text, the limit"
        return data

    def _unzipped(self) -> bytes:
        """At most one chunk of decompressed bytes, over several members of a gzip file."""
        while True:
            if self.unzip.eof:
                rest = self.unzip.unused_data or self.file.read(CHUNK)
                if not rest.startswith(b"\x1f\x8b"):
                    self.ended = True
                    return b""
                self.unzip, self.pending = zlib.decompressobj(31), rest
            if not self.pending:
                self.pending = self.unzip.unconsumed_tail or self.file.read(CHUNK)
            if not self.pending:
                self.ended, self.fault = True, "the gzip stream ends early"
                return b""
            data: bytes = self.unzip.decompress(self.pending, CHUNK)
            self.pending = self.unzip.unconsumed_tail
            if data:
                return data


#: Control characters, halves of surrogate pairs and marks that turn the direction of text: they have no place in a
#: name, and a terminal obeys some of them.
_UNSEEMLY = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """Text that can be shown: what cannot becomes a question mark."""
    return _UNSEEMLY.sub("?", text) if _UNSEEMLY.search(text) else text


_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\[\]{}]*')
_IN_STRING = re.compile(r'[^"\\]*')


class _Reader:
    """Values of a JSON text one after the other: one is decoded whole, or passed over without being kept."""

    def __init__(self, text: _Text) -> None:
        self.text = text
        self.decoder = json.JSONDecoder(parse_constant=lambda _: None)

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        text = self.text
        while True:
            found = _SPACE.match(text.buffer, text.at)
            text.at = found.end() if found else text.at
            if text.at < len(text.buffer):
                return text.buffer[text.at]
            if not text.more():
                return ""

    def take(self, wanted: str) -> str:
        """The next character, which must be one of these."""
        letter = self.peek()
        if letter not in wanted or not letter:
            raise _Broken(self._ended() if not letter else f"{letter!r} stands where one of {wanted} must")
        self.text.at += 1
        return letter

    def _ended(self) -> str:
        return self.text.fault or "the JSON ends early"

    def value(self) -> Any:
        """One value, decoded."""
        text = self.text
        self.peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(text.buffer, text.at)
            except RecursionError:
                raise _Broken("a value is nested too deeply") from None
            except json.JSONDecodeError:
                self._grow()
                continue
            except ValueError:
                raise _Broken("a number has too many digits") from None
            # A number that touches the end of the window may go on.
            if end == len(text.buffer) and not isinstance(value, (dict, list, str)) and text.more():
                continue
            text.at = end
            return value

    def _grow(self) -> None:
        """A longer window, twice as long each time so that reading stays linear."""
        have = len(self.text.buffer) - self.text.at
        if have > self.text.limits.value_chars:
            raise _Broken("a value is broken, or longer than the limit")
        if not self.text.more(max(CHUNK, have)):
            raise _Broken(self._ended())

    def skip(self) -> None:
        """Pass over one value, however long."""
        depth = 0
        while True:
            letter = self.peek()
            if not letter:
                raise _Broken(self._ended())
            self.text.at += 1
            if letter == '"':
                self._skip_string()
            elif letter in "[{":
                depth += 1
            elif letter in "]}":
                depth -= 1
            elif depth == 0:
                self._skip_scalar()
            else:
                found = _PLAIN.match(self.text.buffer, self.text.at)
                self.text.at = found.end() if found else self.text.at
            if depth <= 0:
                return

    def _skip_string(self) -> None:
        text = self.text
        while True:
            found = _IN_STRING.match(text.buffer, text.at)
            text.at = found.end() if found else text.at
            if text.at + 1 >= len(text.buffer) and text.buffer[text.at : text.at + 1] != '"' and not text.more():
                raise _Broken(self._ended())
            if text.buffer[text.at : text.at + 1] == '"':
                text.at += 1
                return
            text.at += 2 if text.buffer[text.at : text.at + 1] == "\\" else 0

    def _skip_scalar(self) -> None:
        text = self.text
        while True:
            while text.at < len(text.buffer):
                if text.buffer[text.at] in ",]} \t\r\n":
                    return
                text.at += 1
            if not text.more():
                return

    def items(self) -> Iterator[Any]:
        """The values of the array that comes next."""
        self.take("[")
        if self.peek() == "]":
            self.take("]")
            return
        while True:
            yield self.value()
            if self.take(",]") == "]":
                return
            if self.peek() == "]":  # a comma after the last event, as some writers leave it
                self.take("]")
                return


class _Collector:
    """Turns raw events into ours, and counts what it meets."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.events: list[Event] = []
        self.seen = self.malformed = 0
        self.categories: dict[str, int] = {}
        self.headers: dict[str, Any] = {}
        self.keys: list[str] = []
        self.origin_us: float | None = None

    def read(self, reader: _Reader) -> None:
        """Everything in the file."""
        opening = reader.peek()
        if opening == "[":
            self.array(reader)
            return
        reader.take("{")
        if reader.peek() == "}":
            return
        while True:
            key = reader.value()
            if not isinstance(key, str):
                raise _Broken("a key is no text")
            reader.take(":")
            self.keys = [*self.keys, plain(key[:80])] if len(self.keys) < 40 else self.keys
            if key == "traceEvents" and reader.peek() == "[":
                self.array(reader)
            elif key in HEADERS:
                self.headers[key] = reader.value()
            else:
                reader.skip()
            if reader.take(",}") == "}":
                return

    def array(self, reader: _Reader) -> None:
        """The events."""
        self.keys.append("traceEvents")
        for raw in reader.items():
            self.seen += 1
            self.add(raw)
            if len(self.events) >= self.limits.events:
                raise _Broken(f"it has more than {self.limits.events:,} events to keep, the limit")

    def add(self, raw: Any) -> None:
        """One event, if it is of a kind that counts."""
        if not isinstance(raw, dict):
            self.malformed += 1
            return
        if raw.get("ph") != "X":
            return
        name = raw.get("cat")
        told = plain(name[:80]).lower() if isinstance(name, str) else ""
        if len(self.categories) < 64 or told in self.categories:
            self.categories[told] = self.categories.get(told, 0) + 1
        category = CATEGORIES.get(told)
        if category in NAMED:
            category = _of_module(category, str(raw.get("name")).startswith(MODULE))
        if category is None:
            return
        event = self.event(raw, category)
        if event is None:
            self.malformed += 1
        else:
            self.events.append(event)

    def event(self, raw: dict[str, Any], category: str) -> Event | None:
        """One event of ours; None where its name or times are none."""
        name, start, duration = raw.get("name"), _number(raw.get("ts")), _number(raw.get("dur", 0))
        if not isinstance(name, str) or start is None or duration is None:
            return None
        if not (abs(start) < LATEST_US and 0 <= duration < LONGEST_US):
            return None
        if self.origin_us is None:
            self.origin_us = start
        given = raw.get("args")
        args = {str(key).lower(): value for key, value in given.items()} if isinstance(given, dict) else {}
        return Event(
            sys.intern(plain(name[:LONGEST_NAME])),
            category,
            (start - self.origin_us) * 1e-6,
            duration * 1e-6,
            (_word(raw.get("pid")), _word(raw.get("tid"))),
            _whole(args.get("correlation")),
            _whole(args.get("external id")),
            _word(args.get("device", raw.get("pid"))) if category in DEVICE else "",
            _word(args.get("stream", raw.get("tid"))) if category in DEVICE else "",
            {KEPT[key]: value for key, value in args.items() if key in KEPT and _keeps(category, key)},
        )


def _of_module(category: str, named: bool) -> str | None:
    """The category of a frame or range, by whether it is named as a module. None where it does not count.

    Other frames say nothing here; a module's range on the device repeats that on the host.
    """
    if named:
        return None if category == "device_range" else "module"
    return None if category == "module" else category


def _keeps(category: str, key: str) -> bool:
    return category in ("op", "range") if key not in ("bytes", "grid") else category in DEVICE


def _number(value: Any) -> float | None:
    """A finite number; None for anything else, text with digits in it included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _whole(value: Any) -> int | None:
    """An identifier; None where it is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    fine = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64
    return value if fine else None


def _word(value: Any) -> str:
    """A process, thread, device or stream as text."""
    return sys.intern(plain(str(value)[:80])) if isinstance(value, (int, str)) and _small(value) else ""


def _small(value: int | str) -> bool:
    return isinstance(value, str) or abs(value) < 2**64


def read_trace(path: str, limits: Limits | None = None) -> Trace:
    """Read a trace: {"traceEvents": […]} or a bare list, plain or gzip (told by its first bytes, not by its name).

    Truncated or broken text gives what was read before it and a warning. Raises TraceError where nothing is usable:
    no such file, no JSON, no events of a known category.
    """
    limits = limits or Limits()
    collector = _Collector(limits)
    warnings = []
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise TraceError(f"{path} is no file")
        with open(path, "rb") as file:
            text = _Text(file, limits)
            try:
                collector.read(_Reader(text))
            except _Broken as fault:
                warnings.append(
                    f"{path} is not whole: {fault}, after event {collector.seen:,}; what came before is used"
                )
    except FileNotFoundError:
        raise TraceError(f"no such trace: {path}") from None
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from None
    _check_usable(path, collector, warnings)
    if collector.malformed:
        warnings.append(f"{collector.malformed:,} events without a usable name or time are left out")
    return Trace(
        path,
        tuple(collector.events),
        _device_names(collector.headers),
        collector.seen,
        collector.malformed,
        tuple(warnings),
    )


def _check_usable(path: str, found: _Collector, warnings: list[str]) -> None:
    """Raise TraceError, with what the file is instead, where no event counts."""
    if found.events:
        return
    if found.categories:
        told = ", ".join(repr(name) if name else "none" for name in list(found.categories)[:8])
        raise TraceError(
            f"{path} has {found.seen:,} events of an unknown schema, with the categories {told}; "
            f"accepted are those of Kineto: kernel, cuda_runtime, cpu_op, user_annotation and the like"
        )
    if found.malformed:
        raise TraceError(f"{path}: none of {found.seen:,} events has a name, a time and a duration")
    other = next((OTHERS[key] for key in found.keys if OTHERS.get(key)), "")
    if other:
        raise TraceError(f"{path} is {other}; accepted is Kineto or Chrome JSON with traceEvents")
    if warnings and not found.seen:
        raise TraceError(
            f"{path} is no trace that can be read: {warnings[0].split(': ', 1)[-1].split(', after event')[0]}"
        )
    keys = f", only {', '.join(found.keys[:8])}" if found.keys and "traceEvents" not in found.keys else ""
    raise TraceError(f"{path} has no events with a duration{keys}; accepted is Kineto or Chrome JSON with traceEvents")


def _device_names(headers: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the GPUs that the trace tells of."""
    given = headers.get("deviceProperties")
    rows = given if isinstance(given, list) else []
    names = [row.get("name") for row in rows[:64] if isinstance(row, dict)]
    return tuple(plain(name[:200]) for name in names if isinstance(name, str))
