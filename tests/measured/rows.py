"""A measured row beside the bound that gambrel gives for it, and distributions of bound / measured."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from gambrel import load_device


@dataclass(frozen=True)
class Row:
    """gpu, kind, size: what it is grouped by. text: the row in words. bound_s, measured_s: seconds of the same thing
    (of one token, where a throughput was published). aside: the rule by which it is not compared, "" where it is.
    fits_l2: all its operands fit in the L2 cache. expected_s: of a MoE layer, under uniform routing.
    """

    gpu: str
    kind: str
    size: str
    text: str
    measured_s: float
    bound_s: float = 0.0
    binding: str = ""
    aside: str = ""
    fits_l2: bool = False
    expected_s: float = 0.0

    @property
    def ratio(self):
        """bound / measured: above 1 the measurement is faster than the bound."""
        return self.bound_s / self.measured_s


device = lru_cache(None)(load_device)


@lru_cache(None)
def pooled(name, n):
    """n devices as one with n times everything: a bound on it holds however the work was split."""
    one = device(name)
    return replace(
        one,
        peak_flops_per_s={dtype: n * peak for dtype, peak in one.peak_flops_per_s.items()},
        mem_bytes_per_s=n * one.mem_bytes_per_s,
        mem_bytes=n * one.mem_bytes,
        usable_bytes=n * one.usable_bytes,
    )


def records(path):
    """The rows of a CSV file, each a dict of strings."""
    with open(path, newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def labels(limits, unit=""):
    """Names of the size classes between limits: "≤ 16", "17 – 256", …, "> 4,096"."""
    between = [f"{low + 1:,} – {high:,}" for low, high in pairwise(limits)]
    return [f"{unit} {text}".strip() for text in (f"≤ {limits[0]:,}", *between, f"> {limits[-1]:,}")]


@lru_cache(None)
def size_class(value, limits, unit=""):
    """The name of the class that a size is in."""
    return labels(limits, unit)[sum(value > limit for limit in limits)]


def compared(rows):
    """The rows that no rule sets aside."""
    return [row for row in rows if not row.aside]


def faster(rows):
    """The compared rows that were measured faster than their bound, the worst first."""
    return sorted((row for row in compared(rows) if row.ratio > 1), key=lambda row: -row.ratio)


def best(rows):
    """The compared row that came nearest to its bound."""
    return max(compared(rows), key=lambda row: row.ratio)


def asides(rows):
    """How many rows each rule sets aside."""
    return Counter(row.aside for row in rows if row.aside)


def quantiles(values):
    """Min, 10 %, median, 90 %, max; each is one of the values."""
    ordered = sorted(values)
    return [ordered[round(share * (len(ordered) - 1))] for share in (0, 0.1, 0.5, 0.9, 1)]


def groups(rows, *fields):
    """The compared rows by the values of these fields, in the order in which they occur."""
    found = {}
    for row in compared(rows):
        found.setdefault(tuple(getattr(row, name) for name in fields), []).append(row)
    return found


def words(row):
    """A row in one line."""
    return f"{row.gpu}, {row.kind}: {row.text}: bound / measured {row.ratio:.3f}"


def verdict(rows, name):
    """Count, how many were faster, and the nearest, in one line."""
    n, over = len(compared(rows)), len(faster(rows))
    return f"{name}: {over} of {n:,} rows faster than the bound; nearest: {words(best(rows))}"
