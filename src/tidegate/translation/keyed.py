"""Keyed steps on Spark: the shuffle of their rows by the route."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.operators.kit.user_function import spark_schema
from tidegate.operators.operator import Operator
from tidegate.rescale.route import Route
from tidegate.spark.arrow_function import map_in_arrow
from tidegate.spark.frames import int_array
from tidegate.spark.partial_aggregate import PreparedAggregate, within_partitions
from tidegate.spark.preferred_locations import PreferredLocations
from tidegate.state.table.table import HASH
from tidegate.state.task.assignment import Assignment
from tidegate.translation.task import PARTITION, Task


def probed(operator: Operator, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Only analysed, never run: the rows that its tasks get, and those that leave the step."""
    arranged = operator.arrange(operator.narrow(rows), lambda frame: frame)
    return arranged, operator.finish(rows.mapInArrow(lambda batches: batches, spark_schema(operator.output)))


def applied(
    operator: Operator,
    rows: DataFrame,
    assignment: Assignment,
    hosts: tuple[str, ...],
    *,
    in_place: bool,
    marked: bool,
    delay: int,
) -> DataFrame:
    """The rows that leave a keyed step in one batch: arranged, shuffled by the route unless they are
    `in_place` already, worked on in tasks.

    `rows` are narrowed, and up to `delay` microseconds behind the watermark. `hosts` are those that the tasks
    of each partition prefer, if any; tasks in one stage go where the first step in it has them.
    """
    placed, columns = _placed(operator, rows, assignment.route, in_place=in_place, marked=marked)
    if hosts and not in_place:
        placed = _preferred(rows.sparkSession, hosts).of(placed)
    task = Task(operator, assignment, columns, marked=marked, delay=delay)
    return operator.finish(map_in_arrow(placed, columns.names, task, spark_schema(operator.output)))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is the same in every batch on one route."""

    route: Route
    columns: pa.Schema
    """Of arranged rows: Spark takes a while to tell."""
    plan: PreparedAggregate | None


_prepared: WeakKeyDictionary[Operator, _Prepared] = WeakKeyDictionary()


def _placed(
    operator: Operator, rows: DataFrame, route: Route, *, in_place: bool, marked: bool
) -> tuple[DataFrame, pa.Schema]:
    """The rows of a step, arranged and where its tasks need them, and their columns."""
    known = _prepared.get(operator)
    if known is not None and known.plan is not None and known.route == route:
        return known.plan.of(rows), known.columns
    arranged = operator.arrange(rows, within_partitions)
    target = _partition(route)
    if marked:
        arranged = _with_markers(arranged, route.parallelism)
        target = F.coalesce(F.col(PARTITION), target)
    columns = known.columns if known else to_arrow_schema(arranged.schema, timezone="UTC")
    placed = arranged if in_place else arranged.repartitionById(route.parallelism, target)
    plan = PreparedAggregate(placed) if operator.aggregates and not marked else None
    _prepared[operator] = _Prepared(route, columns, plan)
    return placed, columns


@lru_cache(maxsize=4)
def _preferred(spark: SparkSession, hosts: tuple[str, ...]) -> PreferredLocations:
    return PreferredLocations(spark, hosts)


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
