from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.main import app
from tidegate.errors import PipelineError, TidegateError

JOB = """
import tidegate as tg

p = tg.Pipeline("job")
readings = p.source(tg.sources.Sensors(sensors=10, rate=1_000))
readings.filter("value > 0").sink(tg.sinks.Discard())
p.run()
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def test_it_prints_the_tree_and_runs_nothing(job: Path) -> None:
    answer = CliRunner().invoke(app, ["show", "job.py"], catch_exceptions=False)
    assert answer.exit_code == 0
    lines = answer.stdout.splitlines()
    assert lines[0] == "job"
    assert [word for word in ("source", "filter", "sink") if word in answer.stdout] == [
        "source",
        "filter",
        "sink",
    ]


def test_it_draws_into_a_file(job: Path) -> None:
    answer = CliRunner().invoke(app, ["show", "job.py", "--html", "job.html"], catch_exceptions=False)
    assert answer.exit_code == 0
    assert "job.html" in answer.stdout
    page = (job.parent / "job.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert '<meta charset="utf-8"><title>job</title>' in page
    assert "<svg" in page


def test_a_file_that_cannot_be_written_is_an_error(job: Path) -> None:
    answer = CliRunner().invoke(app, ["show", "job.py", "--html", "no/such/job.html"])
    assert isinstance(answer.exception, TidegateError)
    assert "cannot write no/such/job.html" in str(answer.exception)


def test_a_wrong_pipeline_is_shown_and_then_refused(job: Path) -> None:
    job.write_text('import tidegate as tg\np = tg.Pipeline("job")\np.source(tg.sources.Sensors())\n')
    answer = CliRunner().invoke(app, ["show", "job.py"])
    assert "source" in answer.stdout
    assert isinstance(answer.exception, PipelineError)
