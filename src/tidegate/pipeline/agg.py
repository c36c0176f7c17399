"""Aggregates for `key_by(...).aggregate(name=agg.count(), ...)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.pipeline.where import refused

Function = Literal[
    "count", "sum", "min", "max", "mean", "variance", "first", "last", "approx_distinct", "quantile"
]


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """One aggregate over one column (count takes none)."""

    function: Function
    column: str | None = None
    share: float | None = None
    """The share of a quantile, between 0 and 1."""

    def __str__(self) -> str:
        arguments = [text for text in (self.column, self.share) if text is not None]
        return f"{self.function}({', '.join(map(str, arguments))})"


def count() -> AggregateFunction:
    """Number of rows."""
    return AggregateFunction("count")


def sum(column: str) -> AggregateFunction:
    """Sum of the values that are not null."""
    return AggregateFunction("sum", column)


def min(column: str) -> AggregateFunction:
    """Smallest value."""
    return AggregateFunction("min", column)


def max(column: str) -> AggregateFunction:
    """Largest value."""
    return AggregateFunction("max", column)


def mean(column: str) -> AggregateFunction:
    """Arithmetic mean."""
    return AggregateFunction("mean", column)


def variance(column: str) -> AggregateFunction:
    """Sample variance."""
    return AggregateFunction("variance", column)


def first(column: str) -> AggregateFunction:
    """Value of the earliest event."""
    return AggregateFunction("first", column)


def last(column: str) -> AggregateFunction:
    """Value of the latest event."""
    return AggregateFunction("last", column)


def approx_distinct(column: str) -> AggregateFunction:
    """About how many different values there are."""
    return AggregateFunction("approx_distinct", column)


def quantile(column: str, share: float) -> AggregateFunction:
    """About the value below which `share` of the values lie.

    >>> str(quantile("latency", 0.99))
    'quantile(latency, 0.99)'
    """
    if not 0 <= share <= 1:
        raise refused(f"share={share} is not between 0 and 1", step="quantile")
    return AggregateFunction("quantile", column, share)
