from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import types as T

from tidegate.operators.kit.hashing import common_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: list[T.DataType] = [
    T.ByteType(),
    T.ShortType(),
    T.IntegerType(),
    T.LongType(),
    T.FloatType(),
    T.DoubleType(),
    T.DecimalType(5, 2),
    T.DecimalType(30, 4),
    T.DateType(),
    T.TimestampNTZType(),
    T.TimestampType(),
    T.StringType(),
    T.BinaryType(),
    T.BooleanType(),
]


def test_text_and_numbers_have_no_common_type() -> None:
    assert common_type(T.StringType(), T.LongType()) is None


def test_a_decimal_that_would_lose_digits_is_no_common_type() -> None:
    assert common_type(T.DecimalType(38, 0), T.DecimalType(38, 10)) is None


@pytest.mark.spark
def test_the_common_type_is_that_of_spark(spark: SparkSession) -> None:
    for left, right in product(KINDS, KINDS):
        found = common_type(left, right)
        if found is None:
            # Spark casts text as the other side asks for; a key that is not such text would fail the batch.
            assert "string" in (left.simpleString(), right.simpleString()) or not _comparable(
                spark, left, right
            )
            continue
        text = f"coalesce(cast(null as {left.simpleString()}), cast(null as {right.simpleString()})) c"
        assert spark.range(1).selectExpr(text).schema["c"].dataType == found, (left, right)


def _comparable(spark: SparkSession, left: T.DataType, right: T.DataType) -> bool:
    try:
        spark.range(1).selectExpr(
            f"cast(null as {left.simpleString()}) = cast(null as {right.simpleString()})"
        )
    except PySparkException:
        return False
    return True
