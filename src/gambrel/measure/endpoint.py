"""One OpenAI-compatible endpoint: its address, and bounded requests whose events are stamped as they are read.

Everything that a server may do wrong ends as one line about one request. What it sends is bounded in bytes and time,
cleaned before it is shown, and the key is cut out of it. Redirects are not followed, proxies are not used.
"""

from __future__ import annotations

import asyncio
import json
import time
from urllib.parse import urlsplit

from gambrel.measure.latency import Arrival, Exchange
from gambrel.measure.sse import Chunk, Decoder, StreamError, error_text, read_chunk, whole
from gambrel.types import GambrelError
from gambrel.values import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
#: Of an answer that is not a stream, such as a list of models or metrics [byte].
MAX_PAGE_BYTES = 4 << 20
#: How long a stream may take to end after its own mark of the end [s].
TAIL_S = 1.0
BASE = "is the URL the base of the API, such as http://localhost:8000/v1?"


class ProbeError(GambrelError):
    """An endpoint that cannot be measured: what it did, and what to do."""


@frozen
class Limits:
    """Bounds. read_s: without a byte [s]. connect_s [s]. stream_bytes: of one streamed answer."""

    read_s: float = 60.0
    connect_s: float = 10.0
    stream_bytes: int = 64 << 20


@frozen
class Page:
    """A short answer. status: of HTTP. error: why there is none, "" where there is one."""

    status: int = 0
    text: str = ""
    error: str = ""

    def json(self) -> Any:
        """Its content; None where it is no JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


def load_httpx() -> Any:
    """The HTTP client library, loaded when it is used. Raises ProbeError with what to install."""
    try:
        import httpx2
    except ImportError:
        raise ProbeError("this needs httpx2: pip install 'gambrel[probe]'") from None
    return httpx2


def check_url(text: str) -> str:
    """The base address without a slash at its end. Raises ProbeError for what is not a plain http or https address."""
    told = "accepted is http://HOST[:PORT]/PATH or https://…, such as http://localhost:8000/v1"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ProbeError(f"the URL cannot be read; {told}") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ProbeError(f"a URL with a name, password, ? or #; {told} (a key is taken from OPENAI_API_KEY)")
    if parts.scheme not in ("http", "https") or not parts.hostname or any(c <= " " or c == "\x7f" for c in text):
        raise ProbeError(f"{plain(text)!r} is not an address of an endpoint; {told}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    for end in (PATHS["chat"], PATHS["completions"]):
        path = path.removesuffix(end)
    return f"{parts.scheme}://{host}{f':{port}' if port is not None else ''}{path}"


def plain(text: str, secret: str = "", limit: int = 160) -> str:
    """Text of a stranger as one short line: no control characters, no secret."""
    text = text.replace(secret, "…") if secret else text
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 8 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


class _Reading:
    """What a stream has said so far."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.usage: Mapping[str, Any] = {}
        self.timings: Mapping[str, Any] = {}
        self.fingerprint = self.error = ""
        self.finished = self.done = False
        self.broken = 0
        self._counted: int | None = 0

    def take(self, chunk: Chunk, at_s: float) -> None:
        """One event that was read at this time."""
        if chunk.error:
            self.broken += 1
            self.error = self.error or chunk.error
            return
        self.done = self.done or chunk.done
        self.finished = self.finished or chunk.finished
        self.usage, self.timings = chunk.usage or self.usage, chunk.timings or self.timings
        self.fingerprint = chunk.fingerprint or self.fingerprint
        if chunk.content:
            self.arrivals.append(Arrival(at_s, chunk.tokens if chunk.tokens is not None else self._newly(chunk)))

    def _newly(self, chunk: Chunk) -> int | None:
        """Tokens since the last event with text, where each event tells the usage so far."""
        total, before = whole(chunk.usage.get("completion_tokens")), self._counted
        self._counted = total
        return total - before if total is not None and before is not None and total >= before else None

    def verdict(self) -> str:
        """What is wrong with the whole answer, "" where nothing is."""
        heard = f"after {len(self.arrivals)} events of text"
        if self.error:
            return self.error + (f", and {self.broken - 1} more" if self.broken > 1 else "")
        if not (self.done or self.finished):
            return f"the stream stopped {heard}, without a reason to finish or [DONE]"
        if not self.arrivals:
            return "an answer without text"
        if not whole(self.usage.get("completion_tokens")) or not whole(self.usage.get("prompt_tokens")):
            return "an answer without a usage field (stream_options.include_usage was sent), so its tokens are unknown"
        return ""


