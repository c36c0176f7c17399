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
    return _frame(_scan(frame), frame)


class PreparedAggregate:
    """What was made of the rows of `within_partitions`, for the rows of other batches: building and analysing
    it each time would take longer than a small batch takes to aggregate."""

    def __init__(self, frame: DataFrame) -> None:
        """`frame` comes from such rows by steps with one input each."""
        java: Any = frame._jdf
        plan = java.queryExecution().analyzed()
        self._steps: list[Any] = []
        while plan.getClass().getSimpleName() != "LogicalRDD":
            self._steps.insert(0, plan)
            plan = plan.children().apply(0)
        self._columns = plan.output()

    def of(self, frame: DataFrame) -> DataFrame:
        """The same of other rows with the same columns. Not for streaming frames."""
        nothing = _Java.of(frame.sparkSession._jvm).nothing
        plan = _scan(frame, self._columns)
        for step in self._steps:
            plan = step.withNewChildren(getattr(nothing, "$colon$colon")(plan))
        return _frame(plan, frame)


def _scan(frame: DataFrame, columns: Any = None) -> Any:
    """The rows of a frame as a plan that says that they are in one partition. `columns`: as Spark knows them
    from another such plan."""
    jdf: Any = frame._jdf
    execution = jdf.queryExecution()
    plan = execution.analyzed()
    # A batch as Spark hands it over is such a scan already; one that is kept is to be read from the cache.
    is_scan = plan.getClass().getSimpleName() == "LogicalRDD" and not jdf.storageLevel().useMemory()
    rdd = plan.rdd() if is_scan else execution.toRdd()
    java, session = _Java.of(frame.sparkSession._jvm), jdf.sparkSession()
    known = plan.output() if columns is None else columns
    return java.scan(
        known, rdd, java.single, java.nothing, False, java.none, session, java.none, java.none, False
    )


def _frame(plan: Any, like: DataFrame) -> DataFrame:
    session: Any = like._jdf.sparkSession()
    dataset = _Java.of(like.sparkSession._jvm).dataset
    return DataFrame(dataset.ofRows(session, plan), like.sparkSession)


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
