"""What is special about output in an object store: requests, faults, and tasks that write and read there."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidegate as tg
from tidegate.errors import SinkError
from tidegate.sinks.committed import count, verify
from tidegate.sinks.compaction import Compaction
from tidegate.sinks.data import staging
from tidegate.sinks.files import _Writer
from tidegate.sinks.output_folder import OutputFolder
from tidegate.sinks.sink import Attempt, Receipt, SinkWriter
from tidegate.testing.servers import S3
from tidegate.testing.servers.faulty_store import FaultyStore, faulty_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Run

pytestmark = pytest.mark.s3

Numbers = Callable[[int, int], "DataFrame"]
Batch = Callable[..., Attempt]
SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}


@pytest.fixture
def store(s3_server: S3, s3_place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """The way to the store, which may have faults."""
    with faulty_store(s3_server.endpoint) as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.endpoint)
        yield between


def opened(place: str, committed: int = -1, receipt: Receipt | None = None) -> _Writer:
    folder = OutputFolder(place)
    folder.files.prepare()
    writer = _Writer(Compaction(folder), "parquet", "test", remote=False)
    writer.recover(committed, receipt, generation=2)
    writer.close()
    return writer


def written(writer: _Writer, place: str, attempt: Attempt, parts: int) -> Receipt:
    """Stage files with the number of the batch as tasks do, without Spark."""
    rows, content = pa.table({"id": pa.array([attempt.batch_id], pa.int64())}), pa.BufferOutputStream()
    pq.write_table(rows, content)
    names = [f"{number:05d}-000-0123abcd.parquet" for number in range(parts)]
    for name in names:
        storage, whole = OutputFolder(place).files.staged_in(attempt, name)
        storage.write(whole, [content.getvalue()])
    after = list(writer._newest) if writer._newest else None
    told = {"attempt": str(attempt), "path": place, "rows": parts, "files": names}
    return {**told, "schema": SCHEMA, "after": after}


def test_publishing_takes_few_requests(s3_place: str, store: FaultyStore) -> None:
    writer = opened(s3_place)
    receipt = written(writer, s3_place, Attempt(0, 1, 0), 4)
    store.requests.clear()
    writer.publish(0, receipt)
    # A listing, the manifest, four copies, and a request that deletes.
    assert Counter(kind for kind, _ in store.requests) == {"LIST": 1, "PUT": 5, "POST": 1}
    store.requests.clear()
    assert tg.read(s3_place).num_rows == 4
    assert store.asked("GET") == 5


def test_a_store_that_is_busy_and_loses_answers_loses_no_batch(s3_place: str, store: FaultyStore) -> None:
    writer = opened(s3_place)
    store.busy, store.forgetful = 0.2, 0.1
    for batch_id in range(4):
        writer.publish(batch_id, written(writer, s3_place, Attempt(batch_id, 1, 0), 2))
    assert sorted(tg.read(s3_place)["id"].to_pylist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    store.busy = store.forgetful = 0.0
    assert verify(s3_place) == []
    assert len({(kind, path) for kind, path in store.requests}) < len(store.requests)


def test_a_store_that_is_away_is_told_before_spark_starts(
    s3_place: str, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.sinks.files._CHECK_PATIENCE", 0.5)
    store.away = True
    with pytest.raises(SinkError, match=rf"Files {s3_place.split('[')[0]}.*: cannot write to s3://"):
        tg.sinks.Files(s3_place).check()


def test_of_racing_drivers_one_publishes_a_batch(s3_place: str, store: FaultyStore) -> None:
    store.delay = 0.01
    drivers = [opened(s3_place) for _ in range(4)]
    receipts = [written(d, s3_place, Attempt(0, number, 0), 1) for number, d in enumerate(drivers)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda driver, receipt: driver.publish(0, receipt), drivers, receipts))
    assert len({driver._newest for driver in drivers}) == 1
    assert tg.read(s3_place).num_rows == 1
    opened(s3_place, 0)
    folder = OutputFolder(s3_place)
    assert [*folder.files.staged()] == []
    assert verify(s3_place) == []


def test_rows_are_counted_by_the_end_of_a_file(s3_place: str, store: FaultyStore) -> None:
    files = OutputFolder(s3_place).files
    wide = pa.table({f"column_{number}": [number] for number in range(2000)})
    long = pa.table({"id": range(100_000)})
    for name, rows in (("wide.parquet", wide), ("long.parquet", long)):
        content = pa.BufferOutputStream()
        pq.write_table(rows, content)
        storage, whole = files.staged_in(Attempt(0, 1, 0), name)
        storage.write(whole, [content.getvalue()])
        assert count(files, whole) == rows.num_rows


def test_no_secret_goes_to_a_task(s3_place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-from-tasks")
    task = staging._Write(s3_place, Attempt(0, 1, 0), "parquet", SCHEMA, 1)
    assert b"hidden" not in pickle.dumps(task)


@pytest.fixture
def writer(s3_tasks: str, spark: SparkSession) -> SinkWriter:
    opened = tg.sinks.Files(s3_tasks).open(spark, pipeline="test")
    opened.recover(-1, None, generation=1)
    return opened


@pytest.mark.spark
def test_a_large_partition_is_several_files(
    s3_tasks: str, writer: SinkWriter, spark: SparkSession, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_FILE_BYTES", 1000)
    lines = tg.sinks.Files(s3_tasks, format="json").open(spark, pipeline="test")
    receipt = lines.write(spark.range(0, 200_000, numPartitions=1), batch(0))
    assert len(receipt["files"]) > 1
    assert receipt["rows"] == 200_000
    lines.recover(-1, None, generation=1)
    lines.publish(0, receipt)
    assert tg.read(s3_tasks)["id"].to_pylist() == list(range(200_000))


@pytest.mark.spark
def test_a_zone_of_the_session_changes_nothing(
    s3_tasks: str, writer: SinkWriter, spark: SparkSession, batch: Batch
) -> None:
    rows = spark.sql("select 1L id, timestamp'2024-02-29 12:34:56.123456Z' at")
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        writer.publish(0, writer.write(rows, batch(0)))
        read = tg.read(s3_tasks, spark)
        assert read.dtypes == rows.dtypes
        assert read.collect() == rows.collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert tg.read(s3_tasks)["at"].to_pylist()[0].isoformat() == "2024-02-29T12:34:56.123456+00:00"


@pytest.mark.spark
def test_a_pipeline_with_output_and_dead_letters_in_a_store(run: Run, s3_tasks: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_text('{"id": 1}\nno json\n{"id": 2}\n')
    p = tg.Pipeline("stored")
    p.source(tg.sources.Files(folder, schema="id long")).sink(tg.sinks.Files(f"{s3_tasks}/out"))
    summary, _ = run(p, dead_letters__path=f"{s3_tasks}/dead")
    assert (summary.rows_out, summary.dead_letters) == (2, 1)
    assert sorted(tg.read(f"{s3_tasks}/out")["id"].to_pylist()) == [1, 2]
    assert summary.dead_letters_path == f"{s3_tasks}/dead/stored"
    assert tg.read(f"{summary.dead_letters_path}/source-1")["raw"].to_pylist() == ["no json"]
