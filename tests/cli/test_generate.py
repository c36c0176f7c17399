"""`tidegate generate`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tidegate import units
from tidegate.cli.generate import app
from tidegate.errors import ConfigError, PipelineError, SizeError
from tidegate.sources import Sensors
from tidegate.sources._recording import FIRST_MICROS


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, arguments, catch_exceptions=False).output


@pytest.mark.parametrize("command", ["wikipedia", "server-names", "sensors"])
def test_each_command_writes_its_rows(tmp_path: Path, command: str) -> None:
    output = run(command, "--out", str(tmp_path), "--rows", "500", "--files", "2")
    assert "500 rows" in output
    assert "2 files" in output
    found = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert len(found) == 500


def test_a_second_run_adds_files_and_leaves_those_that_a_stream_may_have_read(tmp_path: Path) -> None:
    run("server-names", "--out", str(tmp_path), "--rows", "20", "--files", "2")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    output = run("server-names", "--out", str(tmp_path), "--rows", "20", "--files", "2", "--seed", "1")
    assert "from part-00002.json on" in output
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"part-0000{number}.json" for number in range(4)]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_short_h_asks_for_help() -> None:
    assert "--malformed" in run("sensors", "-h")


def test_a_size_can_be_given_instead_of_rows(tmp_path: Path) -> None:
    run("wikipedia", "--out", str(tmp_path), "--size", "50 kB", "--files", "1")
    assert (tmp_path / "part-00000.json").stat().st_size == pytest.approx(50_000, abs=400)


def test_sensors_can_be_parquet(tmp_path: Path) -> None:
    run(
        "sensors",
        "--out",
        str(tmp_path),
        "--rows",
        "1000",
        "--files",
        "1",
        "--format",
        "parquet",
        "--seed",
        "9",
    )
    table = pq.read_table(tmp_path / "part-00000.parquet")
    assert table.to_batches()[0].equals(Sensors(rate=None, seed=9).batch(0, 1000, start=FIRST_MICROS))


def test_sensors_can_be_csv_with_a_header_in_each_file(tmp_path: Path) -> None:
    run(
        "sensors",
        "--out",
        str(tmp_path),
        "--rows",
        "10",
        "--files",
        "2",
        "--format",
        "csv",
        "--start",
        "2025-01-31",
    )
    for file in tmp_path.iterdir():
        header, *lines = file.read_text().splitlines()
        assert header == "id,timestamp,value"
        assert all(line.split(",")[1].startswith("2025-01-31 00:00:00.") for line in lines)


def test_parquet_has_no_lines_to_break(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="json or csv"):
        run("sensors", "--out", str(tmp_path), "--format", "parquet", "--malformed", "0.1")


def test_rows_and_size_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not both"):
        run("wikipedia", "--out", str(tmp_path), "--rows", "5", "--size", "5 MB")


@pytest.mark.parametrize("text", ["", "much", "5 parsecs", "-1 MB", "5 ib"])
def test_a_bad_size_is_refused(text: str) -> None:
    with pytest.raises(SizeError, match="write it like"):
        units.size(text)
