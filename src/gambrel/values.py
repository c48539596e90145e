"""Frozen dataclasses whose methods are shared rather than generated.

dataclass() writes and compiles six methods for each class, a third of a millisecond a class, and a report builds some
forty classes before its first line. The methods below do the same for every class; the rest (fields, defaults,
inheritance, replace) is the standard library's.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypeVar, dataclass_transform

    T = TypeVar("T")

    @dataclass_transform(frozen_default=True)
    def frozen(cls: type[T]) -> type[T]:
        """Make a class a frozen dataclass."""
        return cls

else:

    def frozen(cls):
        """Make a class a frozen dataclass."""
        for method in (__init__, __setattr__, __delattr__, __eq__, __hash__, __repr__):
            if method.__name__ not in vars(cls):
                setattr(cls, method.__name__, method)
        return dataclass(init=False, eq=False, repr=False)(cls)


def __init__(self: Any, *args: Any, **given: Any) -> None:
    fields = type(self).__dataclass_fields__
    values = self.__dict__  # __setattr__ refuses
    values.update(zip(fields, args, strict=False))
    values.update(given)
    once = len(values) == len(args) + len(given)
    if len(values) < len(fields):
        for name, field in fields.items():
            if name not in values:
                values[name] = field.default if field.default is not MISSING else _default(self, field)
    if not once or len(values) > len(fields):
        raise TypeError(f"{type(self).__name__} takes {', '.join(fields)}, each once")
    if hasattr(self, "__post_init__"):
        self.__post_init__()


def _default(self: Any, field: Any) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    raise TypeError(f"{type(self).__name__} needs {field.name}")


def __setattr__(self: Any, name: str, value: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _fields(self: Any) -> tuple[Any, ...]:
    return tuple(map(self.__dict__.get, type(self).__dataclass_fields__))


def __eq__(self: Any, other: object) -> bool:
    return _fields(self) == _fields(other) if type(self) is type(other) else NotImplemented


def __hash__(self: Any) -> int:
    return hash((type(self), _fields(self)))


def __repr__(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__dataclass_fields__)
    return f"{type(self).__name__}({shown})"
