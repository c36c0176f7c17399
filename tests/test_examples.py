"""The examples run, and what they leave behind is what their first lines say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

import tidegate as tg
from tidegate import config
from tidegate.pipeline.loading import load
from tidegate.run.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, *, until_done: bool = False, until_rows: bool = False) -> Summary:
    """Run an example until it is done, until rows have left it, or until it has committed three batches."""
    pipeline = load(str(EXAMPLES / f"{name}.py"))
    settings = config.load(code=pipeline.config, environ={}, overrides={"engine.interval": "200 ms"})
    batches = rows = 0
    stopped = until_done

    def count(progress: tg.BatchProgress) -> None:
        nonlocal batches, rows, stopped
        batches += 1
        rows += progress.rows_out
        if batches >= 3 and not stopped and (rows or not until_rows):
            stopped = True
            raise_stop()

    def raise_stop() -> None:
        import signal

        signal.raise_signal(signal.SIGINT)

    return pipeline.run(config=settings, listeners=[count], until_done=until_done)


def test_map_job(spark: SparkSession, here: Path) -> None:
    summary = run("map_job")
    out = tg.read(here / "out/map-job")
    assert summary.stopped_by == "signal"
    assert out.num_rows == summary.rows_out == summary.rows_in > 0
    terms = [0, 1]
    while len(terms) < 60:
        terms.append(terms[-1] + terms[-2])
    assert out["fibonacci"].to_pylist() == [terms[key % 60] for key in out["id"].to_pylist()]


def test_temperature(spark: SparkSession, here: Path) -> None:
    summary = run("temperature")
    hot = tg.read(here / "out/hot")
    assert 0 < hot.num_rows == summary.rows_out < summary.rows_in
    assert pc.min(hot["value"]).as_py() > 30
    assert pc.min(hot["kelvin"]).as_py() > 303.15


def test_wikipedia(spark: SparkSession, here: Path) -> None:
    from tidegate.cli.main import app

    options = ["--rows", "2000", "--out", "data/wikipedia", "--malformed", "0.01"]
    made = CliRunner().invoke(app, ["generate", "wikipedia", *options])
    assert made.exit_code == 0, made.output
    summary = run("wikipedia", until_done=True)
    assert summary.rows_in == 2000
    assert summary.dead_letters > 0
    dead = tg.read(here / ".tidegate/wikipedia/dead-letters/source-1")
    assert dead.num_rows == summary.dead_letters
    words = tg.read(here / "out/words")
    assert words.num_rows > 0
    assert pc.min(pc.utf8_length(words["word"])).as_py() > 2
    assert tg.read(here / "out/bots").num_rows > 0


def test_two_sites(spark: SparkSession, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run("two_sites")
    assert summary.rows_in == summary.rows_out > 0
    assert "celsius" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["id_id_join", "id_value_join"])
def test_window_joins(spark: SparkSession, here: Path, name: str) -> None:
    summary = run(name, until_rows=True)
    pairs = tg.read(here / f"out/{name.replace('_', '-')}")
    assert pairs.num_rows == summary.rows_out > 0
    starts = {moment.timestamp() for moment in pc.unique(pairs["window_start"]).to_pylist()}
    assert all(start % 4 == 0 for start in starts)
    terms = [0, 1]
    while len(terms) < 30:
        terms.append(terms[-1] + terms[-2])
    assert pairs["fibonacci"].to_pylist() == [terms[key % 30] for key in pairs["id"].to_pylist()]
    if name == "id_value_join":
        assert pc.max(pairs["id"]).as_py() < 10_000, "only ids that are also values have partners"


def test_server_count(spark: SparkSession, here: Path) -> None:
    summary = run("server_count", until_rows=True)
    counts = tg.read(here / "out/server-count")
    assert counts.num_rows == summary.rows_out > 0
    # One by one: the largest count of a server is how often it was handed on, or more.
    assert pc.min(counts["n"]).as_py() == 1
    handed = counts.group_by("server_name").aggregate([("n", "max"), ("n", "count")])
    assert pc.all(pc.greater_equal(handed["n_max"], handed["n_count"])).as_py()
