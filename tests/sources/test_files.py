"""Files: good rows, bad rows, new files, and limits."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from tidegate.errors import PipelineError
from tidegate.sources import Files
from tidegate.sources.source import RAW, REASON, Limit, Position, Source, Taken

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Read = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


@pytest.fixture
def read(spark: SparkSession, tmp_path: Path) -> Read:
    """Read what is new in a source, and go on from there the next time."""

    def rows(source: Source) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = []
        query = (
            source.load(spark, parallelism=2, first_rows=None)
            .writeStream.foreachBatch(
                lambda batch, _: seen.extend(row.asDict(recursive=True) for row in batch.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return seen

    return rows


def good(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The good rows without the two columns of the bad ones."""
    assert all(row[RAW] is None for row in rows if row[REASON] is None)
    return [{k: v for k, v in row.items() if k not in (RAW, REASON)} for row in rows if row[REASON] is None]


def bad(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row[RAW]: row[REASON] for row in rows if row[REASON] is not None}


@pytest.mark.spark
def test_json_lines_become_rows(folder: Path, read: Read) -> None:
    (folder / "a.json").write_text(
        '\ufeff{"id":1,"name":"a","at":{"x":1}}\r\n\n   \n'
        '{"id":2,"more":true}\n{"name":"}{ \\" é","id":null}\n{}'
    )
    assert good(read(Files(folder, schema="id bigint, name string, at struct<x: int>"))) == [
        {"id": 1, "name": "a", "at": {"x": 1}},
        {"id": 2, "name": None, "at": None},
        {"id": None, "name": '}{ " é', "at": None},
        {"id": None, "name": None, "at": None},
    ]


@pytest.mark.spark
def test_every_malformed_json_line_comes_out_with_its_reason(folder: Path, read: Read) -> None:
    reasons = {
        '{"id":1': "not JSON",
        "hello": "not JSON",
        '{"id":1} {"id":2}': "more than one object",
        '{"id":1},{"id":2}': "more than one object",
        '{"id":1} trailing }': "not JSON",
        '{"id":1}]} x': "not JSON",
        '{"id":1},"name":{}': "not JSON",
        "null": "not a JSON object",
        "5": "not a JSON object",
        '"text"': "not a JSON object",
        '[{"id":1}]': "not a JSON object",
        '{"id":"one"}': "does not fit the type",
        '{"id":1.5}': "does not fit the type",
        '{"id":99999999999999999999}': "does not fit the type",
        '{"id":1,"at":{"x":"y"}}': "does not fit the type",
    }
    (folder / "a.json").write_text("\n".join([*reasons, '{"id":7}']))
    rows = read(Files(folder, schema="id bigint, name string, at struct<x: int>"))
    assert [row["id"] for row in good(rows)] == [7]
    found = bad(rows)
    assert set(found) == set(reasons)
    assert [line for line, reason in reasons.items() if reason not in found[line]] == []


@pytest.mark.spark
def test_a_line_that_is_not_utf8_is_malformed(folder: Path, read: Read) -> None:
    (folder / "a.json").write_bytes(b'{"name":"\xff"}\n')
    assert bad(read(Files(folder, schema="name string"))) == {'{"name":"\ufffd"}': "not UTF-8"}


@pytest.mark.spark
def test_csv_lines_become_rows(folder: Path, read: Read) -> None:
    (folder / "a.csv").write_text('1,"a, b",2.5\n\n2,,\n')
    assert good(read(Files(folder, "csv", "id bigint, name string, value double"))) == [
        {"id": 1, "name": "a, b", "value": 2.5},
        {"id": 2, "name": None, "value": None},
    ]


@pytest.mark.spark
def test_every_malformed_csv_line_comes_out(folder: Path, read: Read) -> None:
    lines = ["1,a", "1,a,2,3", "x,a,2", '1,"a,2', "id,name,value"]
    (folder / "a.csv").write_text("\n".join([*lines, "7,a,2"]))
    rows = read(Files(folder, "csv", "id bigint, name string, value double"))
    assert [row["id"] for row in good(rows)] == [7]
    assert set(bad(rows)) == set(lines)


@pytest.mark.spark
def test_csv_headers_are_skipped_in_every_file(folder: Path, read: Read) -> None:
    (folder / "a.csv").write_text('ID; "Name"\n1;a\n')
    (folder / "b.csv").write_text("\ufeffid;name\n2;b\n")
    rows = read(Files(folder, "csv", "id bigint, name string", header=True, options={"sep": ";"}))
    assert sorted(row["id"] for row in good(rows)) == [1, 2]
    assert bad(rows) == {}


