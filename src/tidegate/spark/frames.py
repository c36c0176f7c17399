"""What Spark can do with a DataFrame that PySpark does not offer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.spark.listener import drain_listener_bus

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def compute(frame: DataFrame) -> int:
    """Compute every row, without converting or writing any; how many there are.

    Spark's noop sink cannot say how many rows it took, and observing them costs a fifth of a batch.
    """
    jdf: Any = frame._jdf
    return int(jdf.queryExecution().toRdd().count())


def merged(rows: DataFrame, most: int) -> DataFrame:
    """The rows of a batch in at most so many partitions, without a shuffle: a task reads several."""
    jdf: Any = rows._jdf
    return rows.coalesce(most) if jdf.queryExecution().analyzed().rdd().getNumPartitions() > most else rows


def counted(rows: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """The same rows, and a function that tells their number once they have been written.

    It tells 0 when no Spark job has read them.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    observation = Observation()
    observed = rows.observe(observation, f.count(f.lit(1)).alias("rows"))

    def count() -> int:
        # Spark hands the figure over a little after the job; without a job it would wait for ever.
        future = observation._jo.future()  # type: ignore[union-attr]
        if not future.isCompleted():
            drain_listener_bus(rows.sparkSession)
        return int(observation.get["rows"]) if future.isCompleted() else 0

    return observed, count


def int_array(numbers: Sequence[int]) -> Column:
    """An array as a single literal: Spark would analyse each of many literals in every batch."""
    from pyspark import SparkContext
    from pyspark.sql import Column

    gateway: Any = SparkContext._gateway
    jvm = gateway.jvm
    array = gateway.new_array(jvm.int, len(numbers))
    jvm.java.nio.ByteBuffer.wrap(struct.pack(f">{len(numbers)}i", *numbers)).asIntBuffer().get(array)
    return Column(jvm.org.apache.spark.sql.functions.lit(array))
