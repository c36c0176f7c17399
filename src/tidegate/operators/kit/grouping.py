"""What the operators that aggregate have in common: keys, and the partials of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.operators.kit.hashing import hashed, normal
from tidegate.operators.kit.partials import PART, Columns, Partials
from tidegate.operators.kit.spans import whole
from tidegate.state.table import keys
from tidegate.state.table.table import DUE, GONE, HASH, PROBE, StateTable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidegate.operators.operator import WithinPartitions

ROWS, PANE, TIME = "_rows", "_pane", "_time"
RESERVED = frozenset({HASH, DUE, GONE, PROBE, PART, ROWS, PANE, TIME})
"""Names that arranged rows and state use themselves."""
START, END = "window_start", "window_end"

STAMP = pa.timestamp("us", tz="UTC")


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
        from pyspark.sql import functions as F

        chosen = [normal(rows, key) for key in self.keys.names]
        chosen += [F.col(f"`{name}`") for name in self.columns]
        return rows.select(*chosen, *(column.alias(name) for name, column in within.items()))

    def partial(self, rows: DataFrame, within_partitions: WithinPartitions, *within: str) -> DataFrame:
        """The partials of each partition per key, and per value of the columns `within`.

        If there are such columns, also the number of rows, so that late ones can be counted.
        """
        from pyspark.sql import functions as F

        by = [f"`{name}`" for name in (*self.keys.names, *within)]
        counted = [F.expr(f"count(1) as {ROWS}")] if within else []
        return within_partitions(rows).groupBy(*by).agg(*_sql(self.partials), *counted)

    def shuffled(self, rows: DataFrame, key: Sequence[str]) -> DataFrame:
        """With the columns that spread the rows and give them an order."""
        return rows.select("*", *_shuffled(tuple(key)))

    def written(
        self, table: StateTable, hashes: keys.Hashes, due: Any, key: Columns, columns: Columns
    ) -> pa.Table:
        """Rows to put. `due` is one number for all rows, or one for each."""
        own = {
            HASH: pa.array(hashes),
            DUE: pa.array(np.broadcast_to(np.asarray(due, np.int64), len(hashes))),
            GONE: pa.array(np.zeros(len(hashes), np.bool_)),
        }
        columns = {**own, **key, **columns}
        return pa.Table.from_arrays([columns[name] for name in table.written.names], schema=table.written)


# A column is a value in the JVM that can be used in every batch; making it anew takes some calls there.


@lru_cache(maxsize=64)
def _sql(partials: Partials) -> list[Column]:
    return partials.sql()


@lru_cache(maxsize=64)
def _shuffled(key: tuple[str, ...]) -> list[Column]:
    from pyspark.sql import functions as F

    return [F.spark_partition_id().alias(PART), hashed(key).alias(HASH)]


def typed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """These columns alone, in one piece each and of these types."""
    columns = [whole(rows[field.name]).cast(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def numbered(probes: pa.Table) -> tuple[pa.Table, NDArray[np.int64]]:
    """Each key once, sorted by hash, and the number of each row's key there."""
    names = [name for name in probes.column_names if name != HASH]
    first, number = keys.distinct(keys.hash_column(probes[HASH]), [whole(probes[name]) for name in names])
    return probes.take(pa.array(first)).combine_chunks(), number


def stamps(micros: NDArray[np.int64] | pa.Array) -> pa.Array:
    """Microseconds since 1970 as timestamps."""
    return pa.array(micros).view(STAMP)
