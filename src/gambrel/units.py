"""Quantities at the edges, and arithmetic that serves one number or a whole grid.

Inside the package everything is in SI base units (byte, flop, s, token); prefixes exist only in the
strings that this module reads and writes. It is the only place with 1e9 and 2**30.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    #: One number or a NumPy array of them. A scalar stays an exact Python integer where it is one.
    Num = Any
else:
    Num = object

SI = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
SUBUNITS = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}

#: Spellings of each unit that `parse` accepts.
SPELLINGS = {
    "byte": ("B", "byte", "bytes"),
    "byte/s": ("B/s", "byte/s", "bytes/s", "Bps"),
    "flop/s": ("FLOP/s", "FLOPS", "FLOPs/s", "flop/s", "OP/s", "OPS"),
    "s": ("s", "sec"),
    "W": ("W",),
    "token": ("", "token", "tokens"),
    "count": ("",),
    "1": ("",),
}


class UnitError(ValueError):
    """A quantity that cannot be read; the message says what is accepted."""


def parse(text: str | float, unit: str) -> float:
    """Read a quantity such as "3.35TB/s", "80GB", "64 GiB", "3.43ms", "989e12" in SI base units.

    `unit` is one of byte, byte/s, flop/s, s, W, token, 1. A bare number is in that unit already; for
    tokens K means 1024, as in "8K" and "128K". Raises UnitError with an example of what is accepted.
    """
    if isinstance(text, bool):
        raise UnitError(f"{text!r} is not a quantity in {unit}")
    value = text if isinstance(text, (int, float)) else _parse_text(text.strip(), unit)
    if not 0 <= value < float("inf"):
        raise UnitError(f"{text!r} is not a finite, non-negative quantity in {unit}")
    return value


def _parse_text(text: str, unit: str) -> float:
    cut = len(text)
    while cut and not _is_number(text[:cut]):
        cut -= 1
    number, suffix = text[:cut], text[cut:].strip()
    scale = _scales(unit).get(suffix) if cut else None
    if scale is None and suffix == "%" and unit == "1":
        scale = 0.01
    if scale is None:
        raise UnitError(f"cannot read {text!r} as a quantity in {unit}; write for example {_example(unit)}")
    try:
        return int(number) * scale
    except ValueError:
        value = float(number) * scale
        return int(value) if unit in ("byte", "token") and value.is_integer() else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text[-1] in "0123456789."


def _scales(unit: str) -> dict[str, float]:
    prefixes: dict[str, float] = dict(SUBUNITS) if unit == "s" else {**SI, **BINARY}
    if unit == "token":
        prefixes = {"": 1, "k": 1024, "K": 1024, "M": 1024**2}
    if unit == "count":
        prefixes = {**SI, "B": 10**9}
    if unit == "1":
        prefixes = {"": 1}
    table = {prefix + name: scale for name in SPELLINGS[unit] for prefix, scale in prefixes.items()}
    table[""] = 1
    return table


def _example(unit: str) -> str:
    return {
        "byte": "80GB, 64GiB or 80e9",
        "byte/s": "3.35TB/s or 3.35e12",
        "flop/s": "989TFLOP/s or 989e12",
        "s": "3.43ms or 0.00343",
        "W": "700W",
        "token": "8192, 8K or 128K",
        "count": "15T, 300B or 15e12",
        "1": "0.9 or 90%",
    }[unit]


# Formatting -----------------------------------------------------------------------------------


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """A value with an SI prefix: si(15.01e9, "FLOP") is "15.0 GFLOP"."""
    for prefix, scale in (("E", 10**18), ("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if abs(value) >= scale * (1 - 0.5 * 10.0**-digits):
            return f"{significant(value / scale, digits)} {prefix}{unit}".rstrip()
    return f"{significant(value, digits)} {unit}".rstrip()


def significant(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, never in exponent form: 15.0, 0.0123, 1,234."""
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if magnitude == 0:
        text = f"{value:.{digits}g}"
        if abs(float(text)) >= 1:
            return f"{value:.{digits - 1}f}"
        return f"{value:.{digits + 6}f}".rstrip("0") if "e" in text else text
    rounded = f"{value:,.{max(digits - magnitude, 0)}f}"
    return rounded


def binary(value: float) -> str:
    """Bytes with a binary prefix, as KV caches are given: 1.00 GiB, 128 KiB."""
    for prefix, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= scale:
            return f"{significant(value / scale)} {prefix}"
    return f"{significant(value)} B"


def gigabytes(value: float) -> str:
    """Bytes in decimal GB with two digits after the point, so that columns of them add up: 16.06 GB."""
    return f"{value / 10**9:,.2f} GB"


def duration(seconds: float) -> str:
    """A time with three significant digits in the unit that suits it: 4.80 ms, 6.40 s, 2.5 h."""
    if seconds >= 2 * 3600:
        return f"{significant(seconds / 3600)} h"
    for suffix, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale * 0.9995:
            return f"{significant(seconds / scale)} {suffix}"
    return f"{significant(seconds / 1e-9)} ns" if seconds else "0 s"


def count(value: float) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}"


def parameters(value: float) -> str:
    """A parameter count as people write it: 8.03 B, 494 M."""
    for suffix, scale in (("T", 10**12), ("B", 10**9)):
        if value >= scale * 0.9995:
            return f"{significant(value / scale)} {suffix}"
    return f"{significant(value / 10**6)} M"


# Scalar or grid -------------------------------------------------------------------------------


def is_grid(value: Num) -> bool:
    """Whether a value is an array; NumPy itself is not imported to find out."""
    return hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0


def number(value: Num) -> Num:
    """A scalar as an exact Python number, an array or a list as float64 (int64 would overflow in silence)."""
    if isinstance(value, (int, float)):
        return value
    import numpy as np

    array = np.asarray(value, dtype=np.float64)
    return array if array.ndim else array.item()


def minimum(a: Num, b: Num) -> Num:
    """The smaller of two, element by element where either is a grid."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a if a < b else b
    import numpy as np

    return np.minimum(a, b)


def maximum(a: Num, b: Num) -> Num:
    """The larger of two, element by element where either is a grid."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a if a > b else b
    import numpy as np

    return np.maximum(a, b)


def where(condition: Num, yes: Num, no: Num) -> Num:
    """`yes` where the condition holds, else `no`; only the chosen value is returned for a scalar."""
    if isinstance(condition, bool):
        return yes if condition else no
    import numpy as np

    return np.where(condition, yes, no)


def ceil_div(a: int, b: int) -> int:
    """Integer division rounded up."""
    return -(-a // b)


def total(values: Iterable[Num]) -> Num:
    """The sum without touching any operand in place; exact zeros are skipped so that a grid is not copied for them."""
    result: Num = 0
    for value in values:
        if isinstance(value, (int, float)) and value == 0:
            continue
        result = value if isinstance(result, int) and result == 0 else result + value
    return result


def share(amount: Num, ways: int) -> Num:
    """An amount divided over `ways` devices; exact integers stay exact where they divide."""
    if ways == 1:
        return amount
    if isinstance(amount, int) and amount % ways == 0:
        return amount // ways
    return amount / ways
