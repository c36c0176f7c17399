"""Aggregates for `key_by(...).aggregate(name=agg.count(), ...)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.errors import PipelineError
from tidegate.pipeline.where import caller

Function = Literal[
    "count", "sum", "min", "max", "mean", "variance", "first", "last", "approx_distinct", "quantile"
]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One aggregate over one column (count takes none)."""

    function: Function
    column: str | None = None
    share: float | None = None
    """The share of a quantile, between 0 and 1."""

    def __str__(self) -> str:
        arguments = [text for text in (self.column, self.share) if text is not None]
        return f"{self.function}({', '.join(map(str, arguments))})"


def count() -> Aggregate:
    """Number of rows."""
    return Aggregate("count")


def sum(column: str) -> Aggregate:
    """Sum of the values that are not null."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:
    """Smallest value."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """Largest value."""
    return Aggregate("max", column)


def mean(column: str) -> Aggregate:
    """Arithmetic mean."""
    return Aggregate("mean", column)


def variance(column: str) -> Aggregate:
    """Sample variance."""
    return Aggregate("variance", column)


def first(column: str) -> Aggregate:
    """Value of the earliest event."""
    return Aggregate("first", column)


def last(column: str) -> Aggregate:
    """Value of the latest event."""
    return Aggregate("last", column)


def approx_distinct(column: str) -> Aggregate:
    """About how many different values there are."""
    return Aggregate("approx_distinct", column)


def quantile(column: str, share: float) -> Aggregate:
    """About the value below which `share` of the values lie.

    >>> str(quantile("latency", 0.99))
    'quantile(latency, 0.99)'
    """
    if not 0 <= share <= 1:
        raise PipelineError(f"share={share} is not between 0 and 1", step="quantile", where=caller())
    return Aggregate("quantile", column, share)
