"""How soon a pipeline gives results, how soon it works off what waits, and what the smallest batch takes.

Beside plain PySpark where that does the same; else beside the same pipeline with other settings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import tidegate as tg
from benchmarks.comparison import Row, tell
from benchmarks.sides import CORES, ours, peer
from benchmarks.ticks import Ticks
from tidegate import config
from tidegate.spark import session

FILES = 295
FIXED = ("2 seconds", "5 seconds", "10 seconds")
"""Intervals that batches of a backlog may keep to."""
SCHEMA = "id bigint, at timestamp"
STEPS = 12


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns, smaller files: under five minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--only", help="rows whose name contains this text")
    asked = parser.parse_args()
    rows = []
    for name, measure in _rows(asked.quick).items():
        if asked.only is None or asked.only in name:
            rows.append(replace(measure(), name=name))
            if asked.json:
                tell("", rows[-1:], as_json=True)
    if not asked.json:
        tell("Start, backlog and floor, 2 cores", rows, as_json=False)


def _rows(quick: bool) -> Mapping[str, Callable[[], Row]]:
    turns = 2 if quick else 5
    return {
        "start to first committed row, against plain PySpark": lambda: _start(turns),
        "batches after the first until lag is gone, half of the capacity": lambda: _lag(1 if quick else 3),
        f"backlog of 2 x {FILES} files, interval 1 s, against the best fixed one": lambda: _in_session(
            lambda _: _backlog(1 if quick else 3, lines=1_000 if quick else 4_000)
        ),
        "floor: a batch of 100 rows, against groupBy().count()": lambda: _in_session(
            lambda spark: _floor(spark, turns, batches=30 if quick else 60)
        ),
        f"{STEPS} keyed steps, a batch of 100 rows, against {STEPS} times one": lambda: _in_session(
            lambda _: _steps(turns, batches=12)
        ),
    }


def _in_session(measure: Callable[[SparkSession], Row]) -> Row:
    conf = {"spark.sql.shuffle.partitions": str(CORES)}
    spark = session.start("start", master=f"local[{CORES}]", conf=conf)
    try:
        return measure(spark)
    finally:
        session.stop(spark)


# Processes of their own


def _start(turns: int) -> Row:
    first = _first_row("ours")  # Leaves the archive of Spark's classes that later starts use.
    pairs = []
    for turn in range(turns):
        sides = ("ours", "peer") if turn % 2 else ("peer", "ours")
        seconds = {side: _first_row(side) for side in sides}
        pairs.append((seconds["ours"], seconds["peer"]))
    return _at_most(pairs, "s", 1.3, {"ours, first start in the row": first})


def _first_row(side: str) -> float:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "benchmarks.first_row", side, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            took = time.perf_counter() - began
            process.stdout.read()  # Another batch may be told before the run ends.
        if process.returncode or not line:
            raise SystemExit(f"{' '.join(command)} failed")
    return took


def _lag(turns: int) -> Row:
    """A source gives half of what the machine can do, from the moment that the pipeline opens it."""
    rate = _capacity() / 2
    needed = [_batches_until_gone(rate) for _ in range(turns)]
    ours = statistics.median(needed)
    return Row(
        name="",
        ours=ours,
        peer=5,
        unit="batches",
        ratio=ours / 5,
        goal="<= 1",
        met=ours <= 5,
        spread=(min(needed) / 5, max(needed) / 5),
        details={"rows/s of the source": rate},
    )


def _capacity() -> float:
    """Rows per second of the pipeline that starts, with an endless supply."""

    def measure(_: SparkSession) -> Row:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            p = tg.Pipeline("capacity")
            counted = p.source(tg.sources.Sensors(rate=None)).key_by("id").aggregate(n=tg.agg.count())
            counted.sink(tg.sinks.Files(f"{folder}/out"))
            told = _run(p, folder, duration=20)
        found = statistics.median(batch.rows_per_second for batch in told[len(told) // 2 :])
        return Row("", found, found, "rows/s", 1, "", None, (1, 1))

    return _in_session(measure).ours


def _batches_until_gone(rate: float) -> int:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "benchmarks.first_row", "ours", folder]
        command += ["--rate", str(rate), "--batches", "14"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    lags = [json.loads(line)["lag"] for line in done.stdout.splitlines()]
    # What arrives while a batch is planned counts as lag, too.
    behind = [number for number, lag in enumerate(lags) if lag > 0.2 * rate]
    return behind[-1] + 1 if behind else 0


# A backlog of files


def _backlog(turns: int, lines: int) -> Row:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        _write(Path(folder), lines)
        fixed = {"admission.longest": "1 ms"}
        _drained(folder, "1 second", {})  # Code is compiled.
        pairs, by_interval = [], dict.fromkeys(FIXED, 0.0)
        for turn in range(turns):
            first = _drained(folder, "1 second", {}) if turn % 2 else 0.0
            rates = {interval: _drained(folder, interval, fixed) for interval in FIXED}
            mine = first or _drained(folder, "1 second", {})
            by_interval = {key: max(by_interval[key], rate) for key, rate in rates.items()}
            pairs.append((mine, max(rates.values())))
        kept = _drained(folder, "1 second", fixed)
    ratios = [mine / best for mine, best in pairs]
    ratio = statistics.median(ratios)
    return Row(
        name="",
        ours=statistics.median(mine for mine, _ in pairs),
        peer=statistics.median(best for _, best in pairs),
        unit="rows/s",
        ratio=ratio,
        goal=">= 0.8",
        met=ratio >= 0.8,
        spread=(min(ratios), max(ratios)),
        details={f"fixed at {key}": rate for key, rate in by_interval.items()}
        | {"1 second, without longer batches": kept},
    )


def _write(folder: Path, lines: int) -> None:
    for side in ("left", "right"):
        (folder / side).mkdir()
        for number in range(FILES):
            first = number * lines
            text = "".join(
                json.dumps(
                    {"id": row % 5_000, "at": f"2024-01-01T00:{row // lines // 60:02}:{number % 60:02}Z"}
                )
                + "\n"
                for row in range(first, first + lines)
            )
            (folder / side / f"{number:04}.json").write_text(text)


def _drained(folder: str, interval: str, overrides: Mapping[str, Any]) -> float:
    """Rows per second until nothing is left."""
    p = tg.Pipeline("backlog")
    left, right = (
        p.source(tg.sources.Files(f"{folder}/{side}", format="json", schema=SCHEMA, event_time="at"))
        for side in ("left", "right")
    )
    joined = left.window_join(right, on="id", window=tg.tumbling("1 second"))
    joined.key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        began = time.perf_counter()
        told = _run(p, checkpoint, interval=interval, overrides=overrides)
        return sum(batch.rows_in for batch in told) / (time.perf_counter() - began)


# The smallest batch


def _floor(spark: SparkSession, turns: int, batches: int) -> Row:
    source = Ticks(100, (("id", "value % 100"),))

    def mine() -> float:
        count = ours(
            lambda p: p.source(source).key_by("id").aggregate(n=tg.agg.count()),
            batches=batches,
            warm=batches // 3,
        )
        return count.batch_seconds

    def theirs(*, our_files: bool = False) -> float:
        return peer(
            spark,
            source,
            lambda rows: rows.groupBy("id").count(),
            mode="update",
            batches=batches,
            warm=batches // 3,
            our_files=our_files,
        ).batch_seconds

    mine(), theirs()  # Both warm.
    pairs = [(mine(), theirs()) for _ in range(turns)]
    tuned = theirs(our_files=True)
    return _at_most(pairs, "s/batch", 1.3, {"Spark with our settings for its files, s/batch": tuned})


def _steps(turns: int, batches: int) -> Row:
    source = Ticks(100, (("id", "value % 100"),))

    def seconds(steps: int) -> float:
        def declare(p: tg.Pipeline) -> tg.Stream:
            stream = p.source(source)
            for _ in range(steps):
                stream = stream.key_by("id").process(
                    _passed_on, state_schema="n bigint", output_schema="id bigint"
                )
            return stream

        return ours(declare, batches=batches, warm=batches // 2).batch_seconds

    seconds(1)
    pairs = [(seconds(STEPS), STEPS * seconds(1)) for _ in range(turns)]
    return _at_most(pairs, "s/batch", 1.0)


def _passed_on(rows: Any, state: Any, time: object) -> tuple[Any, Any]:
    counts = rows.group_by("id").aggregate([("id", "count")]).rename_columns(["id", "n"])
    return rows.select(["id"]), counts.cast(state.schema)


def _run(
    pipeline: tg.Pipeline,
    folder: str,
    *,
    interval: str = "1 second",
    duration: float | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> list[tg.BatchProgress]:
    told: list[tg.BatchProgress] = []
    settings = {
        "engine.interval": interval,
        "engine.parallelism": CORES,
        "engine.checkpoint": f"{folder}/checkpoint",
        **(overrides or {}),
    }
    loaded = config.load(environ={}, overrides=settings)
    pipeline.run(config=loaded, listeners=[told.append], duration=duration, until_done=duration is None)
    return told


def _at_most(
    pairs: Sequence[tuple[float, float]],
    unit: str,
    most: float,
    details: Mapping[str, float] | None = None,
) -> Row:
    ratios = [mine / theirs for mine, theirs in pairs]
    ratio = statistics.median(ratios)
    return Row(
        name="",
        ours=statistics.median(mine for mine, _ in pairs),
        peer=statistics.median(theirs for _, theirs in pairs),
        unit=unit,
        ratio=ratio,
        goal=f"<= {most:g}",
        met=ratio <= most,
        spread=(min(ratios), max(ratios)),
        details=dict(details or {}),
    )


if __name__ == "__main__":
    main()
