"""Aggregation within each partition, without a shuffle.

Spark plans a `groupBy` as a partial aggregate, a shuffle by key and a final aggregate. A keyed step brings
its own shuffle, by the route, so only the first part is wanted. Spark leaves the shuffle out where the rows
are in a single partition; a scan of an RDD may say so of itself, and is taken at its word.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    is_scan = plan.getClass().getSimpleName() == "LogicalRDD" and not jdf.storageLevel().useMemory()
    rdd = plan.rdd() if is_scan else execution.toRdd()
    java = _Java.of(jvm)
    scan = java.scan(
        plan.output(), rdd, java.single, java.nothing, False, java.none, session, java.none, java.none, False
    )
    return DataFrame(java.dataset.ofRows(session, scan), spark)


@dataclass(frozen=True, slots=True)
class _Java:
    """What is the same in every batch: to look up a name takes a call into Java for each of its parts."""

    scan: Any
    dataset: Any
    single: Any
    nothing: Any
    none: Any

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, jvm: Any) -> _Java:
        sql = jvm.org.apache.spark.sql
        return cls(
            sql.execution.LogicalRDD,
            _object(sql.classic, "Dataset"),
            _object(sql.catalyst.plans.physical, "SinglePartition"),
            _object(jvm.scala.collection.immutable, "Nil"),
            _object(jvm.scala, "None"),
        )


def _object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")
