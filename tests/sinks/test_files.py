"""What is special about the files sink, and reading what it committed."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException

import tidegate as tg
from tidegate.errors import PipelineError, SinkError
from tidegate.sinks import compaction
from tidegate.sinks.compaction import Compaction
from tidegate.sinks.files import _Writer
from tidegate.sinks.output_folder import OutputFolder
from tidegate.sinks.sink import Attempt, SinkWriter
from tidegate.storage.place import local_folder, open_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Numbers = Callable[[int, int], "DataFrame"]
Batch = Callable[..., Attempt]


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an output may be."""
    if request.param == "folder":
        return str(tmp_path / "out")
    place: str = request.getfixturevalue("s3_tasks")
    return place


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A folder, for what is special about that."""
    return tmp_path / "out"


def opened(
    out: str | Path, spark: SparkSession, *, committed: int = -1, pipeline: str = "test"
) -> SinkWriter:
    writer = tg.sinks.Files(out).open(spark, pipeline=pipeline)
    writer.recover(committed, None, generation=9)
    return writer


def staged(out: str | Path) -> list[str]:
    return sorted(map(str, OutputFolder(out).files.staged()))


def remove_all(out: str) -> None:
    place = open_storage(out)
    inner = [place.within("_tidegate").within(name) for name in ("manifests", "data", "staged", "replaced")]
    for each in (place, *inner):
        each.delete(*(name for name in each.names()))


def in_sight(out: str) -> list[str]:
    return [name for name in open_storage(out).names() if name[0].isdigit()]


def test_restart_removes_attempts_that_came_to_nothing(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark)
    opened(out, spark).write(numbers(0, 1), batch(1, number=7))
    writer.publish(0, writer.write(numbers(0, 1), batch(0)))
    writer.write(numbers(2, 3), batch(1))
    assert staged(out) == [str(batch(1)), str(batch(1, number=7))]
    opened(out, spark, committed=0)
    assert staged(out) == []
    assert tg.read(out).num_rows == 1


def test_publishing_removes_earlier_tries(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark)
    writer.write(numbers(0, 1), batch(0, number=0))
    writer.publish(0, writer.write(numbers(0, 1), batch(0, number=1)))
    assert staged(out) == []


def test_folder_that_the_driver_cannot_see_is_an_error(
    local: Path, spark: SparkSession, numbers: Numbers, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if an executor on another machine had written one of the files.
    monkeypatch.setattr(
        "tidegate.sinks.data.staging.rows_in", lambda name, _: 0 if "part-00001" in name else 10
    )
    with pytest.raises(SinkError, match=r"executors wrote 30 rows .* but the driver finds 20"):
        _Writer(Compaction(OutputFolder(local)), "parquet", "suite", remote=True).write(
            numbers(0, 30), batch(0)
        )


def test_folder_of_a_longer_run_is_refused(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark)
    for batch_id in range(3):
        writer.publish(batch_id, writer.write(numbers(0, 1), batch(batch_id)))
    with pytest.raises(
        SinkError, match=r"holds batches up to 2, but the checkpoint ends with batch 0: .*ledger are lost"
    ):
        opened(out, spark, committed=0)
    assert tg.read(out).num_rows == 3


def test_folder_of_another_pipeline_is_refused(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark, pipeline="one")
    writer.publish(0, writer.write(numbers(0, 1), batch(0)))
    with pytest.raises(SinkError, match="output of pipeline 'one', not of 'two'"):
        opened(out, spark, committed=0, pipeline="two")


def test_attempt_that_cannot_be_removed_does_not_stop_the_start(
    local: Path, spark: SparkSession, numbers: Numbers, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(local, spark).write(numbers(0, 1), batch(0))

    def still_written(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOTEMPTY, "a driver that was replaced has just put a file there")

    with monkeypatch.context() as patched:
        patched.setattr("os.rmdir", still_written)
        opened(local, spark)
        assert staged(local) == [str(batch(0))]
    opened(local, spark)
    assert staged(local) == []


@pytest.mark.parametrize("rows", [0, 3])
def test_output_that_was_removed_is_refused(
    rows: int, out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark)
    writer.publish(0, writer.write(numbers(0, 1), batch(0)))
    receipt = writer.write(numbers(0, rows), batch(1))
    for _ in range(2):  # Committed, but not published; then published.
        tg.sinks.Files(out).open(spark, pipeline="test").recover(1, receipt, generation=9)
        assert tg.read(out).num_rows == 1 + rows
    remove_all(out)
    restarted = tg.sinks.Files(out).open(spark, pipeline="test")
    with pytest.raises(SinkError, match=r"output of batches up to 1 is missing from .*a new checkpoint"):
        restarted.recover(1, receipt, generation=9)


def test_sink_that_was_added_later_has_no_output_to_miss(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark, committed=7)
    writer.publish(8, writer.write(numbers(0, 3), batch(8)))
    assert tg.read(out).num_rows == 3


@pytest.mark.parametrize("file_format", ["parquet", "json"])
@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (["value as id", "value as ID"], "already exists"),
        (["make_interval(1) as span"], "interval"),
        ([], "schema"),
    ],
)
def test_columns_that_cannot_be_written_are_found_before_the_start(
    columns: list[str], problem: str, file_format: Any, out: str, spark: SparkSession
) -> None:
    stream = spark.readStream.format("rate").load()
    writer = tg.sinks.Files(out, format=file_format).open(spark, pipeline="test")
    with pytest.raises((AnalysisException, SinkError), match=re.compile(problem, re.IGNORECASE)):
        writer.check(stream.selectExpr(*columns))
    writer.check(stream)
    assert staged(out) == []


def test_columns_that_cannot_be_merged_are_found_before_the_start(local: Path, spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("interval '1' year as age")
    with pytest.raises(SinkError, match="column age"):
        tg.sinks.Files(local, compact_to="1 MB").open(spark, pipeline="test").check(stream)
    tg.sinks.Files(local).open(spark, pipeline="test").check(stream)


def test_publishing_files_that_are_gone_fails(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark)
    receipt = writer.write(numbers(0, 1), batch(0))
    storage, name = OutputFolder(out).files.staged_in(batch(0), receipt["files"][0])
    storage.delete(name)
    with pytest.raises(SinkError, match=r"batch 0 cannot be published: .*(is missing|is not in)"):
        writer.publish(0, receipt)
    assert OutputFolder(out).spans() == []


def test_partitions_without_rows_leave_no_file(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    receipt = opened(out, spark).write(numbers(0, 30).where("id = 0"), batch(0))
    assert (len(receipt["files"]), receipt["rows"]) == (1, 1)


def test_reader_never_sees_half_a_batch(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark)
    receipt = writer.write(numbers(0, 30), batch(0))
    assert len(receipt["files"]) == 3
    writer.publish(0, receipt)
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.append(tg.read(out).num_rows)

    reader = threading.Thread(target=look)
    reader.start()
    batches = 100 if local_folder(out) else 12
    for batch_id in range(1, batches):
        writer.publish(batch_id, receipt)
    done.set()
    reader.join()
    assert seen
    assert seen == sorted(seen)
    assert {count % 30 for count in seen} == {0}
    assert tg.read(out).num_rows == 30 * batches


def test_other_readers_see_committed_rows(
    local: Path, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(local, spark)
    writer.publish(0, writer.write(numbers(0, 3), batch(0)))
    writer.write(numbers(3, 6), batch(1))
    assert sorted(pq.read_table(local)["id"].to_pylist()) == [0, 1, 2]
    assert sorted(row.id for row in spark.read.parquet(str(local)).collect()) == [0, 1, 2]
    assert [path.suffix for path in local.iterdir() if path.is_file()] == [".parquet"] * 3


@pytest.mark.s3
def test_other_readers_of_a_store_see_committed_rows(
    s3_tasks: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(s3_tasks, spark)
    writer.publish(0, writer.write(numbers(0, 3), batch(0)))
    writer.write(numbers(3, 6), batch(1))
    files = [pa.BufferReader(open_storage(s3_tasks).open(name)) for name in in_sight(s3_tasks)]
    assert [id for file in files for id in pq.read_table(file)["id"].to_pylist()] == [0, 1, 2]


def test_files_that_no_manifest_names_are_not_read(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark)
    writer.publish(0, writer.write(numbers(0, 3), batch(0)))
    writer.write(numbers(3, 6), batch(1))
    OutputFolder(out).manifests.write("000000000001.json.half", [b"{"])
    assert tg.read(out).num_rows == 3


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_read_gives_a_data_frame_when_asked(
    file_format: Any, out: str, spark: SparkSession, batch: Batch
) -> None:
    writer = tg.sinks.Files(out, format=file_format).open(spark, pipeline="test")
    rows = spark.sql(
        "select 1 id, timestamp'2024-02-29 12:34:56.123456Z' at, array(struct(1.5BD)) deep, X'FF' raw"
    )
    writer.publish(0, writer.write(rows, batch(0)))
    read = tg.read(out, spark)
    assert read.dtypes == rows.dtypes
    assert read.collect() == rows.collect()


def test_merged_files_hold_what_spark_has_written(
    out: str, spark: SparkSession, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 2)
    rows = [
        spark.sql(
            f"""select {number} id, timestamp'2024-02-29 12:34:56.12345{number}Z' at, X'0{number}' raw,
                timestamp_ntz'2024-02-29 12:34:56.00000{number}' local,
                array(named_struct('at', timestamp'1969-12-31 23:59:59.99999{number}Z')) deep,
                map('k', 1) m, cast({number}.25 as decimal(5,2)) price"""
        )
        for number in range(2)
    ]
    writer = tg.sinks.Files(out, compact_to="1 MB").open(spark, pipeline="test")
    writer.recover(-1, None, generation=1)
    for number, frame in enumerate(rows):
        writer.publish(number, writer.write(frame, batch(number)))
    before, seen = tg.read(out), tg.read(out, spark)
    Compaction(OutputFolder(out), target=1 << 20).run()
    assert len(in_sight(out)) == 1
    assert tg.read(out).equals(before)
    written = sorted(rows[0].union(rows[1]).collect())
    others = [spark.read.parquet(out)] if local_folder(out) else []
    for frame in (seen, tg.read(out, spark), *others):
        assert frame.dtypes == rows[0].dtypes
        assert sorted(frame.collect()) == written


def test_output_without_rows_has_its_columns(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark)
    writer.publish(0, writer.write(numbers(0, 0), batch(0)))
    assert tg.read(out).column_names == ["id"]
    assert tg.read(out).num_rows == 0
    assert tg.read(out, spark).columns == ["id"]


def test_column_that_came_later_is_null_before(
    out: str, spark: SparkSession, numbers: Numbers, batch: Batch
) -> None:
    writer = opened(out, spark)
    writer.publish(0, writer.write(numbers(0, 1), batch(0)))
    writer.publish(1, writer.write(numbers(1, 2).selectExpr("id", "'new' as word"), batch(1)))
    expected = [{"id": 0, "word": None}, {"id": 1, "word": "new"}]
    assert tg.read(out).to_pylist() == expected
    assert [row.asDict() for row in tg.read(out, spark).orderBy("id").collect()] == expected


def test_reading_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"there is no folder .*/nowhere"):
        tg.read(tmp_path / "nowhere")
    with pytest.raises(SinkError, match="no batch has been committed"):
        tg.read(tmp_path)


def test_path_may_be_a_file_address() -> None:
    assert tg.sinks.Files("file:///data/out%201").location == "files:/data/out 1"
    assert tg.sinks.Files(Path("/data/../data/out")).location == "files:/data/out"


def test_path_may_be_in_a_store() -> None:
    assert tg.sinks.Files("s3://bucket/out/").location == "files:s3://bucket/out"
    assert tg.sinks.Files("s3://bucket/out").describe() == "Files s3://bucket/out (parquet)"


@pytest.mark.parametrize("path", ["hdfs://name/out", "file://host/out", "s3:///out", ""])
def test_path_that_is_no_place_is_refused(path: str) -> None:
    with pytest.raises(PipelineError, match=r"Files \(declared at .*\): .*(neither a local folder|empty)"):
        tg.sinks.Files(path)


def test_credentials_in_a_path_are_refused() -> None:
    with pytest.raises(PipelineError, match="come from the environment") as caught:
        tg.sinks.Files("s3://key:hidden@bucket/out")
    assert "hidden" not in str(caught.value)


def test_unknown_format_is_refused() -> None:
    with pytest.raises(PipelineError, match="cannot write 'xml'; it can write parquet and json") as caught:
        tg.sinks.Files("out", format="xml")  # type: ignore[arg-type]
    assert caught.value.step == "Files"
    assert caught.value.where is not None


@pytest.mark.parametrize("options", [{"compact_to": "large"}, {"keep_replaced": "long"}])
def test_compaction_that_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=r"Files \(declared at .*\): '(large|long)' is not a"):
        tg.sinks.Files("out", **options)


def test_place_that_is_a_file_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(SinkError, match="cannot write to"):
        tg.sinks.Files(tmp_path / "out").open(spark, pipeline="test")
