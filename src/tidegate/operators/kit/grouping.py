"""What the operators that aggregate have in common: keys, and the partials of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.operators.kit.hashing import hashed, normal
from tidegate.operators.kit.partials import PART, Partials
from tidegate.operators.operator import Operator, WithinPartitions
from tidegate.state.table.table import DUE, GONE, HASH, PROBE, StateTable

ROWS, PANE, TIME = "_rows", "_pane", "_time"
RESERVED = frozenset({HASH, DUE, GONE, PROBE, PART, ROWS, PANE, TIME})
"""Names that arranged rows and state use themselves."""


@dataclass(eq=False)
class Grouping(Operator):
    """Rows are aggregated within their Spark partition first, then in the task."""

    name: str
    keys: pa.Schema
    columns: tuple[str, ...]
    """The other columns of the input that are read."""
    partials: Partials
    aggregates = True
    within: ClassVar[tuple[str, ...]] = ()
    """What rows are aggregated by before the shuffle, besides their key."""

    def __post_init__(self) -> None:
        self.keep(self.keys, self.partials.kept)

    def keep(
        self,
        key: pa.Schema,
        values: pa.Schema,
        before: Iterable[pa.Field] = (),
        times: tuple[str, ...] = (),
    ) -> None:
        """State with these columns; in the output, `before` comes between the key and the aggregates."""
        self.table = StateTable(self.name, "value", key, values, times=times)
        self.tables = (self.table,)
        self.output = pa.schema([*self.keys, *before, *self.partials.output])

    def narrow(self, rows: DataFrame, *within: Column) -> DataFrame:
        chosen = [normal(rows, key) for key in self.keys.names]
        return rows.select(*chosen, *(F.col(f"`{name}`") for name in self.columns), *within)

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        by = [f"`{name}`" for name in (*self.keys.names, *self.within)]
        # So that late rows can be counted.
        counted = [F.expr(f"count(1) as {ROWS}")] if self.within else []
        return self.shuffled(within_partitions(rows).groupBy(*by).agg(*_sql(self.partials), *counted))

    def shuffled(self, partial: DataFrame) -> DataFrame:
        """With the columns that spread the rows and give them an order."""
        return partial.select("*", *_shuffled(tuple(self.table.keys.names)))


# A column is a value in the JVM that can be used in every batch; making it anew takes some calls there.


@lru_cache(maxsize=64)
def _sql(partials: Partials) -> list[Column]:
    return partials.sql()


@lru_cache(maxsize=64)
def _shuffled(key: tuple[str, ...]) -> list[Column]:
    return [F.spark_partition_id().alias(PART), hashed(key).alias(HASH)]
