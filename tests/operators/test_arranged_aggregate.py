"""The half of the aggregates that Spark SQL does, and both halves against Spark's own aggregates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from tests.operators.aggregating import Run, arrange, assert_close, operator, stamp
from tests.operators.arranging import Row
from tidegate.batch.time import Time
from tidegate.operators.kit.windows import late
from tidegate.operators.operator import Operator, Result
from tidegate.pipeline import agg
from tidegate.pipeline.window import EventTime, Session, Sliding, Tumbling, Window
from tidegate.spark.partial_aggregate import within_partitions
from tidegate.testing.states import MemoryState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

pytestmark = pytest.mark.spark

_SECOND = 1_000_000
_COLUMNS: dict[str, T.DataType] = {
    "k": T.StringType(),
    "x": T.DoubleType(),
    "at": T.TimestampType(),
    "i": T.IntegerType(),
    "f": T.FloatType(),
    "c": T.DecimalType(10, 2),
    "s": T.StringType(),
    "b": T.BinaryType(),
    "day": T.DateType(),
    "yes": T.BooleanType(),
    "wait": T.DayTimeIntervalType(),
    "local": T.TimestampNTZType(),
}
_SCHEMA = T.StructType([T.StructField(name, kind) for name, kind in _COLUMNS.items()])


def _rows(count: int) -> list[Row]:
    random = np.random.default_rng(7)

    def some(values: list[Any]) -> Any:
        return values[random.integers(len(values))]

    return [
        {
            "k": some(["a", "b", "ä", "", None]),
            "x": some([0.0, -0.0, 1.5, math.nan, None]),
            "at": some([None, *range(-9 * _SECOND, 9 * _SECOND, _SECOND // 2)]),
            "i": some([None, *range(-50, 50)]),
            "f": some([None, 0.5, -2.0, math.nan, 8.0]),
            "c": some([None, Decimal("1.25"), Decimal("-7.00"), Decimal("99999999.99")]),
            "s": some([None, "", "z", "ä", "aa"]),
            "b": some([None, b"", b"\0", b"\xff"]),
            "day": some([None, date(1969, 12, 31), date(2024, 2, 29)]),
            "yes": some([None, True, False]),
            "wait": some([None, timedelta(seconds=-1), timedelta(days=2)]),
            "local": some([None, datetime(1969, 1, 1), datetime(2024, 1, 1)]),
        }
        for _ in range(count)
    ]


def _frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    stamped = [{**row, "at": None if row["at"] is None else stamp(row["at"])} for row in rows]
    return spark.createDataFrame(stamped, _SCHEMA).repartition(3)


def _arranged(op: Operator, frame: DataFrame) -> pa.Table:
    table = op.arrange(op.narrow(frame), within_partitions).toArrow()
    hashes = pa.array(table["_hash"].to_numpy().view(np.uint64))
    return table.set_column(table.column_names.index("_hash"), "_hash", hashes)


_AGGREGATES = {
    "n": agg.count(),
    "i_sum": agg.sum("i"),
    "f_sum": agg.sum("f"),
    "c_sum": agg.sum("c"),
    "f_min": agg.min("f"),
    "f_max": agg.max("f"),
    "s_min": agg.min("s"),
    "b_max": agg.max("b"),
    "day_min": agg.min("day"),
    "at_max": agg.max("at"),
    "yes_max": agg.max("yes"),
    "wait_min": agg.min("wait"),
    "local_last": agg.last("local"),
    "i_mean": agg.mean("i"),
    "i_var": agg.variance("i"),
    "f_first": agg.first("f"),
    "s_last": agg.last("s"),
    "kinds": agg.approx_distinct("i"),
    "half": agg.quantile("i", 0.5),
}


def _spark_own() -> dict[str, Column]:
    from pyspark.sql import functions as F

    timed = F.col("at").isNotNull()
    first = F.min(F.when(timed, F.struct("at", "f")))
    last = F.max(F.when(timed, F.struct("at", "s")))
    return {
        "n": F.count("*"),
        "i_sum": F.sum("i"),
        "f_sum": F.sum("f"),
        "c_sum": F.sum("c"),
        "f_min": F.min("f"),
        "f_max": F.max("f"),
        "s_min": F.min("s"),
        "b_max": F.max("b"),
        "day_min": F.min("day"),
        "at_max": F.max("at"),
        "yes_max": F.max("yes"),
        "wait_min": F.min("wait"),
        "local_last": F.max(F.when(timed, F.struct("at", "local"))).getField("local"),
        "i_mean": F.avg("i"),
        "i_var": F.var_samp("i"),
        "f_first": first.getField("f"),
        "s_last": last.getField("s"),
        "kinds": F.hll_sketch_estimate(F.hll_sketch_agg("i")),
    }


def test_values_and_types_are_those_of_sparks_own_aggregates(spark: SparkSession) -> None:
    rows, op = _rows(400), operator(_COLUMNS, ["k", "x"], _AGGREGATES)
    frame, state = _frame(spark, rows), MemoryState()
    latest: dict[str, Row] = {}
    for cut in ("hash(i) % 2 = 0", "hash(i) % 2 <> 0"):
        result = op.apply(_arranged(op, frame.where(cut)), state, Time(None, None))
        state.commit()
        latest |= {_key(row): row for row in result.rows.to_pylist()}
    own = (
        frame.coalesce(1)
        .groupBy("k", "x")
        .agg(*[column.alias(name) for name, column in _spark_own().items()])
    )
    expected = own.toArrow()
    assert {_key(row) for row in expected.to_pylist()} == latest.keys()
    for row in expected.to_pylist():
        assert_close(latest[_key(row)], {name: row[name] for name in row if name != "x"})
    for field in expected.schema:
        assert op.output.field(field.name).type == field.type, field.name


def _key(row: Mapping[str, Any]) -> str:
    return repr([row["k"], row["x"]])


@pytest.mark.parametrize("window", [None, Tumbling(4), Sliding(6, 2), Session(1)])
def test_partials_in_sql_are_those_that_the_other_tests_use(
    spark: SparkSession, window: Window | None
) -> None:
    rows, op = _rows(200), operator(_COLUMNS, ["k", "x"], _AGGREGATES, window)
    made = _arranged(op, _frame(spark, rows).coalesce(1))
    plain = arrange(op, [(row, 0) for row in rows])
    hidden = {"_hash", "_part", "kinds.hll"}
    names = [name for name in made.column_names if name not in hidden]
    identity = [name for name in names if "." not in name]
    one, other = (
        {repr([row[name] for name in identity]): row for row in table.select(names).to_pylist()}
        for table in (made, plain)
    )
    assert len(one) == made.num_rows
    assert one.keys() == other.keys()
    for key, row in one.items():
        assert_close(row, other[key])
    for field in plain.select(names).schema:
        assert made.schema.field(field.name).type.equals(field.type), field.name


@pytest.mark.parametrize("window", [None, Tumbling(4), Sliding(6, 2), Session(1)])
def test_partitions_are_aggregated_without_a_shuffle(spark: SparkSession, window: Window | None) -> None:
    op = operator(_COLUMNS, ["k"], {"n": agg.count(), "s_last": agg.last("s")}, window)
    frame = op.arrange(op.narrow(_frame(spark, _rows(50))), within_partitions)
    assert frame.rdd.getNumPartitions() == 3
    plan: Any = frame._jdf
    assert "Exchange" not in plan.queryExecution().executedPlan().toString()
    assert set(frame.toArrow()["_part"].to_pylist()) == {0, 1, 2}


def test_the_source_makes_no_more_columns_than_are_read(spark: SparkSession) -> None:
    frame = _frame(spark, _rows(5))

    def read(aggregates: Mapping[str, agg.AggregateFunction], window: Window | None) -> list[str]:
        return operator(_COLUMNS, ["k"], aggregates, window).narrow(frame).columns

    assert read({"n": agg.count()}, None) == ["k"]
    assert read({"n": agg.count(), "most": agg.max("i")}, None) == ["k", "i"]
    assert read({"n": agg.count()}, Tumbling(4)) == ["k", "_pane"]
    assert read({"newest": agg.last("s")}, None) == ["k", "at", "s"]


@pytest.mark.parametrize("window", [Tumbling(4), Sliding(6, 2), Session(1)])
@pytest.mark.parametrize("closed", [-(5 * _SECOND), 3 * _SECOND])
def test_rows_that_sql_calls_late_are_those_that_are_counted(
    spark: SparkSession, window: Window, closed: int
) -> None:
    op = operator(_COLUMNS, ["k"], {"n": agg.count()}, window)
    frame = _frame(spark, _rows(300))
    result: Result = op.apply(_arranged(op, frame), MemoryState(), Time(closed, closed + 5 * _SECOND))
    called = frame.where(late(window, op.event_time, closed)).count()  # type: ignore[attr-defined]
    assert 0 < called < 300
    assert result.late == called


def test_a_shifted_event_time_decides_the_window(spark: SparkSession) -> None:
    op = operator(_COLUMNS, ["k"], {"n": agg.count()}, Tumbling(4), event_time=EventTime("at", -1))
    row = {**_rows(1)[0], "k": "a", "at": 4 * _SECOND}
    left = op.apply(_arranged(op, _frame(spark, [row])), MemoryState(), Time(None, 9 * _SECOND))
    assert left.rows["window_end"].to_pylist() == [stamp(4 * _SECOND)]


def test_windows_of_windows_keep_their_own_bounds(spark: SparkSession) -> None:
    """The input has columns window_start and window_end of an earlier step."""
    columns = {"k": T.StringType(), "window_start": T.TimestampType(), "window_end": T.TimestampType()}
    aggregates = {"n": agg.count(), "latest": agg.max("window_start")}
    op = operator(columns, ["k"], aggregates, Tumbling(4), event_time=EventTime("window_end", -1))
    schema = T.StructType([T.StructField(name, kind) for name, kind in columns.items()])
    inner = [("a", stamp(s * _SECOND), stamp((s + 1) * _SECOND)) for s in range(4)]
    rows = _arranged(op, spark.createDataFrame(inner, schema))
    run = Run(op)
    left = op.apply(rows, run.state, Time(None, 4 * _SECOND)).rows.to_pylist()
    assert left == [
        {
            "k": "a",
            "window_start": stamp(0),
            "window_end": stamp(4 * _SECOND),
            "n": 4,
            "latest": stamp(3 * _SECOND),
        }
    ]
