"""Aggregation within each partition, without a shuffle.

Spark plans a `groupBy` as a partial aggregate, a shuffle by key and a final aggregate. A keyed step brings
its own shuffle, by the route, so only the first part is wanted. Spark leaves the shuffle out where the rows
are in a single partition; a scan of an RDD may say so of itself, and is taken at its word.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from tidegate.spark.rdd_scan import frame_of, just, rows_of, scan


def within_partitions(frame: DataFrame) -> DataFrame:
    """The same rows; a `groupBy` on them gives one row per key *and partition*. Not for streaming frames."""
    return frame_of(scan(rows_of(frame), frame, in_one=True), frame)


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
        plan = scan(rows_of(frame), frame, self._columns, in_one=True)
        for step in self._steps:
            plan = step.withNewChildren(just(plan, frame))
        return frame_of(plan, frame)
