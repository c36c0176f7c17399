"""Aggregation within each partition, without a shuffle.

Spark plans a `groupBy` as a partial aggregate, a shuffle by key and a final aggregate. A keyed step brings
its own shuffle, by the route, so only the first part is wanted. Spark leaves the shuffle out where the rows
are in a single partition; a scan of an RDD may say so of itself, and is taken at its word.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame


def partially(frame: DataFrame) -> DataFrame:
    """The same rows; a `groupBy` on them gives one row per key *and partition*. Not for streaming frames."""
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    jdf: Any = frame._jdf
    session = jdf.sparkSession()
    execution = jdf.queryExecution()
    single = _object(jvm.org.apache.spark.sql.catalyst.plans.physical, "SinglePartition")
    nothing, none = _object(jvm.scala.collection.immutable, "Nil"), _object(jvm.scala, "None")
    scan = jvm.org.apache.spark.sql.execution.LogicalRDD(
        execution.analyzed().output(),
        execution.toRdd(),
        single,
        nothing,
        False,
        none,
        session,
        none,
        none,
        False,
    )
    dataset = _object(jvm.org.apache.spark.sql.classic, "Dataset")
    return DataFrame(dataset.ofRows(session, scan), spark)


def _object(package: Any, name: str) -> Any:
    """A Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
