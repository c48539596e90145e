"""Server-sent events read as they arrive, and what an OpenAI-compatible stream says in them.

Chunks may be cut anywhere, inside a line end or a character too. Lines end in LF, CR or CRLF; a line that begins with a
colon is a comment. Format: the HTML standard, "9.2.6 Interpreting an event stream".
"""

from __future__ import annotations

import json
from dataclasses import field

from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: No event of a token stream comes near this; more without an end is an attack or another protocol [byte].
MAX_EVENT_BYTES = 1 << 20
#: Where streams put generated text: answers, thoughts (two spellings) and refusals are all tokens of the model.
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class StreamError(GambrelError):
    """A stream that breaks its protocol or its bounds."""


@frozen
class Event:
    """One event: its name ("message" where none is given) and its data lines, joined."""

    name: str
    data: str


@frozen
class Chunk:
    """What one event of a completion stream says.

    content: it holds generated text. tokens: how many, where the event lists them; None where it does not.
    usage: token counts so far. timings: the server's own times (llama.cpp). finished: it gives a reason to finish.
    done: the mark at the end. error: what is wrong with it, "" where nothing is. fingerprint: of the server.
    """

    content: bool = False
    tokens: int | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    finished: bool = False
    done: bool = False
    error: str = ""
    fingerprint: str = ""


class Decoder:
    """Bytes in, whole events out. Raises StreamError for an event beyond `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.comments = 0
        self._rest: list[bytes] = []
        self._after_cr = False
        self._begun = False
        self._name = ""
        self._data: list[str] = []
        self._size = self._open = 0  # bytes of the event's whole lines, and of the line begun

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this chunk completes."""
        if self._after_cr and chunk:
            chunk = chunk[1:] if chunk[:1] == b"\n" else chunk
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        *lines, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events = []
        for line in lines:
            event = self._line(b"".join([*self._rest, line]))
            self._rest, self._open = [], 0
            if event is not None:
                events.append(event)
        self._rest.append(rest)
        self._open += len(rest)
        self._check(self._open)
        return events

    def close(self) -> list[Event]:
        """What was begun when the stream ended; the standard drops it, here it is judged by its content."""
        line = b"".join(self._rest)
        self._rest, self._open = [], 0
        events = [self._line(line), self._line(b"")] if line else [self._line(b"")]
        return [event for event in events if event is not None]

    def _check(self, more: int = 0) -> None:
        if self._size + more > self.max_bytes:
            raise StreamError(f"an event of more than {self.max_bytes:,} bytes")

    def _line(self, raw: bytes) -> Event | None:
        line = raw.decode("utf-8", "replace")
        if not self._begun:
            line, self._begun = line.removeprefix("\ufeff"), True
        if not line:
            return self._dispatch()
        self._size += len(raw)
        self._check()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name:
            self.comments += 1
        elif name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        return None

    def _dispatch(self) -> Event | None:
        name, data = self._name, self._data
        self._name, self._data, self._size = "", [], 0
        return Event(name or "message", "\n".join(data)) if data else None


def read_chunk(event: Event) -> Chunk:
    """What an event of a stream of /completions or /chat/completions says; never raises."""
    if event.data.strip() == "[DONE]":
        return Chunk(done=True)
    try:
        data = json.loads(event.data)
    except (ValueError, RecursionError):
        return Chunk(error="an event that is not JSON")
    if not isinstance(data, dict):
        return Chunk(error="an event that is not a JSON object")
    if event.name == "error" or data.get("error"):
        return Chunk(error=f"an error event: {error_text(data)}")
    choice = _first(data.get("choices"))
    delta = _table(choice.get("delta"))
    content = bool(choice.get("text")) or any(delta.get(key) for key in (*_TEXTS, "tool_calls", "function_call"))
    ids = choice.get("token_ids")
    return Chunk(
        content,
        len(ids) if content and isinstance(ids, list) else None,
        _table(data.get("usage")),
        _table(data.get("timings")),
        bool(choice.get("finish_reason")),
        fingerprint=str(data.get("system_fingerprint") or ""),
    )


def error_text(data: Mapping[str, Any]) -> str:
    """The message of an error object, in any of the shapes that servers use."""
    inner = data.get("error", data)
    if isinstance(inner, dict):
        inner = inner.get("message") or inner.get("detail") or inner.get("error_type") or inner
    return str(inner)


def whole(value: Any) -> int | None:
    """A count as servers give it; None for anything that is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12 else None


def _first(value: Any) -> dict[str, Any]:
    return _table(value[0]) if isinstance(value, list) and value else {}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
