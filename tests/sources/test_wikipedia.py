"""The two workloads: what is written, and that the sources read it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import Pipeline
from tidegate.errors import PipelineError
from tidegate.sinks import Discard
from tidegate.sources import ServerNames, Wikipedia
from tidegate.sources._changes import changes
from tidegate.sources._folder import Totals, Volume, write_lines
from tidegate.sources.source import REASON, Limit, Source
from tidegate.sources.wikipedia import server_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_wikipedia(out: Path, volume: Volume, *, seed: int = 0, **more: Any) -> Totals:
    return write_lines(out, partial(changes, seed), volume, seed=seed, **more)


def write_server_names(out: Path, volume: Volume, **more: Any) -> Totals:
    return write_lines(out, partial(server_lines, 0), volume, **more)


def lines(folder: Path) -> list[str]:
    return [line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def test_a_change_has_the_fields_of_the_stream(tmp_path: Path) -> None:
    write_wikipedia(tmp_path, Volume(rows=2000))
    found = [json.loads(line) for line in lines(tmp_path)]
    assert len(found) == 2000
    assert {change["type"] for change in found} == {"edit", "new", "log", "categorize"}
    assert [change["id"] for change in found] == list(range(1_700_000_000, 1_700_002_000))
    for change in found:
        assert set(change) == {
            "id", "type", "namespace", "title", "comment", "timestamp", "user", "bot", "minor", "length",
            "server_name", "wiki",
        }  # fmt: skip
        sizes = {"edit": {"old", "new"}, "new": {"new"}}.get(change["type"])
        assert (set(change["length"]) if change["length"] is not None else None) == sizes


def test_server_names_are_those_of_the_workload(tmp_path: Path) -> None:
    write_server_names(tmp_path, Volume(rows=50_000))
    found = [json.loads(line) for line in lines(tmp_path)]
    assert {record["id"] for record in found} == set(range(1, 101))
    numbers = [int(record["server_name"].removeprefix("server-")) for record in found]
    assert min(numbers) >= 1
    assert max(numbers) <= 100_000
    assert len(set(numbers)) > 35_000


@given(st.integers(0, 10**9), st.integers(1, 40), st.integers(0, 40))
def test_a_line_does_not_depend_on_the_chunk(first: int, before: int, after: int) -> None:
    whole = changes(5, first, first + before + after).to_pylist()
    middle = first + before
    assert changes(5, first, middle).to_pylist() + changes(5, middle, middle + after).to_pylist() == whole


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_wikipedia(tmp_path / name, Volume(rows=500), seed=seed, malformed=0.1)
    a, b, c = (lines(tmp_path / name) for name in "abc")
    assert a == b
    assert a != c


def test_rows_are_spread_over_files(tmp_path: Path) -> None:
    written = write_server_names(tmp_path, Volume(rows=100, files=3))
    assert [len(file.read_text().splitlines()) for file in sorted(tmp_path.iterdir())] == [33, 33, 34]
    assert (written.rows, written.files) == (100, 3)
    assert written.size == sum(file.stat().st_size for file in tmp_path.iterdir())


def test_a_size_is_met_to_the_line(tmp_path: Path) -> None:
    written = write_wikipedia(tmp_path, Volume(size=1_000_000, files=2))
    for file in tmp_path.iterdir():
        assert 500_000 <= file.stat().st_size < 500_400
        assert file.read_text().endswith("}\n")
    assert written.rows == len(lines(tmp_path))


def test_files_go_on_where_the_one_before_ended(tmp_path: Path) -> None:
    write_wikipedia(tmp_path, Volume(size=100_000, files=3))
    ids = [json.loads(line)["id"] for line in lines(tmp_path)]
    assert ids == list(range(ids[0], ids[0] + len(ids)))


def test_a_share_of_lines_is_malformed(tmp_path: Path) -> None:
    write_server_names(tmp_path, Volume(rows=10_000), malformed=0.2)
    found = lines(tmp_path)
    assert len(found) == 10_000
    broken = [
        line for line in found if not line.startswith('{"id": ') or not line.endswith('"}') or "seven" in line
    ]
    assert len(broken) == pytest.approx(2000, rel=0.1)


def test_no_half_file_is_left_when_writing_fails(tmp_path: Path) -> None:
    def fail(written: Totals) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_wikipedia(tmp_path, Volume(rows=10), progress=fail)
    assert list(tmp_path.iterdir()) == []


def test_progress_adds_up(tmp_path: Path) -> None:
    told: list[Totals] = []
    written = write_server_names(
        tmp_path, Volume(rows=150_000, files=2), progress=lambda so_far: told.append(replace(so_far))
    )
    assert [so_far.rows for so_far in told] == [65_536, 75_000, 140_536, 150_000]
    assert [so_far.size for so_far in told] == sorted(so_far.size for so_far in told)
    assert told[-1].size == written.size


@pytest.mark.parametrize(
    "arguments",
    [{}, {"rows": 1, "size": 1}, {"rows": 0}, {"size": -1}, {"rows": 5, "files": 0}, {"rows": 5, "files": 6}],
)
def test_a_volume_that_makes_no_sense_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(PipelineError):
        Volume(**arguments)


@pytest.mark.parametrize("source", [Wikipedia("in"), ServerNames("in")])
def test_limits_and_location_are_those_of_files(source: Source) -> None:
    assert source.limit(100, None) == Limit("files", 1)
    assert source.location == f"files:{Path('in').absolute()}"
    assert source.fallible


def test_a_bad_grace_is_refused_with_the_pipeline() -> None:
    p = Pipeline("late")
    p.source(Wikipedia("in", grace="late")).sink(Discard())
    with pytest.raises(PipelineError, match=r"source-1.*grace: 'late' is not a duration"):
        p.plan()


@pytest.mark.spark
@pytest.mark.parametrize("kind", [Wikipedia, ServerNames])
def test_spark_reads_what_was_written(
    spark: SparkSession, tmp_path: Path, kind: type[Wikipedia | ServerNames]
) -> None:
    write = write_wikipedia if kind is Wikipedia else write_server_names
    write(tmp_path / "in", Volume(rows=3000, files=2), malformed=0.1)
    seen = []
    query = (
        kind(tmp_path / "in")
        .load(spark, parallelism=2, first_rows=None)
        .writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(seen) == 3000
    good = [row for row in seen if row[REASON] is None]
    assert 3000 - len(good) == pytest.approx(300, rel=0.25)
    if kind is Wikipedia:
        first = min(good, key=lambda row: int(row.id))
        assert first.timestamp.replace(tzinfo=UTC) == datetime(2024, 6, 1, tzinfo=UTC)
        assert all(row.length.new >= 0 for row in good if row.type == "edit")
    else:
        assert all(row.server_name.startswith("server-") for row in good)
