from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import tidegate as tg

p = tg.Pipeline("job", config={"engine": {"interval": "500 ms"}})
readings = p.source(tg.sources.Sensors(sensors=10, rate=1_000))
readings.filter("value > 0").sink(tg.sinks.Discard())
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli.main", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_reports_each_batch_and_ends_well_on_ctrl_c(job: Path) -> None:
    with start("run", "job.py", "--json", "--parallelism", "1", cwd=job.parent) as process:
        assert process.stdout is not None
        try:
            first = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert (first["pipeline"], first["batch_id"], first["parallelism"]) == ("job", 0, 1)
    assert first["interval_seconds"] == 0.5
    summary = json.loads(rest.splitlines()[-1])["summary"]
    assert summary["stopped_by"] == "signal"
    assert (job.parent / ".tidegate" / "job").is_dir()


@pytest.mark.spark
@pytest.mark.slow
def test_what_java_prints_does_not_get_between_the_json(job: Path) -> None:
    talkative = "spark.conf.spark.driver.extraJavaOptions=-Xlog:gc"
    with start("run", "job.py", "--json", "--for", "1 s", "--set", talkative, cwd=job.parent) as process:
        try:
            told, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "[gc]" in errors
    assert [line for line in told.splitlines() if "batch_id" in json.loads(line)]


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_ends_well_when_nobody_reads_it_any_more(job: Path) -> None:
    with start("run", "job.py", "--json", "--parallelism", "1", cwd=job.parent) as process:
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
    job: Path, arguments: list[str], code: int, message: str
) -> None:
    with start("run", *arguments, cwd=job.parent) as process:
        output, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors.startswith("Error: ")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert output == ""


def test_a_pipeline_without_a_sink_is_refused_at_its_line(job: Path) -> None:
    job.write_text('import tidegate as tg\np = tg.Pipeline("job")\np.source(tg.sources.Sensors())\n')
    with start("run", "job.py", "--quiet", cwd=job.parent) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "job.py:3" in errors
    assert "Traceback" not in errors
