from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.java import DRIVER_JAVA, SMALL
from tidegate.cli.main import main

JOB = """
import tidegate as tg

p = tg.Pipeline("job", config={"engine": {"interval": "500 ms"}})
readings = p.source(tg.sources.Sensors(sensors=10, rate=1_000))
readings.filter("value > 0").sink(tg.sinks.Discard())
"""
SMALL_JAVA = f"spark.conf.{DRIVER_JAVA}={SMALL}"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


Refused = Callable[..., tuple[object, str, str]]


@pytest.fixture
def refused(job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """`tidegate run` in this process, where the job is: its exit code, output and errors."""
    monkeypatch.chdir(job.parent)

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["tidegate", "run", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        told = capsys.readouterr()
        return end.value.code, told.out, told.err

    return run


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli.main", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@dataclass(frozen=True)
class Told:
    """A run that was ended by Ctrl-C after its first batch, with a Java that prints on its own."""

    folder: Path
    code: int
    lines: list[dict[str, Any]]
    errors: str


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.py").write_text(JOB)
    talking = f"{SMALL_JAVA} -Xlog:gc"
    with start("run", "job.py", "--json", "--parallelism", "1", "--set", talking, cwd=folder) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    lines = [json.loads(line) for line in (first + rest).splitlines()]
    return Told(folder, process.returncode, lines, errors)


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_reports_each_batch_and_ends_well_on_ctrl_c(told: Told) -> None:
    assert told.code == 0, told.errors
    first = told.lines[0]
    assert (first["pipeline"], first["batch_id"], first["parallelism"]) == ("job", 0, 1)
    assert first["interval_seconds"] == 0.5
    assert told.lines[-1]["summary"]["stopped_by"] == "signal"
    assert (told.folder / ".tidegate" / "job").is_dir()


@pytest.mark.spark
@pytest.mark.slow
def test_what_java_prints_does_not_get_between_the_json(told: Told) -> None:
    assert "[gc]" in told.errors
    assert "batch_id" in told.lines[0]


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_ends_well_when_nobody_reads_it_any_more(job: Path) -> None:
    with start(
        "run", "job.py", "--json", "--parallelism", "1", "--set", SMALL_JAVA, cwd=job.parent
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            json.loads(process.stdout.readline())
            process.stdout.close()
            errors = process.stderr.read()
            process.wait(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "Error" not in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["job.py", "--set", "engine.tres=1"], 2, "did you mean engine.tries?"),
        (["job.py", "--interval", "soon"], 2, "engine.interval (command line): expected a duration"),
        (["job.py", "--for", "ever"], 2, "'ever' is not a duration"),
        (["job.py", "--parallelism", "0"], 2, "engine.parallelism (command line): expected a whole number"),
        (["job.py:other"], 1, "'other'"),
        (["no.py"], 1, "no.py"),
    ],
)
def test_what_is_wrong_is_said_before_spark_starts(
    refused: Refused, arguments: list[str], code: int, message: str
) -> None:
    told, output, errors = refused(*arguments)
    assert told == code
    assert errors.startswith("Error: ")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert output == ""


def test_a_pipeline_without_a_sink_is_refused_at_its_line(job: Path, refused: Refused) -> None:
    job.write_text('import tidegate as tg\np = tg.Pipeline("job")\np.source(tg.sources.Sensors())\n')
    code, _, errors = refused("job.py", "--quiet")
    assert code == 1
    assert "job.py:3" in errors
    assert "Traceback" not in errors
