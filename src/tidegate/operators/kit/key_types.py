"""The type in which Spark compares two key columns."""

from __future__ import annotations

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
    order = list(whole)
    if type(left) in whole and type(right) in whole:
        return max(left, right, key=lambda kind: order.index(type(kind)))
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
