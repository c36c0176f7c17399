"""Keyed steps on Spark: the shuffle of their rows by the route."""

from __future__ import annotations

from functools import lru_cache
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.operators.kit.user_function import spark_schema
from tidegate.operators.operator import Operator
from tidegate.rescale.route import Route
from tidegate.spark.arrow_function import map_in_arrow
from tidegate.spark.frames import int_array
from tidegate.spark.partial_aggregate import within_partitions
from tidegate.state.table.table import HASH
from tidegate.state.task.assignment import Assignment
from tidegate.translation.task import PARTITION, Task


def probed(operator: Operator, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Only analysed, never run: the rows that its tasks get, and those that leave the step."""
    arranged = operator.arrange(operator.narrow(rows), lambda frame: frame)
    return arranged, operator.finish(rows.mapInArrow(lambda batches: batches, spark_schema(operator.output)))


def applied(
    operator: Operator, rows: DataFrame, assignment: Assignment, *, in_place: bool, marked: bool, delay: int
) -> DataFrame:
    """The rows that leave a keyed step in one batch: arranged, shuffled by the route unless they are
    `in_place` already, worked on in tasks.

    `rows` are narrowed, and up to `delay` microseconds behind the watermark.
    """
    arranged = operator.arrange(rows, within_partitions)
    route = assignment.route
    target = _partition(route)
    if marked:
        arranged = _with_markers(arranged, route.parallelism)
        target = F.coalesce(F.col(PARTITION), target)
    columns = _columns(operator, arranged)
    placed = arranged if in_place else arranged.repartitionById(route.parallelism, target)
    task = Task(operator, assignment, columns, marked=marked, delay=delay)
    return operator.finish(map_in_arrow(placed, columns.names, task, spark_schema(operator.output)))


_known: WeakKeyDictionary[Operator, pa.Schema] = WeakKeyDictionary()


def _columns(operator: Operator, arranged: DataFrame) -> pa.Schema:
    """The columns of arranged rows. They are the same in every batch, and Spark takes a while to tell."""
    found = _known.get(operator)
    if found is None:
        found = _known[operator] = to_arrow_schema(arranged.schema, timezone="UTC")
    return found


@lru_cache(maxsize=16)
def _partition(route: Route) -> Column:
    """The Spark partition of a row, from the leading bits of its hash."""
    if route.groups == 1:
        return F.lit(0)
    bits = 64 - (route.groups.bit_length() - 1)
    group = F.expr(f"cast(shiftrightunsigned({HASH}, {bits}) as int)")
    return F.get(int_array(route.partitions), group)


def _with_markers(arranged: DataFrame, parallelism: int) -> DataFrame:
    spark = arranged.sparkSession
    columns = [
        F.lit(0 if field.name == HASH else None).cast(field.dataType).alias(field.name)
        for field in arranged.schema
    ]
    markers = spark.range(0, parallelism, 1, 1).select(*columns, F.col("id").cast("int").alias(PARTITION))
    return arranged.withColumn(PARTITION, F.lit(None).cast("int")).union(markers)
