"""What the operators that aggregate have in common: keys, and the partials of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.operators.kit.hashing import hashed, normal
from tidegate.operators.kit.partials import PART, Partials
from tidegate.operators.operator import WithinPartitions
from tidegate.state.table.table import DUE, GONE, HASH, PROBE

ROWS, PANE, TIME = "_rows", "_pane", "_time"
RESERVED = frozenset({HASH, DUE, GONE, PROBE, PART, ROWS, PANE, TIME})
"""Names that arranged rows and state use themselves."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """An aggregate as declared, checked."""

    name: str
    keys: pa.Schema
    columns: tuple[str, ...]
    """The other columns of the input that are read."""
    partials: Partials

    def narrow(self, rows: DataFrame, **within: Column) -> DataFrame:
        """The keys, the columns that are read, and the columns `within`."""
        chosen = [normal(rows, key) for key in self.keys.names]
        chosen += [F.col(f"`{name}`") for name in self.columns]
        return rows.select(*chosen, *(column.alias(name) for name, column in within.items()))

    def partial(self, rows: DataFrame, within_partitions: WithinPartitions, *within: str) -> DataFrame:
        """The partials of each partition per key, and per value of the columns `within`.

        If there are such columns, also the number of rows, so that late ones can be counted.
        """
        by = [f"`{name}`" for name in (*self.keys.names, *within)]
        counted = [F.expr(f"count(1) as {ROWS}")] if within else []
        return within_partitions(rows).groupBy(*by).agg(*_sql(self.partials), *counted)

    def shuffled(self, rows: DataFrame, key: Sequence[str]) -> DataFrame:
        """With the columns that spread the rows and give them an order."""
        return rows.select("*", *_shuffled(tuple(key)))


# A column is a value in the JVM that can be used in every batch; making it anew takes some calls there.


@lru_cache(maxsize=64)
def _sql(partials: Partials) -> list[Column]:
    return partials.sql()


@lru_cache(maxsize=64)
def _shuffled(key: tuple[str, ...]) -> list[Column]:
    return [F.spark_partition_id().alias(PART), hashed(key).alias(HASH)]