@pytest.mark.spark
def test_compressed_lines_are_read(folder: Path, read: Read) -> None:
    (folder / "a.json.gz").write_bytes(gzip.compress(b'{"id":1}\n{"id":2}\n'))
    assert [row["id"] for row in good(read(Files(folder, schema="id int")))] == [1, 2]


@pytest.mark.spark
@pytest.mark.parametrize(("repaired", "ids"), [('{"id":1}\n', [1, 2]), ("", [2])])
def test_damaged_compressed_lines_are_read_once_they_are_repaired(
    repaired: str, ids: list[int], folder: Path, read: Read
) -> None:
    source = Files(folder, schema="id int")
    (folder / "a.json.gz").write_bytes(gzip.compress(b'{"id":1}\n' * 1000)[:-20])
    (folder / "b.json").write_text('{"id":2}\n')
    with pytest.raises(StreamingQueryException, match=r"a\.json\.gz"):
        read(source)
    (folder / "a.json.gz").write_bytes(gzip.compress(repaired.encode()) if repaired else b"")
    assert sorted(row["id"] for row in good(read(source))) == ids


@pytest.mark.spark
def test_parquet_rows_get_the_types_of_the_schema(folder: Path, read: Read) -> None:
    table = pa.table({"more": [1], "name": ["a"], "id": pa.array([5], pa.int32())})
    pq.write_table(table, folder / "with space %20.parquet")
    rows = read(Files(folder, "parquet", "id bigint, name string, value double"))
    assert good(rows) == [{"id": 5, "name": "a", "value": None}]


@pytest.mark.spark
def test_parquet_files_that_cannot_be_read_come_out_by_name(folder: Path, read: Read) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), folder / "good.parquet")
    (folder / "junk.parquet").write_bytes(b"junk" * 100)
    pq.write_table(pa.table({"other": [1]}), folder / "other.parquet")
    pq.write_table(pa.table({"id": ["x"]}), folder / "type.parquet")
    pq.write_table(pa.table({"id": range(300_000)}), folder / "half.parquet", row_group_size=75_000)
    half = bytearray((folder / "half.parquet").read_bytes())
    half[len(half) // 2 : len(half) * 3 // 4] = bytes(len(half) * 3 // 4 - len(half) // 2)
    (folder / "half.parquet").write_bytes(half)
    rows = read(Files(folder, "parquet", "id bigint"))
    found = {Path(raw).name: reason for raw, reason in bad(rows).items()}
    assert set(found) == {"junk.parquet", "other.parquet", "type.parquet", "half.parquet"}
    ids = [row["id"] for row in good(rows)]
    # What stands before the damage is not lost, and the reason tells where it begins.
    assert f"after {len(ids) - 2} rows" in found["half.parquet"]
    assert 65_536 <= len(ids) - 2 < 300_000


@pytest.mark.spark
def test_a_parquet_schema_is_taken_from_a_file_that_is_there(folder: Path, read: Read) -> None:
    (folder / "a.parquet").write_bytes(b"junk")
    pq.write_table(pa.table({"id": [1], "name": ["a"]}), folder / "b.parquet")
    assert good(read(Files(folder, "parquet"))) == [{"id": 1, "name": "a"}]


@pytest.mark.spark
def test_no_schema_and_no_parquet_file_is_an_error(folder: Path, spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="give a schema"):
        Files(folder, "parquet").load(spark, parallelism=1, first_rows=None)


@pytest.mark.spark
@pytest.mark.parametrize("url", ["s3://bucket/in", "s3a://bucket/in"])
def test_a_store_that_spark_cannot_read_is_an_error(url: str, spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=rf"no connector to read {url}: copy the files .*hadoop-aws"):
        Files(url, schema="id bigint").load(spark, parallelism=2, first_rows=None)


@pytest.mark.spark
def test_new_files_are_picked_up_and_old_ones_are_not_read_again(folder: Path, read: Read) -> None:
    source = Files(folder, schema="id int")
    (folder / "a.json").write_text('{"id":1}\n')
    assert [row["id"] for row in good(read(source))] == [1]
    (folder / "b.json").write_text('{"id":2}\n')
    assert [row["id"] for row in good(read(source))] == [2]


@pytest.mark.spark
def test_files_still_being_written_are_not_seen(folder: Path, read: Read) -> None:
    (folder / ".a.json.writing").write_text('{"id":1}\n')
    (folder / "_b.json").write_text('{"id":2}\n')
    assert read(Files(folder, schema="id int")) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=f"there is no folder {tmp_path / 'no'}; .*create it"):
        Files(tmp_path / "no", schema="id int").check()
    assert not (tmp_path / "no").exists()


