"""What every sink promises, whatever is behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tidegate.sinks.sink import Attempt, SinkWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.sinks.conftest import Place

pytestmark = pytest.mark.spark

Numbers = Callable[[int, int], "DataFrame"]
Batch = Callable[..., Attempt]
Never = Callable[..., None]
NO_RENAME = "a message in Kafka is there when it is written"


def ids(place: Place) -> list[int]:
    return sorted(row["id"] for row in place.visible())


def test_rows_are_invisible_until_published(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch, never: Never
) -> None:
    never("kafka", why=NO_RENAME)
    writer.write(numbers(0, 10), batch(0))
    assert ids(place) == []


def test_publishing_makes_the_batch_visible(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch
) -> None:
    writer.publish(0, writer.write(numbers(0, 10), batch(0)))
    assert ids(place) == list(range(10))


def test_publishing_again_changes_nothing(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch
) -> None:
    receipt = writer.write(numbers(0, 10), batch(0))
    for _ in range(3):
        writer.publish(0, receipt)
    assert ids(place) == list(range(10))


def test_batches_add_up(place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch) -> None:
    for batch_id in range(3):
        rows = numbers(10 * batch_id, 10 * batch_id + 10)
        writer.publish(batch_id, writer.write(rows, batch(batch_id)))
    assert ids(place) == list(range(30))


def test_batch_tried_again_counts_once(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch
) -> None:
    writer.write(numbers(0, 10), batch(0, number=0))
    receipt = writer.write(numbers(0, 10).repartition(2), batch(0, number=1))
    writer.publish(0, receipt)
    writer.publish(1, writer.write(numbers(10, 20), batch(1)))
    assert ids(place) == list(range(20))


def test_only_the_published_attempt_counts(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch, never: Never
) -> None:
    never("kafka", why=NO_RENAME)
    writer.write(numbers(100, 110), batch(0, number=0))
    writer.publish(0, writer.write(numbers(0, 10), batch(0, number=1)))
    assert ids(place) == list(range(10))


def test_first_published_attempt_wins(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch, never: Never
) -> None:
    never("kafka", why=NO_RENAME)
    first = writer.write(numbers(0, 10), batch(0, generation=1))
    second = writer.write(numbers(0, 20), batch(0, generation=2))
    writer.publish(0, first)
    writer.publish(0, second)
    assert ids(place) == list(range(10))


def test_empty_batch_is_fine(place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch) -> None:
    writer.publish(0, writer.write(numbers(0, 0), batch(0)))
    assert ids(place) == []
    writer.publish(1, writer.write(numbers(0, 10).where("id > 3"), batch(1)))
    assert ids(place) == list(range(4, 10))


def test_receipt_is_small_json(writer: SinkWriter, numbers: Numbers, batch: Batch) -> None:
    few = writer.write(numbers(0, 10), batch(0))
    many = writer.write(numbers(0, 10_000), batch(1))
    assert json.loads(json.dumps(few)) == few
    assert abs(len(json.dumps(many)) - len(json.dumps(few))) < 100


def test_receipt_counts_the_rows(writer: SinkWriter, numbers: Numbers, batch: Batch) -> None:
    assert [writer.write(numbers(0, n), batch(n))["rows"] for n in (0, 7)] == [0, 7]


def test_restart_publishes_what_was_committed(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch, spark: SparkSession
) -> None:
    receipt = json.loads(json.dumps(writer.write(numbers(0, 10), batch(0))))
    writer.close()
    restarted = place.sink.open(spark, pipeline="test")
    restarted.recover(0, receipt, generation=2)
    restarted.publish(0, receipt)
    restarted.publish(1, restarted.write(numbers(10, 20), batch(1, generation=2)))
    assert ids(place) == list(range(20))


def test_restart_drops_what_was_not_committed(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch, spark: SparkSession
) -> None:
    writer.publish(0, writer.write(numbers(0, 10), batch(0)))
    writer.write(numbers(10, 20), batch(1))
    writer.close()
    restarted = place.sink.open(spark, pipeline="test")
    restarted.recover(0, None, generation=2)
    restarted.publish(1, restarted.write(numbers(10, 20), batch(1, generation=2)))
    assert ids(place) == list(range(20))


def test_a_driver_that_was_held_up_leaves_its_successor_alone(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch, spark: SparkSession
) -> None:
    """It took over, slept, and recovers when a later driver has written and committed a batch."""
    writer.publish(0, writer.write(numbers(0, 10), batch(0)))
    held_up = place.sink.open(spark, pipeline="test")
    receipt = writer.write(numbers(10, 20), batch(1, generation=3))
    held_up.recover(0, None, generation=2)
    held_up.close()
    writer.publish(1, receipt)
    assert ids(place) == list(range(20))


def test_task_that_fails_and_runs_again_counts_once(
    place: Place, writer: SinkWriter, numbers: Numbers, batch: Batch, tmp_path: Any
) -> None:
    marker = str(tmp_path / "failed")

    def fail_once(batches: Any) -> Any:
        import os

        yield from batches
        # After the sink's function has taken all rows of the partition.
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise RuntimeError("first attempt of one task")

    writer.publish(0, writer.write(numbers(0, 3000).mapInArrow(fail_once, "id long"), batch(0)))
    assert ids(place) == list(range(3000))


PLAIN = """
    id long, small short, number int, single float, real double, amount decimal(20,4), text string,
    flag boolean, bytes binary, day date, moment timestamp, local timestamp_ntz
