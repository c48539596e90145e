"""Reading a file that somebody else wrote: never more than a stated number of bytes, plain or gzip."""

from __future__ import annotations

from gambrel.types import GambrelError

#: The largest file that is read, and the most that a gzip file may unpack to [byte].
MOST_BYTES = 64 * 2**20
GZIP = b"\x1f\x8b"
#: The most characters of a wrong value that a message repeats.
SHOWN = 60


class FileError(GambrelError):
    """A file of another tool that cannot be used; the message names the file and what is wrong with it."""


def read_text(path: str, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file, unpacked where its first bytes are gzip's. Raises FileError, also for too much or no text."""
    try:
        with open(path, "rb") as file:
            data = file.read(most_bytes + 1)
        if data.startswith(GZIP):
            data = _unpacked(path, most_bytes)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise FileError(f"cannot read {path}: {error}") from None
    if len(data) > most_bytes:
        raise FileError(f"{path} holds more than {most_bytes // 2**20} MiB, the limit")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileError(f"{path} is not UTF-8 text") from None
    if not text.strip():
        raise FileError(f"{path} is empty")
    return text


def _unpacked(path: str, most_bytes: int) -> bytes:
    import gzip
    import zlib

    try:
        with gzip.open(path) as file:
            return file.read(most_bytes + 1)
    except (EOFError, zlib.error) as error:
        raise FileError(f"{path} is a broken gzip file: {error}") from None


def shown(value: object) -> str:
    """A wrong value for a message: short, on one line, without control characters."""
    kept = repr(value)[: SHOWN + 1]
    plain = "".join(char if char.isprintable() else "?" for char in kept)
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}…"


def plain_text(text: str) -> str:
    """Text of a file for people: no control characters, and of a path only its last part."""
    kept = "".join(char for char in text[:400] if char.isprintable()).strip()
    parts = kept.replace("\\", "/").rstrip("/").split("/")
    is_path = kept[:1] in ("/", ".", "~") or kept[1:3] in (":\\", ":/") or len(parts) > 2 or "://" in kept
    return (parts[-1] if is_path else kept)[:120]
