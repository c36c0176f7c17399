"""Aggregation within each partition, without a shuffle.

Spark plans a `groupBy` as a partial aggregate, a shuffle by key and a final aggregate. A keyed step brings
its own shuffle, by the route, so only the first part is wanted. Spark leaves the shuffle out where the rows
are in a single partition; a scan of an RDD may say so of itself, and is taken at its word.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.sql import DataFrame


def within_partitions(frame: DataFrame) -> DataFrame:
    """The same rows; a `groupBy` on them gives one row per key *and partition*. Not for streaming frames."""
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    jdf: Any = frame._jdf
    session = jdf.sparkSession()
    execution = jdf.queryExecution()
    plan = execution.analyzed()
    # A batch as Spark hands it over is such a scan already; one that is kept is to be read from the cache.
    is_scan = plan.getClass().getSimpleName() == "LogicalRDD" and not frame.storageLevel.useMemory
    rdd = plan.rdd() if is_scan else execution.toRdd()
    single = _object(jvm, "org.apache.spark.sql.catalyst.plans.physical.SinglePartition")
    nothing, none = _object(jvm, "scala.collection.immutable.Nil"), _object(jvm, "scala.None")
    scan = jvm.org.apache.spark.sql.execution.LogicalRDD(
        plan.output(), rdd, single, nothing, False, none, session, none, none, False
    )
    dataset = _object(jvm, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(session, scan), spark)


@lru_cache(maxsize=16)
def _object(jvm: Any, name: str) -> Any:
    found = jvm
    for part in f"{name}$".split("."):
        found = getattr(found, part)
    return getattr(found, "MODULE$")