"""
VALUES = """
    values
    (1L, 1S, 2, 1.5F, 0.1D, 12.3456BD, 'plain', true, X'00FF10', date'2024-02-29',
        timestamp'2024-02-29 12:34:56.123456Z', timestamp_ntz'2024-02-29 12:34:56.000001'),
    (2L, -32768S, -2147483648, -0.25F, 1e300D, -0.0001BD,
        'quote " and '' and , and \\\\ and \\n and \\t end', false, X'',
        date'1969-12-31', timestamp'1969-12-31 23:59:59.999999Z', timestamp_ntz'1582-10-15 00:00:00'),
    (9223372036854775807L, 32767S, 2147483647, float('inf'), double('-inf'), 9999999999999999.9999BD,
        'Grüße 日本 🌊 \\r\\n', true, X'5C78', date'9999-12-31', timestamp'2038-01-19 03:14:08Z',
        timestamp_ntz'2000-01-01 00:00:00'),
    (3L, 0S, 0, 0F, 0D, 0BD, '', false, X'5C', date'2000-01-01', timestamp'2000-01-01 00:00:00Z',
        timestamp_ntz'2000-01-01 00:00:00'),
    (4L, null, null, null, null, null, null, null, null, null, null, null)
"""


def plain(spark: SparkSession) -> DataFrame:
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(PLAIN)
    assert isinstance(schema, StructType)
    return spark.sql(VALUES).toDF(*schema.names).to(schema)


def test_plain_values_come_back(
    place: Place, writer: SinkWriter, batch: Batch, spark: SparkSession, never: Never
) -> None:
    never("kafka", why="messages are JSON text, which has no such types")
    rows = plain(spark)
    writer.publish(0, writer.write(rows, batch(0)))
    expected = {row["id"]: row for row in rows.toArrow().to_pylist()}
    assert {row["id"]: row for row in place.visible()} == expected


def test_not_a_number_comes_back(
    place: Place, writer: SinkWriter, batch: Batch, spark: SparkSession, never: Never
) -> None:
    never("kafka", why="JSON has no such number")
    rows = spark.sql("select 1L id, double('nan') real, float('nan') single")
    writer.publish(0, writer.write(rows, batch(0)))
    (row,) = place.visible()
    assert math.isnan(row["real"])
    assert math.isnan(row["single"])


def test_nested_values_come_back(
    place: Place, writer: SinkWriter, batch: Batch, spark: SparkSession, never: Never
) -> None:
    never("kafka", "postgres", why="nested values are JSON there, which has no such types")
    rows = spark.sql("""
        select 1L id, array(1, null, 3) list, array('a', 'ü"') words, map('k', 1.5D, 'n', null) pairs,
            named_struct('at', timestamp'2024-02-29 12:34:56.123456Z', 'price', 1.25BD, 'bytes', X'00FF',
                'inner', named_struct('day', date'2024-02-29')) parts,
            array(named_struct('a', 1, 'b', array(timestamp'2024-01-01 00:00:00.000001Z'))) deep
        union all select 2L, array(), null, map(), null, null
    """)
    writer.publish(0, writer.write(rows, batch(0)))
    assert sorted(place.visible(), key=lambda row: int(row["id"])) == [
        {
            "id": 1,
            "list": [1, None, 3],
            "words": ["a", 'ü"'],
            "pairs": [("k", 1.5), ("n", None)],
            "parts": {
                "at": datetime(2024, 2, 29, 12, 34, 56, 123456, UTC),
                "price": Decimal("1.25"),
                "bytes": b"\x00\xff",
                "inner": {"day": date(2024, 2, 29)},
            },
            "deep": [{"a": 1, "b": [datetime(2024, 1, 1, 0, 0, 0, 1, UTC)]}],
        },
        {"id": 2, "list": [], "words": None, "pairs": [], "parts": None, "deep": None},
    ]