def test_a_file_is_no_folder(folder: Path) -> None:
    (folder / "a.json").write_text('{"id":1}\n')
    with pytest.raises(PipelineError, match="give the folder that it is in"):
        Files(folder / "a.json", schema="id int").check()


def test_a_folder_without_files_is_said(folder: Path) -> None:
    source = Files(folder, schema="id int")
    (folder / ".a.json.writing").write_text('{"id":1}\n')
    assert source.check() == f"no files in {folder} yet"
    (folder / "a.json").write_text('{"id":1}\n')
    assert source.check() is None


@pytest.mark.parametrize("path", ["s3a://bucket/in", "data/*/in"])
def test_what_cannot_be_seen_from_here_is_not_missing(path: str) -> None:
    assert Files(path, schema="id int").check() is None


@pytest.mark.spark
def test_the_first_batch_takes_one_file(folder: Path, spark: SparkSession, tmp_path: Path) -> None:
    for name in "abc":
        (folder / f"{name}.json").write_text('{"id":1}\n')
    sizes: list[int] = []
    stream = Files(folder, schema="id int").load(spark, parallelism=2, first_rows=1000)
    query = stream.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
    query = query.option("checkpointLocation", str(tmp_path / "first"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert sizes == [1, 1, 1]


@pytest.mark.spark
def test_a_bad_schema_is_refused(folder: Path, spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="not a schema"):
        Files(folder, schema="id bigintt").load(spark, parallelism=1, first_rows=None)


@pytest.mark.spark
def test_an_event_time_that_is_no_column_is_refused(folder: Path, spark: SparkSession) -> None:
    source = Files(folder, schema="id int", event_time="at")
    with pytest.raises(PipelineError, match="there is no column 'at' among id"):
        source.load(spark, parallelism=1, first_rows=None)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"format": "xml", "schema": "id int"}, "format must be one of json, csv, parquet"),
        ({"format": "json"}, "json files need a schema"),
        ({"format": "json", "schema": {"id": "int"}}, "the schema is text, like"),
        ({"format": "csv"}, "csv files need a schema"),
        ({"schema": "id int", "header": True}, "header is for csv"),
        ({"schema": "id int", "options": {"mode": "DROPMALFORMED"}}, "option mode cannot be set"),
        ({"format": "parquet", "options": {"sep": ";"}}, "options are for json and csv"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        Files("in", **arguments)


def test_the_location_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Files("in", schema="id int").location == f"files:{tmp_path}/in"
    assert Files(f"file://{tmp_path}/in", schema="id int").location == f"files:{tmp_path}/in"
    assert Files("s3a://bucket/in", schema="id int").location == "files:s3a://bucket/in"


def test_the_limit_follows_the_bytes_per_row(tmp_path: Path) -> None:
    (tmp_path / "a b.json").write_bytes(bytes(5000))
    source = Files(tmp_path, schema="id int")
    assert source.limit(1000, None) == Limit("files", 1)
    assert source.limit(1000, Taken(100, (f"file://{tmp_path}/a%20b.json",))) == Limit("bytes", 50_000)


def test_a_batch_without_rows_lets_more_files_in(tmp_path: Path) -> None:
    source = Files(tmp_path, schema="id int")
    assert source.limit(1000, Taken(0, ("/gone/a.json", "/gone/b.json"))) == Limit("files", 4)


@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_the_limit_of_files_that_cannot_be_seen_scales_by_rows(file_format: Any) -> None:
    source = Files("s3a://bucket/in", file_format, "id int")
    taken = Taken(200, ("s3a://bucket/in/a", "s3a://bucket/in/b"))
    assert source.limit(1000, taken) == Limit("files", 10)
    assert source.limit(50, taken) == Limit("files", 1)


def test_the_limit_ignores_sizes_when_some_files_are_gone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(5000))
    taken = Taken(200, (str(tmp_path / "a"), str(tmp_path / "gone")))
    assert Files(tmp_path, schema="id int").limit(1000, taken) == Limit("files", 10)


def test_the_limit_of_parquet_counts_rows_not_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet")
    size = (tmp_path / "a.parquet").stat().st_size
    source = Files(tmp_path, "parquet")
    assert source.limit(500, Taken(1, (str(tmp_path / "a.parquet"),))) == Limit("bytes", size // 2)


def test_the_lag_is_not_known(tmp_path: Path) -> None:
    assert Files(tmp_path, schema="id int").lag(Position(None, {"logOffset": 1})) is None
