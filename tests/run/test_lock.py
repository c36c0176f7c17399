"""A checkpoint has one driver; another one has to insist."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tidegate as tg
from tidegate import config
from tidegate.cli.main import app
from tidegate.errors import InUseError
from tidegate.ledger.ledger import Ledger
from tidegate.run.checkpoint import Checkpoint, check_owner, make
from tidegate.run.lock import DriverLock, locked

JOB = """
import tidegate as tg

p = tg.Pipeline("job")
p.source(tg.sources.Sensors(rows=10)).sink(tg.sinks.Discard())
"""


def test_a_second_driver_is_refused_with_process_and_host_of_the_first(tmp_path: Path) -> None:
    with locked(Checkpoint.at(tmp_path), take_over=False):
        with pytest.raises(InUseError, match=f"process {os.getpid()} on {socket.gethostname()}") as refused:
            locked(Checkpoint.at(tmp_path), take_over=False).__enter__()
        assert (refused.value.pid, refused.value.host) == (os.getpid(), socket.gethostname())
    with locked(Checkpoint.at(tmp_path), take_over=False):
        pass


def test_a_driver_that_was_killed_leaves_nothing_to_clean_up(tmp_path: Path) -> None:
    program = (
        "from tidegate.run.checkpoint import Checkpoint; from tidegate.run.lock import DriverLock;"
        f"lock = DriverLock(Checkpoint.at({str(tmp_path)!r})); print(lock.acquire(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "True\n"
        with pytest.raises(InUseError) as refused:
            locked(Checkpoint.at(tmp_path), take_over=False).__enter__()
        assert refused.value.pid == first.pid
        first.kill()
    with locked(Checkpoint.at(tmp_path), take_over=False) as second:
        assert second.acquire()


def test_one_that_insists_has_the_lock_once_it_has_claimed_it(tmp_path: Path) -> None:
    first, third = DriverLock(Checkpoint.at(tmp_path)), DriverLock(Checkpoint.at(tmp_path))
    assert first.acquire()
    with locked(Checkpoint.at(tmp_path), take_over=True) as second:
        # It may still fail: up to here the first one has lost nothing.
        assert first.is_held()
        second.claim()
        assert (first.is_held(), second.is_held()) == (False, True)
        assert not third.acquire()
        first.release()
        assert not third.acquire()
    assert third.acquire()
    third.release()


def test_one_that_lost_the_lock_while_it_started_is_refused(tmp_path: Path) -> None:
    with (
        locked(Checkpoint.at(tmp_path), take_over=False) as first,
        locked(Checkpoint.at(tmp_path), take_over=True) as second,
    ):
        second.claim()
        with pytest.raises(InUseError):
            first.claim()
        assert second.is_held()


def test_the_last_of_two_that_insist_has_the_lock(tmp_path: Path) -> None:
    with (
        locked(Checkpoint.at(tmp_path), take_over=True) as first,
        locked(Checkpoint.at(tmp_path), take_over=True) as second,
    ):
        second.claim()
        first.claim()
        assert (first.is_held(), second.is_held()) == (True, False)


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    with locked(Checkpoint.at(tmp_path), take_over=False) as first:
        assert first._file is not None
        inherited = os.dup(first._file.fileno())
    with locked(Checkpoint.at(tmp_path), take_over=False) as second:
        assert second.is_held()
    os.close(inherited)


def test_a_run_on_a_checkpoint_in_use_is_refused_before_spark_starts(tmp_path: Path) -> None:
    p = tg.Pipeline("job")
    p.source(tg.sources.Sensors(rows=10)).sink(tg.sinks.Discard())
    # No Spark starts with this master.
    overrides = {"engine.checkpoint": str(tmp_path), "spark.master": "nowhere"}
    with locked(Checkpoint.at(tmp_path), take_over=False), pytest.raises(InUseError):
        p.run(config=config.load(environ={}, overrides=overrides), listeners=[])


def test_a_run_that_is_refused_leaves_the_checkpoint_to_the_pipeline_that_has_it(tmp_path: Path) -> None:
    """It waits for its first rows: by what is there, it might as well have never run."""
    running = tg.Pipeline("running")
    running.source(tg.sources.Sensors(rows=10)).sink(tg.sinks.Discard())
    check_owner(Checkpoint.at(tmp_path), running.plan())
    before = (tmp_path / "pipeline.json").read_bytes()
    other = tg.Pipeline("other")
    other.source(tg.sources.Sensors(rows=10)).sink(tg.sinks.Discard())
    settings = config.load(environ={}, overrides={"engine.checkpoint": str(tmp_path)})
    with locked(Checkpoint.at(tmp_path), take_over=False), pytest.raises(InUseError):
        other.run(config=settings, listeners=[])
    assert (tmp_path / "pipeline.json").read_bytes() == before


def test_the_command_says_how_to_insist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    checkpoint = tmp_path / ".tidegate/job"
    checkpoint.mkdir(parents=True)
    with locked(Checkpoint.at(checkpoint), take_over=False):
        outcome = CliRunner().invoke(app, ["run", "job.py"])
    assert isinstance(outcome.exception, InUseError)
    assert f"process {os.getpid()}" in str(outcome.exception)
    assert "--take-over" in str(outcome.exception)


@pytest.mark.s3
def test_drivers_of_several_machines_know_of_each_other_by_the_store(
    s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "from tidegate.ledger.ledger import Ledger; from tidegate.run import checkpoint, lock;"
        f"found = checkpoint.make({s3_place!r}); first = lock.DriverLock(found); first.claim();"
        "ledger = Ledger(found.ledger); ledger.take_over(); first.begin(ledger);"
        "print(first.is_held(), flush=True);"
        "input(); import time\nwhile first.is_held(): time.sleep(0.1)\n"
        "print(first.is_held(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "one")},
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "True\n"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
        checkpoint = make(s3_place)
        refused = pytest.raises(InUseError, match=f"process {first.pid} on {socket.gethostname()}")
        with refused, locked(checkpoint, take_over=False) as second:
            second.claim()  # On a busy machine it is not noticed before.
        with locked(checkpoint, take_over=True) as second:
            second.claim()
            ledger = Ledger(checkpoint.ledger)
            ledger.take_over()
            second.begin(ledger)
            assert second.predecessor is not None
            assert second.predecessor.pid == first.pid
            print(file=first.stdin, flush=True)
            assert first.stdout.readline() == "False\n", "it learns of it though it has no batch to commit"
            assert second.is_held()
        first.kill()
    # The last one has said that it ended: nobody waits for it.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "three"))
    with locked(make(s3_place), take_over=False) as third:
        third.claim()