class Endpoint:
    """A client of one endpoint with connections of its own; use it in `async with`.

    clock: seconds, for the stamps. deadline_s: on the event loop's clock; no request outlives it.
    """

    def __init__(self, base: str, limits: Limits, deadline_s: float, key: str = "", clients: int = 1) -> None:
        self.base, self.limits, self.deadline_s, self.key = base, limits, deadline_s, key
        self.clock: Callable[[], float] = time.perf_counter
        self.lib = load_httpx()
        headers = {"Accept-Encoding": "identity", "User-Agent": "gambrel"}
        if not all("!" <= c <= "~" for c in key):
            raise ProbeError("OPENAI_API_KEY holds characters that no key can, such as spaces")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        pool = self.lib.Limits(max_connections=clients + 1, max_keepalive_connections=clients + 1)
        timeout = self.lib.Timeout(limits.read_s, connect=limits.connect_s, pool=None)
        self.http = self.lib.AsyncClient(
            headers=headers, limits=pool, timeout=timeout, trust_env=False, follow_redirects=False
        )

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    @property
    def root(self) -> str:
        """The address of what stands beside the API: /metrics, /version."""
        return self.base.removesuffix("/v1")

    def left_s(self) -> float:
        """Until the deadline [s]."""
        return self.deadline_s - asyncio.get_running_loop().time()

    async def get(self, url: str) -> Page:
        """A short page; asked for once more where a kept connection was closed before an answer."""
        try:
            return await self._get(url)
        except self.lib.RemoteProtocolError:
            pass
        except Exception as error:
            return Page(error=self._failure(error, 0))
        try:
            return await self._get(url)
        except Exception as error:
            return Page(error=self._failure(error, 0))

    async def _get(self, url: str) -> Page:
        async with asyncio.timeout_at(self.deadline_s), self.http.stream("GET", url) as response:
            text = await self._page(response)
            return Page(response.status_code, text, self._refusal(response, text))

    async def complete(self, client: int, kind: str, payload: Mapping[str, Any]) -> Exchange:
        """One streamed request.

        It is sent once more after a 429 that says when to come back, if that is before the deadline, and where a kept
        connection was closed before a byte of an answer, as servers do at any moment.
        """
        body = json.dumps(payload).encode()
        exchange, wait_s = await self._once(client, kind, body)
        if wait_s is None or wait_s > self.left_s():
            return exchange
        await asyncio.sleep(wait_s)
        again, _ = await self._once(client, kind, body)
        return Exchange(**{**vars(again), "retries": 1})

    async def _once(self, client: int, kind: str, body: bytes) -> tuple[Exchange, float | None]:
        reading, status, error, wait_s = _Reading(), 0, "", None
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        sent_s = self.clock()
        try:
            async with asyncio.timeout_at(self.deadline_s) as limit:
                request = self.http.stream("POST", self.base + PATHS[kind], content=body, headers=headers)
                async with request as response:
                    status = response.status_code
                    if status == 200 and _type(response) == "text/event-stream":
                        await self._stream(response, reading, limit)
                    else:
                        error = self._refusal(response, await self._page(response)) or _no_stream(response)
                        wait_s = _retry_after_s(response) if status == 429 else None
        except Exception as problem:
            error = "" if reading.done else self._failure(problem, len(reading.arrivals))
            wait_s = 0.0 if status == 0 and isinstance(problem, self.lib.RemoteProtocolError) else None
        usage = reading.usage
        details = usage.get("prompt_tokens_details")
        exchange = Exchange(
            client,
            sent_s,
            tuple(reading.arrivals),
            whole(usage.get("prompt_tokens")),
            whole(usage.get("completion_tokens")),
            whole(details.get("cached_tokens")) if isinstance(details, dict) else None,
            plain(error or reading.verdict(), self.key, 400),
            status,
            timings=reading.timings,
            fingerprint=plain(reading.fingerprint, self.key, 60),
        )
        return exchange, wait_s

    async def _stream(self, response: Any, reading: _Reading, limit: asyncio.Timeout) -> None:
        """Stamp and read events until the end; the bytes after the mark of the end have a second to come."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise StreamError("a compressed stream, though none was asked for: its events have no times of their own")
        decoder, size = Decoder(), 0
        async for data in response.aiter_raw():
            at_s = self.clock()
            size += len(data)
            if size > self.limits.stream_bytes:
                raise StreamError(f"an answer of more than {self.limits.stream_bytes:,} bytes; reading stopped")
            for event in decoder.feed(data):
                if not reading.done:
                    reading.take(read_chunk(event), at_s)
            if reading.done:
                limit.reschedule(min(self.deadline_s, asyncio.get_running_loop().time() + TAIL_S))
        for event in decoder.close() if not reading.done else ():
            reading.take(read_chunk(event), self.clock())

    async def _page(self, response: Any) -> str:
        if response.headers.get("content-encoding", "identity") != "identity":
            return ""
        parts, size = [], 0
        async for data in response.aiter_raw():
            parts.append(data)
            size += len(data)
            if size > MAX_PAGE_BYTES:
                raise StreamError(f"an answer of more than {MAX_PAGE_BYTES:,} bytes; reading stopped")
        return b"".join(parts).decode("utf-8", "replace")

    def _refusal(self, response: Any, text: str) -> str:
        """What a status or a page of HTML says; "" for a good answer."""
        status = response.status_code
        if 300 <= status < 400:
            where = plain(response.headers.get("location", "another address"), self.key)
            return f"HTTP {status}: a redirect to {where}, which is not followed; give that address"
        if _type(response) == "text/html":
            return f"HTTP {status}: a page of HTML, not an API's answer; {BASE}"
        if status == 200:
            return ""
        page = Page(status, text).json()
        told = plain(error_text(page) if isinstance(page, dict) else text, self.key)
        hint = "; the key is taken from OPENAI_API_KEY" if status in (401, 403) else ""
        hint = f"; {BASE}" if status in (404, 405) else hint
        return f"HTTP {status} {response.reason_phrase}{f': {told}' if told else ''}{hint}"

    def _failure(self, error: Exception, events: int) -> str:
        """One line for what went wrong on the way."""
        lib = self.lib
        heard = f" after {events} events of text" if events else ""
        if isinstance(error, TimeoutError):
            return f"not finished within --max-time{heard}"
        if isinstance(error, lib.ConnectTimeout):
            return f"no connection within {self.limits.connect_s:g} s"
        if isinstance(error, lib.ConnectError):
            return f"no connection: {plain(str(error), self.key)}"
        if isinstance(error, lib.TimeoutException):
            return f"no byte for {self.limits.read_s:g} s (--read-timeout){heard}"
        if isinstance(error, lib.TransportError):
            return f"the connection broke{heard}: {plain(str(error) or type(error).__name__, self.key)}"
        if isinstance(error, (StreamError, lib.HTTPError, lib.InvalidURL, OSError)):
            return plain(str(error), self.key)
        raise error


def _type(response: Any) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _no_stream(response: Any) -> str:
    return f"an answer of type {plain(_type(response)) or 'none'}, not an event stream; only streams have token times"


def _retry_after_s(response: Any) -> float | None:
    """Seconds that a 429 asks to wait, from a number or a date; None where it does not say."""
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    text = response.headers.get("retry-after", "").strip()
    try:
        wait_s = float(text)
    except ValueError:
        try:
            wait_s = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(wait_s, 0.0) if wait_s == wait_s and abs(wait_s) < 1e9 else None
