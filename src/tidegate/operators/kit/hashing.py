"""Keys in Spark SQL: the type that two are compared in, the form that equal ones share, and their hash."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T


def common_type(left: T.DataType, right: T.DataType) -> T.DataType | None:
    """The type that both are cast to; None where there is none but by reading text as something else."""
    if left == right:
        return left
    if isinstance(left, T.NumericType) and isinstance(right, T.NumericType):
        return _common_number(left, right)
    texts = (T.StringType, T.CharType, T.VarcharType)
    if type(left) in texts and type(right) in texts:
        plain = T.StringType()
        collated = [kind for kind in (left, right) if isinstance(kind, T.StringType) and kind != plain]
        return None if collated else plain
    times = (T.DateType, T.TimestampNTZType, T.TimestampType)
    if type(left) in times and type(right) in times:
        return max(left, right, key=lambda kind: times.index(type(kind)))
    return None


def _common_number(left: T.DataType, right: T.DataType) -> T.DataType | None:
    whole: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 20}
    if type(left) in whole and type(right) in whole:
        return max(left, right, key=lambda kind: whole[type(kind)])
    floating = T.FloatType | T.DoubleType
    if isinstance(left, floating) or isinstance(right, floating):
        return T.DoubleType()
    shapes = [
        (kind.precision, kind.scale) if isinstance(kind, T.DecimalType) else (whole[type(kind)], 0)
        for kind in (left, right)
    ]
    scale = max(scale for _, scale in shapes)
    digits = max(precision - scale for precision, scale in shapes)
    return T.DecimalType(digits + scale, scale) if digits + scale <= 38 else None


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
