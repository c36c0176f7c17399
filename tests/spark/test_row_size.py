"""Spark is told not to look at the size of rows only where that cannot matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import tidegate as tg
from tests.conftest import Run
from tests.run.readings import sensors
from tidegate.spark import session
from tidegate.translation.translation import Translation

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

pytestmark = pytest.mark.spark

BYTES, ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
UNLIMITED = {BYTES: "2147483647"}


def long_text(name: str) -> Column:
    return F.length(F.udf(lambda number: "x" * number, "string")(name))


def counted(stream: tg.Stream) -> tg.Stream:
    return stream.key_by("id").aggregate(n=tg.agg.count(), most=tg.agg.max("value"))


FIXED: dict[str, Callable[[tg.Stream], tg.Stream]] = {
    "no Python": lambda s: s.filter("value > 3"),
    "a count": counted,
    "a filter after a count": lambda s: counted(s).filter("n > 2"),
    "a join": lambda s: s.window_join(s.select("id", "timestamp"), on="id", window=tg.tumbling("4 s")),
    "a function over numbers": lambda s: s.map_arrow(lambda batch: batch, "id int, value double"),
}
ANY_SIZE: dict[str, Callable[[tg.Stream], tg.Stream]] = {
    "a text as key": lambda s: counted(s.with_column("id", "cast(id as string)")),
    "a text for a function": lambda s: (
        s.select("cast(id as string) as id").map_arrow(lambda b: b, "id string").select("int(id) as id")
    ),
    "a text that leaves": lambda s: counted(s).with_column("text", "repeat('x', int(n))"),
    "a user's function": lambda s: s.with_column("size", lambda _: long_text("id")),
    "a user's function after a count": lambda s: counted(s).filter(lambda _: long_text("n") > 1),
    "wide rows": lambda s: s.select("id", *(f"value as v{n}" for n in range(200))).map_arrow(
        lambda batch: batch.select(["id"]), "id int"
    ),
}


def settings(spark: SparkSession, declare: Callable[[tg.Stream], tg.Stream], sink: Any) -> dict[str, str]:
    p = tg.Pipeline("sized")
    declare(p.source(sensors(10))).sink(sink)
    return Translation(p.plan(), spark, parallelism=2, first_rows=None, groups=16).settings


@pytest.mark.parametrize("case", FIXED)
def test_rows_of_a_fixed_size_cannot_exceed_the_limit(spark: SparkSession, case: str) -> None:
    assert settings(spark, FIXED[case], tg.sinks.Discard()) == UNLIMITED


@pytest.mark.parametrize("case", ANY_SIZE)
def test_all_others_may(spark: SparkSession, case: str) -> None:
    assert settings(spark, ANY_SIZE[case], tg.sinks.Discard()) == {}


def test_so_may_what_a_function_for_batches_does(spark: SparkSession) -> None:
    assert settings(spark, counted, tg.sinks.ForEachBatch(lambda frame, batch_id: None)) == {}


@pytest.mark.parametrize("given", [{BYTES: "1000000b"}, {ROWS: "0"}, {ROWS: "10000000"}])
def test_what_the_user_has_set_counts(spark: SparkSession, given: dict[str, str]) -> None:
    with session.changed(spark, given):
        assert settings(spark, counted, tg.sinks.Discard()) == {}
    assert settings(spark, counted, tg.sinks.Discard()) == UNLIMITED


def test_the_query_has_it_and_nobody_else(spark: SparkSession, run: Run) -> None:
    """Seen in a task, where Spark looks it up."""

    def limit(batch: pa.RecordBatch) -> pa.RecordBatch:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        assert context.getLocalProperty(BYTES) == UNLIMITED[BYTES]
        return batch.select(["id"])

    before = spark.conf.get(BYTES)
    p = tg.Pipeline("sized")
    p.source(sensors(2000)).map_arrow(limit, "id int").sink(tg.sinks.Discard())
    summary, _ = run(p)
    assert summary.rows_out == 2000
    assert spark.conf.get(BYTES) == before
