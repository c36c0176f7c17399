"""An RDD as a plan, and a plan as an RDD."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyspark.sql import DataFrame


def rows_of(frame: DataFrame) -> Any:
    """The rows of a frame as an RDD. Not for streaming frames."""
    jdf: Any = frame._jdf
    execution = jdf.queryExecution()
    plan = execution.analyzed()
    # A batch as Spark hands it over is a scan already; one that is kept is to be read from the cache.
    is_scan = plan.getClass().getSimpleName() == "LogicalRDD" and not jdf.storageLevel().useMemory()
    return plan.rdd() if is_scan else execution.toRdd()


def scan(rdd: Any, like: DataFrame, columns: Any = None, *, in_one: bool = False) -> Any:
    """A plan that reads an RDD of rows like those of a frame. `columns`: as Spark knows them from another
    such plan. `in_one` has it say that all rows are in one partition."""
    jdf: Any = like._jdf
    java = _Java.of(like.sparkSession._jvm)
    known = jdf.queryExecution().analyzed().output() if columns is None else columns
    partitioning = java.single if in_one else java.unknown
    return java.scan(
        known,
        rdd,
        partitioning,
        java.nothing,
        False,
        java.none,
        jdf.sparkSession(),
        java.none,
        java.none,
        False,
    )


def frame_of(plan: Any, like: DataFrame) -> DataFrame:
    """A frame of this plan, in the session of another frame."""
    dataset = _Java.of(like.sparkSession._jvm).dataset
    jdf: Any = like._jdf
    return DataFrame(dataset.ofRows(jdf.sparkSession(), plan), like.sparkSession)


def just(plan: Any, like: DataFrame) -> Any:
    """A Scala sequence of one plan."""
    return getattr(_Java.of(like.sparkSession._jvm).nothing, "$colon$colon")(plan)


@dataclass(frozen=True, slots=True)
class _Java:
    """What is the same in every batch: to look up a name takes a call into Java for each of its parts."""

    scan: Any
    dataset: Any
    single: Any
    unknown: Any
    nothing: Any
    none: Any

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, jvm: Any) -> _Java:
        sql = jvm.org.apache.spark.sql
        physical = sql.catalyst.plans.physical
        return cls(
            sql.execution.LogicalRDD,
            _object(sql.classic, "Dataset"),
            _object(physical, "SinglePartition"),
            physical.UnknownPartitioning(0),
            _object(jvm.scala.collection.immutable, "Nil"),
            _object(jvm.scala, "None"),
        )


def _object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")
