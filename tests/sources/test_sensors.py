"""Sensors: the rows as a pure function, and the stream as Spark sees it."""

from __future__ import annotations

import pickle
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import PipelineError
from tidegate.sources import Constant, HotSet, Ramp, Sensors, Sine, Step, Trace, Uniform, Zipf
from tidegate.sources.source import Position
from tidegate.sources.split_limit import split_limit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = 1_700_000_000_000_000
PAST = "2024-01-01T00:00:00"

some = st.builds(
    Sensors,
    sensors=st.integers(1, 10**6),
    rate=st.sampled_from([None, 7.5, 1000, Ramp(0, 500, 10), Sine(100, 100, 3), Step([(0, 3), (9, 80)])]),
    keys=st.sampled_from([None, Uniform(), Zipf(1.1), HotSet(0.1, 0.9)]),
    value_keys=st.sampled_from([None, 10]),
    seed=st.integers(0, 2**64 - 1),
)


@given(some, st.integers(0, 10**8), st.lists(st.integers(0, 300), min_size=2, max_size=6))
def test_any_split_of_a_cut_gives_the_same_rows(source: Sensors, first: int, cuts: list[int]) -> None:
    bounds = [first + cut for cut in sorted(cuts)]
    whole = source.batch(bounds[0], bounds[-1], start=START)
    parts = [source.batch(a, b, start=START) for a, b in pairwise(bounds)]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([whole]))


@given(some)
def test_a_source_survives_pickling(source: Sensors) -> None:
    assert pickle.loads(pickle.dumps(source)) == source


def test_a_trace_travels_with_its_points() -> None:
    source = Sensors(rate=Trace([(0, 5), (10, 7)], repeat=True), keys=HotSet(), start=PAST)
    assert pickle.loads(pickle.dumps(source)) == source


def test_columns_have_the_types_of_the_schema() -> None:
    schema = Sensors().batch(0, 3, start=START).schema
    assert schema.types == [pa.int64(), pa.timestamp("us", tz="UTC"), pa.float64()]
    assert schema.names == ["id", "timestamp", "value"]


@pytest.mark.parametrize("sensors", [1, 2, 10, 97, 1000])
def test_all_sensors_send_in_turn(sensors: int) -> None:
    ids = Sensors(sensors=sensors, rate=sensors).batch(0, 2 * sensors, start=START)["id"].to_numpy()
    assert sorted(ids[:sensors]) == list(range(sensors))
    assert (ids[:sensors] == ids[sensors:]).all()


def test_each_sensor_sends_once_per_second_without_a_rate() -> None:
    batch = Sensors(sensors=50, rate=None).batch(0, 200, start=START)
    micros = batch["timestamp"].cast(pa.int64()).to_numpy()
    own = micros[batch["id"].to_numpy() == 17]
    assert np.diff(own).tolist() == [1_000_000] * 3


def test_the_timestamp_is_when_the_row_was_sent() -> None:
    times = Sensors(rate=Constant(4)).batch(0, 3, start=START)["timestamp"].cast(pa.int64())
    assert times.to_pylist() == [START + 250_000, START + 500_000, START + 750_000]


def test_values_are_temperatures() -> None:
    values = Sensors().batch(0, 100_000, start=START)["value"].to_numpy()
    assert values.mean() == pytest.approx(20, abs=0.1)
    assert (values > 30).mean() == pytest.approx(0.05, abs=0.01)


def test_values_come_from_the_smaller_key_space() -> None:
    values = Sensors(value_keys=8).batch(0, 10_000, start=START)["value"].to_numpy()
    assert sorted(set(values)) == list(range(8))


def test_another_seed_gives_other_rows() -> None:
    one, other = (Sensors(seed=seed, keys=Uniform()).batch(0, 100, start=START) for seed in (1, 2))
    assert not one["id"].equals(other["id"])
    assert not one["value"].equals(other["value"])


