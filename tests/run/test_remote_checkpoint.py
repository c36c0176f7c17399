"""A checkpoint in a store: whatever machine the driver runs on, it goes on where the last one ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from tests.java import DRIVER_JAVA
from tests.run.chaos_kit import quick_start
from tidegate.control.client import ControlClient
from tidegate.errors import ControlError
from tidegate.run.inspection import Inspection
from tidegate.storage.place import working_folder
from tidegate.testing.servers import S3, faulty_store

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.timeout(600)]

SENSORS, ROWS, FILES, LINES = 50, 40_000, 6, 100
PIPELINE = f"""
import tidegate as tg

p = tg.Pipeline("anywhere")
sensors = tg.sources.Sensors(sensors={SENSORS}, rate=None, rows={ROWS}, start="2024-01-01T00:00:00")
readings = p.source(sensors)
readings.key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Files("out/counts"))
lines = p.source(tg.sources.Files("lines", format="json", schema="id bigint"))
lines.sink(tg.sinks.Files("out/ids"))
"""


@dataclass(frozen=True)
class Machine:
    """What a driver finds on its machine: nothing of what others had, but for the sources and outputs."""

    folder: Path
    cache: Path
    url: str

    def start(self, *options: str, rows_per_batch: int = 1000) -> subprocess.Popen[str]:
        settings = {
            "engine.interval": "20 ms",
            "engine.retry_wait": "10 ms",
            "spark.master": "local[2]",
            f"spark.conf.{DRIVER_JAVA}": quick_start(),
            "admission.min_rows": rows_per_batch,
            "admission.initial_rows": rows_per_batch,
            "admission.max_rows": rows_per_batch,
            "state.nodes": 1,
        }
        command = [sys.executable, "-m", "tidegate.cli.main", "run", "job.py", "--json", "--until-done"]
        command += ["--checkpoint", self.url, *options]
        command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache)},
            stdout=subprocess.PIPE,
            stderr=(self.cache.parent / f"{self.cache.name}.err").open("w"),
            text=True,
            start_new_session=True,
        )

    @property
    def errors(self) -> str:
        return (self.cache.parent / f"{self.cache.name}.err").read_text()


def batches(driver: subprocess.Popen[str]) -> Iterator[int]:
    """The ids of the batches as they are committed."""
    assert driver.stdout is not None
    for line in driver.stdout:
        told = json.loads(line)
        if "batch_id" in told:
            yield told["batch_id"]


def kill(driver: subprocess.Popen[str]) -> None:
    """Driver, Java and state nodes, as if their machine went."""
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def write_lines(folder: Path, number: int, *, broken: str = "") -> None:
    text = "".join(f'{{"id": {number * LINES + i}}}\n' for i in range(LINES)) + broken
    (folder / "draft").write_text(text)
    (folder / "lines").mkdir(exist_ok=True)
    (folder / "draft").rename(folder / "lines" / f"{number}.json")


def counts_of(place: str) -> dict[int, int]:
    found = Inspection(place)
    with found.opened(found.batch()) as reader:
        pieces = list(reader.pieces(reader.table("aggregate-1")))
    return {row["id"]: row["n.count"] for piece in pieces for row in piece.to_pylist()}


def expected() -> dict[int, int]:
    source = tg.sources.Sensors(sensors=SENSORS, rate=None, rows=ROWS, start="2024-01-01T00:00:00")
    assert source.first_micros is not None
    ids = source.batch(0, ROWS, start=source.first_micros)["id"].value_counts().to_pylist()
    return {each["values"]: each["counts"] for each in ids}


def test_drivers_on_several_machines_end_as_one_that_nobody_disturbed(
    s3_server: S3, s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3_place.replace("[", "-").replace("]", "")
    (tmp_path / "job.py").write_text(PIPELINE)
    write_lines(tmp_path, 0, broken="broken\n")
    first, second, third = (Machine(tmp_path, tmp_path / name, url) for name in ("one", "two", "three"))

    running = first.start()
    told = batches(running)
    next(told)
    write_lines(tmp_path, 1, broken="broken\n")
    next(told)

    # Another machine: refused, and told who and where; a command for the driver, too.
    refused = second.start()
    assert refused.wait() != 0
    assert f"process {running.pid}" in second.errors
    assert "--take-over" in second.errors
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(ControlError, match=rf"as process {running.pid}; its control API is at http://"):
        ControlClient.find(url)

    # One that insists ends the first one.
    insisting = second.start("--take-over")
    told = batches(insisting)
    after = next(told)
    assert running.wait() != 0
    assert "taken over" in first.errors
    for number in range(2, FILES - 1):
        write_lines(tmp_path, number, broken="broken\n")
        after = next(told)
    kill(insisting)
    shutil.rmtree(second.cache)
    write_lines(tmp_path, FILES - 1, broken="broken\n")

    # A third machine takes it to its end, by itself.
    last = third.start(rows_per_batch=100_000)
    done = list(batches(last))
    assert last.wait() == 0, third.errors
    assert done[0] > after
    assert counts_of(url) == expected()
    final = {row["id"]: row["n"] for row in tg.read(tmp_path / "out/counts").to_pylist()}
    assert final == expected(), "the last count of each key is that of all its rows"
    ids = tg.read(tmp_path / "out/ids")["id"].to_pylist()
    assert sorted(ids) == list(range(FILES * LINES)), "each file was read once"
    assert tg.read(f"{url}/dead-letters/source-2")["raw"].to_pylist() == ["broken"] * FILES
    assert Inspection(url).verify().problems == ()
    assert third.errors.count("rebuilt") == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(third.cache))
    assert working_folder(url).stat().st_mode & 0o077 == 0


def test_a_savepoint_goes_to_a_store_and_back(
    s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    from tidegate.run.savepoint import save

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = s3_place.replace("[", "-").replace("]", "")

    def job(rows: int, out: str) -> tg.Pipeline:
        p = tg.Pipeline("moving")
        readings = p.source(
            tg.sources.Sensors(sensors=SENSORS, rate=None, rows=rows, start="2024-01-01T00:00:00")
        )
        readings.key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Files(tmp_path / out))
        lines = p.source(tg.sources.Files(tmp_path / "lines", format="json", schema="id bigint"))
        lines.sink(tg.sinks.Files(tmp_path / f"{out}-ids"))
        return p

    write_lines(tmp_path, 0)
    local = str(tmp_path / "checkpoint")
    run(job(5_000, "one"), engine__checkpoint=local)
    at = save(local, f"{url}/saved")
    write_lines(tmp_path, 1)
    # With other sinks: so the last batch must not be brought once more.
    _, told = run(job(20_000, "two"), engine__checkpoint=f"{url}/saved")
    assert told[0].batch_id == at + 1
    again = save(f"{url}/saved", f"{url}/again")
    back = save(f"{url}/again", tmp_path / "back")
    assert again == back == told[-1].batch_id
    write_lines(tmp_path, 2)
    run(job(ROWS, "three"), engine__checkpoint=str(tmp_path / "back"))
    assert counts_of(str(tmp_path / "back")) == expected()
    read = [sorted(tg.read(tmp_path / f"{out}-ids")["id"].to_pylist()) for out in ("one", "two", "three")]
    assert read == [list(range(number * LINES, (number + 1) * LINES)) for number in range(3)]
    for place in (f"{url}/saved", f"{url}/again", str(tmp_path / "back")):
        assert Inspection(place).verify().problems == (), place


def test_a_store_that_is_slow_busy_forgetful_and_away_loses_nothing(
    s3_server: S3, s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    """It is away for longer than a node may take to answer, while a batch is about to commit."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    p = tg.Pipeline("weather")
    readings = p.source(
        tg.sources.Sensors(sensors=SENSORS, rate=None, rows=12_000, start="2024-01-01T00:00:00")
    )
    readings.key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Files(tmp_path / "out"))
    with faulty_store(s3_server.endpoint) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        before = store.asked("LIST")

        def weather(progress: tg.BatchProgress) -> None:
            nonlocal before
            match progress.batch_id:
                case 1:
                    store.busy = 0.3
                case 3:
                    store.busy, store.forgetful = 0.0, 0.3
                case 5:
                    store.forgetful, store.away = 0.0, True
                    threading.Timer(8, setattr, (store, "away", False)).start()
                case 6:
                    store.delay = 0.05
                case 7:
                    store.delay, before = 0.0, store.asked("LIST")
                case 10:
                    before = store.asked("LIST") - before

        _, told = run(
            p,
            listeners=[weather],
            engine__checkpoint=s3_place.replace("[", "-").replace("]", ""),
            engine__tries=1,
            state__timeout="2 seconds",
            admission__max_rows=1000,
        )
        assert before == 0, "names are listed in the steady state"
    assert [progress.batch_id for progress in told] == list(range(12))
    final = {row["id"]: row["n"] for row in tg.read(tmp_path / "out").to_pylist()}
    assert sum(final.values()) == 12_000
    assert max(progress.batch_seconds for progress in told) > 2, "the store was not away"
