"""The hash of a key, in Spark SQL."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T


def normal(frame: DataFrame, column: str) -> Column:
    """A key column in the one form that equal keys share: no minus zero, one NaN."""
    kind = frame.schema[column].dataType
    value = F.col(f"`{column}`")
    if isinstance(kind, T.FloatType | T.DoubleType):
        zero, nan = F.lit(0.0).cast(kind), F.lit(float("nan")).cast(kind)
        return F.when(value == zero, zero).when(F.isnan(value), nan).otherwise(value).alias(column)
    return value


def hashed(columns: Sequence[str]) -> Column:
    """The 64-bit hash of key columns that are in their normal form."""
    named = [f"`{column}`" for column in columns]
    # A null leaves Spark's hash as it was, so (a, null) and (null, a) would meet.
    nulls = [f"{column} is null" for column in named] if len(named) > 1 else []
    return F.expr(f"xxhash64({', '.join([*named, *nulls])})")
