"""Console, Discard and ForEachBatch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tidegate.errors import PipelineError
from tidegate.sinks import Console, Discard, ForEachBatch
from tidegate.sinks.sink import Attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Numbers = Callable[[int, int], "DataFrame"]
Batch = Callable[..., Attempt]


def test_console_prints_when_published(
    spark: SparkSession, numbers: Numbers, batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Console(rows=2).open(spark, pipeline="test")
    rows = numbers(7, 1007).selectExpr("id", "'ü' as word", "cast(null as int) as none")
    receipt = json.loads(json.dumps(writer.write(rows, batch(3))))
    assert capsys.readouterr().out == ""
    writer.publish(3, receipt)
    assert capsys.readouterr().out.splitlines() == [
        "batch 3: 1,000 rows",
        "id  word  none",
        "--  ----  ----",
        "7   ü     null",
        "8   ü     null",
    ]


def test_console_shows_any_type_on_one_line(
    spark: SparkSession, batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Console().open(spark, pipeline="test")
    rows = spark.sql(
        "select X'00FF' a, array(1, 2) `b.c`, named_struct('x', 1) d, 'two\\nlines' e, repeat('y', 500) f"
    )
    writer.publish(0, writer.write(rows, batch(0)))
    line = capsys.readouterr().out.splitlines()[3]
    assert line.split("  ") == ["00FF", "[1, 2]", "{1}", "two\\nlines", "y" * 60]


def test_console_says_when_a_batch_is_empty(
    spark: SparkSession, numbers: Numbers, batch: Batch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Console().open(spark, pipeline="test")
    writer.publish(0, writer.write(numbers(0, 0), batch(0)))
    assert capsys.readouterr().out == "batch 0: 0 rows\n"


def test_console_refuses_a_number_below_zero() -> None:
    with pytest.raises(PipelineError, match=r"Console \(declared at .*-1 rows"):
        Console(rows=-1)


@pytest.mark.parametrize("sink", [Console(rows=1), Discard()])
def test_all_rows_are_computed(
    sink: Console | Discard, spark: SparkSession, numbers: Numbers, batch: Batch, tmp_path: Any
) -> None:
    folder = str(tmp_path)

    def note(batches: Any) -> Any:
        from pathlib import Path

        for records in batches:
            (Path(folder) / f"{records.num_rows}-{records['id'][0]}").touch()
            yield records

    receipt = sink.open(spark, pipeline="test").write(numbers(0, 300).mapInArrow(note, "id long"), batch(0))
    assert sum(int(path.name.partition("-")[0]) for path in tmp_path.iterdir()) == 300
    assert receipt["rows"] == 300


def test_function_gets_rows_and_batch_of_each_try(
    spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    calls: list[tuple[int, int]] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        calls.append((batch_id, rows.count()))

    writer = ForEachBatch(take).open(spark, pipeline="test")
    for number in range(2):
        receipt = writer.write(numbers(0, 10), batch(4, number=number))
    writer.publish(4, receipt)
    assert calls == [(4, 10), (4, 10)]


def test_error_of_the_function_fails_the_batch(spark: SparkSession, numbers: Numbers, batch: Batch) -> None:
    def refuse(rows: DataFrame, batch_id: int) -> None:
        raise LookupError("no such thing")

    writer = ForEachBatch(refuse).open(spark, pipeline="test")
    with pytest.raises(LookupError, match="no such thing"):
        writer.write(numbers(0, 10), batch(0))


def test_any_number_of_them_may_be_in_a_pipeline() -> None:
    assert Console().location is Discard().location is ForEachBatch(print).location is None
    assert [sink.describe() for sink in (Console(5), Discard(), ForEachBatch(print))] == [
        "Console (5 rows)",
        "Discard",
        "ForEachBatch print",
    ]
