"""Reading a config.json with nothing guessed: every access names its key, its type and what is accepted."""

from __future__ import annotations

from gambrel.types import GambrelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

#: Largest whole number that a config may hold; anything above is a broken file.
HIGHEST = 10**9


class ConfigError(GambrelError):
    """A config that cannot be read as a model; the message names the key, its value and what is accepted."""


class _Missing:
    """Stands for "no default: the key must be there"."""


REQUIRED = _Missing()


class Fields:
    """The keys of one config (or of a nested part of it), each remembered once it was read.

    `names` maps the canonical key to the spellings that this family uses; `defaults` holds the family's own class
    defaults for keys that a config may leave out.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        names: Mapping[str, Sequence[str]] | None = None,
        defaults: Mapping[str, Any] | None = None,
        where: str = "",
    ) -> None:
        self.data = data
        self.names = names or {}
        self.defaults = defaults or {}
        self.where = where
        self.used: set[str] = set()

    def label(self, key: str) -> str:
        """The key as the file spells it."""
        return f"{self.where}{key}"

    def raw(self, key: str, default: Any = REQUIRED) -> Any:
        """The value under any spelling; null counts as absent. Two spellings that disagree are an error."""
        found: dict[str, Any] = {}
        for spelling in self.names.get(key) or (key,):
            if spelling in self.data:
                self.used.add(spelling)
                if self.data[spelling] is not None:
                    found[spelling] = self.data[spelling]
        if not found:
            return self._absent(key, default)
        if len(found) == 1:
            return next(iter(found.values()))
        values = list(found.values())
        if any(value != values[0] for value in values):
            told = ", ".join(f"{self.label(k)} = {v!r}" for k, v in found.items())
            raise ConfigError(f"contradictory config: {told} mean the same thing")
        return values[0]

    def _absent(self, key: str, default: Any) -> Any:
        if key in self.defaults:
            return self.defaults[key]
        if default is not REQUIRED:
            return default
        spellings = " or ".join(self.label(s) for s in self.names.get(key, (key,)))
        strangers = [k for k in self.data if k not in self.used and not _known(k)]
        hint = f"; keys that this family does not have: {', '.join(sorted(strangers)[:8])}" if strangers else ""
        raise ConfigError(f"missing key {spellings}{hint}")

    def has(self, key: str) -> bool:
        """Whether any spelling is there and not null."""
        return any(self.data.get(spelling) is not None for spelling in self.names.get(key, (key,)))

    def whole(self, key: str, default: Any = REQUIRED, low: int = 1, high: int = HIGHEST) -> int:
        """A whole number from `low` to `high`."""
        value = self.raw(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self.label(key)} is {_show(value)}; accepted is a whole number")
        if not low <= value <= high:
            raise ConfigError(f"{self.label(key)} is {_show(value)}; accepted is {low} to {high}")
        return value

    def maybe(self, key: str, low: int = 1, high: int = HIGHEST) -> int | None:
        """A whole number, or None where the key is absent or null."""
        return None if self.raw(key, None) is None else self.whole(key, low=low, high=high)

    def flag(self, key: str, default: Any = REQUIRED) -> bool:
        """true or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.label(key)} is {_show(value)}; accepted is true or false")
        return value

    def text(self, key: str, default: Any = REQUIRED) -> str:
        """A string."""
        value = self.raw(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.label(key)} is {_show(value)}; accepted is a string")
        return value

    def items(self, key: str, length: int | None = None) -> list[Any]:
        """A list, of the given length where one is given; empty where the key is absent."""
        value = self.raw(key, None)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ConfigError(f"{self.label(key)} is {_show(value)}; accepted is a list")
        if length is not None and len(value) != length:
            raise ConfigError(f"{self.label(key)} has {len(value)} entries for {length} layers")
        return value

    def choice(self, key: str, value: Any, accepted: Sequence[Any]) -> Any:
        """The value if it is one of those accepted."""
        if value not in accepted:
            raise ConfigError(f"{self.label(key)} is {_show(value)}; accepted is {', '.join(map(str, accepted))}")
        return value

    def nested(self, key: str, **options: Any) -> Fields:
        """A config inside the config."""
        value = self.raw(key)
        if not isinstance(value, dict):
            raise ConfigError(f"{self.label(key)} is {_show(value)}; accepted is an object")
        return Fields(value, where=f"{self.where}{key}.", **options)

    def unread(self) -> list[str]:
        """Keys that nobody read, that say something, and that are not known to be free of cost."""
        return sorted(self.label(k) for k, v in self.data.items() if v and k not in self.used and not _known(k))


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _known(key: str) -> bool:
    from gambrel.model.ignorable import ignorable

    return ignorable(key)
