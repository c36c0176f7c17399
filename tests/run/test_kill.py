"""kill -9 of the driver at random moments: the output is that of a run that nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import tidegate as tg
from tests.java import DRIVER_JAVA
from tests.run.chaos_kit import await_that, quick_start
from tidegate.ledger.ledger import Ledger

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 400_000
LINES = 2_000
PIPELINE = """
import tidegate as tg

p = tg.Pipeline("killed")
readings = p.source(tg.sources.Sensors(sensors=1000, rate=None, rows={rows}, start="2024-01-01T00:00:00"))
hot = readings.filter("value > 30")
hot.sink(tg.sinks.Files("out"))
hot.sink({second})
lines = p.source(tg.sources.Files("lines", format="json", schema="id bigint"))
lines.sink(tg.sinks.Files("ids", format="json"))
"""


class Driver:
    """A pipeline in a process of its own."""

    def __init__(self, folder: Path, *, rows_per_batch: int) -> None:
        command = [sys.executable, "-m", "tidegate.cli.main", "run", "killed.py", "--until-done", "--json"]
        settings = {
            "engine.interval": "20 ms",
            "spark.master": "local[2]",
            f"spark.conf.{DRIVER_JAVA}": quick_start(),
            "admission.min_rows": rows_per_batch,
            "admission.max_rows": rows_per_batch,
        }
        command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self._errors = (folder / "errors.txt").open("a+")
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def batches(self) -> Iterator[int]:
        """The ids of the batches as they are committed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "batch_id" in told:
                yield told["batch_id"]

    def kill(self) -> None:
        """As if the power went; its JVM lingers for seconds and meets the next driver."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self) -> list[int]:
        done = list(self.batches())
        if self._process.wait() != 0:
            self._errors.seek(0)
            raise AssertionError(self._errors.read())
        return done


def kill_again_and_again(folder: Path, kills: int, moments: random.Random) -> None:
    for number in range(kills):
        before = generation(folder)
        driver = Driver(folder, rows_per_batch=2_000)
        if number % 2:
            # Some batches into the run.
            next(driver.batches())
        else:
            # Before its first batch is through: while it recovers, replays or publishes.
            await_that(partial(taken_over, folder, before), "the driver took over")
        time.sleep(moments.uniform(0, 1.5))
        driver.kill()
        write_lines(folder, number + 1)
    last = Driver(folder, rows_per_batch=100_000).finish()
    assert last, "the runs that were killed had already done everything: nothing was tested"


def generation(folder: Path) -> int:
    return Ledger(folder / ".tidegate/killed/ledger").generation


def taken_over(folder: Path, before: int) -> bool:
    return generation(folder) > before


def write_lines(folder: Path, number: int) -> None:
    """One more file for the second source, every fourth line of it broken."""
    lines = [
        f'{{"id": {number * LINES + i}}}' if i % 4 else f"broken {number * LINES + i}" for i in range(LINES)
    ]
    (folder / "lines").mkdir(exist_ok=True)
    draft = folder / f"{number}.draft"
    draft.write_text("\n".join(lines) + "\n")
    draft.rename(folder / "lines" / f"{number}.json")


def undisturbed() -> Counter[tuple[object, ...]]:
    source = tg.sources.Sensors(sensors=1000, rate=None, rows=ROWS, start="2024-01-01T00:00:00")
    assert source.first_micros is not None
    rows = source.batch(0, ROWS, start=source.first_micros).to_pydict()
    return Counter(row for row in zip(*rows.values(), strict=True) if row[2] > 30)


@pytest.mark.postgres
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_kills_leave_no_trace(
    tmp_path: Path,
    postgres_dsn: str,
    chance: random.Random,
    kills: int,
    record_property: Callable[[str, object], None],
) -> None:
    """On Files and on Postgres at once, with a source of lines that cannot all be read beside the sensors."""
    import psycopg

    second = f"tg.sinks.Postgres({postgres_dsn!r}, 'hot_{kills}')"
    (tmp_path / "killed.py").write_text(PIPELINE.format(rows=ROWS, second=second))
    write_lines(tmp_path, 0)
    kill_again_and_again(tmp_path, kills, chance)
    record_property("kills", kills)
    wanted = undisturbed()
    assert Counter(zip(*tg.read(tmp_path / "out").to_pydict().values(), strict=True)) == wanted
    with psycopg.connect(postgres_dsn) as connection:
        hot = connection.execute(f"select id, timestamp, value from hot_{kills}").fetchall()
    assert Counter(hot) == wanted
    numbers = range((kills + 1) * LINES)
    ids = tg.read(tmp_path / "ids")["id"].to_pylist()
    assert sorted(ids) == [number for number in numbers if number % LINES % 4]
    dead = tg.read(tmp_path / ".tidegate/killed/dead-letters/source-2")["raw"].to_pylist()
    assert sorted(dead) == sorted(f"broken {number}" for number in numbers if not number % LINES % 4)


def test_a_signal_ends_the_run_after_its_batch(tmp_path: Path) -> None:
    """A closed terminal, which tells Java, too: exit 0, everything that was begun is committed, and the next
    run goes on from there."""
    (tmp_path / "killed.py").write_text(PIPELINE.format(rows=ROWS, second="tg.sinks.Discard()"))
    (tmp_path / "lines").mkdir()
    driver = Driver(tmp_path, rows_per_batch=2_000)
    next(driver.batches())
    os.killpg(driver._process.pid, signal.SIGHUP)
    stopped = driver.finish()
    rest = Driver(tmp_path, rows_per_batch=100_000).finish()
    assert rest[0] == max(stopped, default=0) + 1
    assert tg.read(tmp_path / "out").num_rows == sum(undisturbed().values())