def test_ids_and_values_are_independent() -> None:
    batch = Sensors(sensors=1000, keys=Uniform(), value_keys=1000).batch(0, 50_000, start=START)
    assert abs(np.corrcoef(batch["id"].to_numpy(), batch["value"].to_numpy())[0, 1]) < 0.02


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"sensors": 0}, "sensors"),
        ({"sensors": 1.5}, "sensors"),
        ({"rate": -1}, "per_second"),
        ({"rate": "fast"}, "rate"),
        ({"keys": "zipf"}, "keys"),
        ({"value_keys": 0}, "value_keys"),
        ({"rows": 0}, "rows"),
        ({"start": "soon"}, "start"),
        ({"event_time": "value"}, "event_time"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        Sensors(**arguments)


def test_lag_is_what_was_sent_and_not_read() -> None:
    at = Position(start=None, end={"start": 0, "offset": 40}, latest={"start": 0, "offset": 100})
    assert Sensors().lag(at) == 60
    assert Sensors(rate=None).lag(at) is None
    assert Sensors().lag(Position(start=None, end=None)) is None


def test_a_stream_is_done_when_its_rows_are_read() -> None:
    source = Sensors(rows=100)
    assert not source.done(Position(None, None))
    assert not source.done(Position(None, {"start": 0, "offset": 99}))
    assert source.done(Position(None, {"start": 0, "offset": 100}))


def test_the_description_is_one_line() -> None:
    assert Sensors(1000, 5000, Zipf(1.1), rows=10).describe() == (
        "Sensors 1,000 at 5,000/s, Zipf(exponent=1.1), 10 rows"
    )


def reader(source: Sensors, partitions: int = 3, first_rows: int | None = None) -> Any:
    from tidegate.sources._sensor_stream import SensorStreamReader

    return SensorStreamReader(source, partitions, first_rows)


def test_a_cut_ends_at_what_the_clock_says() -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    began = datetime.now(UTC) - timedelta(seconds=100)
    stream = reader(Sensors(rate=10, start=began))
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert 1000 <= end["offset"] <= 1000 + 10 * 30
    assert stream.reportLatestOffset()["offset"] >= end["offset"]


def test_a_cut_honours_the_limit() -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    stream = reader(Sensors(rate=None, start=PAST))
    first = stream.latestOffset(stream.initialOffset(), ReadMaxRows(70))
    assert first["offset"] == 70
    assert stream.latestOffset(first, ReadMaxRows(5))["offset"] == 75


def test_the_first_cut_has_a_limit_of_its_own() -> None:
    assert reader(Sensors(), first_rows=500).getDefaultReadLimit().max_rows == 500


@pytest.mark.parametrize(("rows", "offset"), [(70, 70), (None, 500)])
def test_a_limit_may_say_into_how_many_partitions_to_split(rows: int | None, offset: int) -> None:
    """From then on; without a number of rows, the limit is that of the start."""
    from pyspark.sql.streaming.datasource import ReadMaxRows

    stream = reader(Sensors(rate=None, start=PAST), partitions=3, first_rows=500)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(split_limit(rows, 5)["max_rows"]))
    assert end["offset"] == offset
    assert len(stream.partitions(start, end)) == 5
    assert stream.latestOffset(end, ReadMaxRows(10))["offset"] == offset + 10
    assert len(stream.partitions(start, end)) == 5


def test_a_clock_set_back_takes_nothing_back() -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    stream = reader(Sensors(rate=10))
    ahead = {"start": time.time_ns() // 1000 + 3_600_000_000, "offset": 50}
    assert stream.latestOffset(ahead, ReadAllAvailable()) == ahead


def test_a_restarted_stream_keeps_its_start() -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    began = time.time_ns() // 1000 - 60_000_000
    end = reader(Sensors(rate=10)).latestOffset({"start": began, "offset": 5}, ReadAllAvailable())
    assert end["start"] == began
    assert end["offset"] >= 600


def test_an_endless_stream_without_limit_still_has_an_end_of_cut() -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    stream = reader(Sensors(rate=None))
    assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable())["offset"] == 1_000_000
    assert stream.reportLatestOffset() is None


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_partitions_cover_a_cut_without_gap_or_overlap(low: int, rows: int, partitions: int) -> None:
    stream = reader(Sensors(), partitions)
    slices = stream.partitions({"start": 0, "offset": low}, {"start": 0, "offset": low + rows})
    assert [o for part in slices for o in range(part.low, part.high)] == list(range(low, low + rows))
    assert all(part.low < part.high for part in slices)


@pytest.mark.spark
def test_spark_reads_exactly_the_rows_of_the_function(spark: SparkSession, tmp_path: Path) -> None:
    source = Sensors(sensors=500, rate=None, rows=10_000, keys=Zipf(1.0), seed=3, start=PAST)
    seen: list[tuple[Any, ...]] = []
    query = (
        source.load(spark, parallelism=3, first_rows=4000)
        .selectExpr("id", "unix_micros(timestamp)", "value")
        .writeStream.foreachBatch(lambda batch, _: seen.extend(map(tuple, batch.collect())))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(query.recentProgress) > 1
    assert source.first_micros is not None
    table = source.batch(0, 10_000, start=source.first_micros)
    columns = [table["id"], table["timestamp"].cast(pa.int64()), table["value"]]
    assert sorted(seen) == sorted(zip(*(column.to_pylist() for column in columns), strict=True))
