"""Rescales under steady load: `python -m benchmarks.rescale [--quick] [--json] [--only TEXT] [--plot FILE]`.

One run per size of state: 1 -> 2 -> 4 -> 2 nodes by hybrid moves and 1 -> 2 by the other strategies, in turn
and repeated, while rows come in at a part of what the machine can do. State nodes are taken to have disks of
their own (`state.transfer = peer`): what changes its owner has to go from node to node. Beside it, Spark's
own way: stop, repartition, start.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidegate as tg
from benchmarks.comparison import Row, tell
from benchmarks.sides import wait_for
from tidegate import config
from tidegate.control.client import ControlClient
from tidegate.rescale.model import Ask, Rescale, Strategy
from tidegate.sources.keys import Keys
from tidegate.spark import session

INTERVAL = 1.0
PAYLOAD = 1000
"""Bytes of state per key, about."""
LOADS = {100_000_000: 0.6, 1_000_000_000: 0.6, 4_000_000_000: 0.25}
"""Bytes of state, and the load with them, as a part of what the machine can do while there is little:
compactions of large runs take their share."""
PATH = (2, 4, 2)
STEADY = 12
"""Batches before the first rescale."""
AFTER = 5
"""Batches between two rescales, and after the last."""
LAZY = 12
"""Batches until a lazy rescale is over for us: it need not settle."""
TURNS = 5
"""Of throughput with and without the means to rescale."""
_KEPT = {"admission.longest": "1 ms"}
"""Batches that keep to the interval, however many rows wait."""
ORDER: tuple[Strategy, ...] = ("hybrid", "lazy", "eager", "restart")
COMPARED: tuple[Strategy, ...] = ("hybrid", "restart")


@dataclass
class Tour:
    """What happened to one pipeline on its way through some rescales."""

    records: dict[Strategy, list[list[Rescale]]] = field(default_factory=dict)
    """By strategy, one list of rescales for each turn."""
    asked: dict[Strategy, float] = field(default_factory=dict)
    """When the first rescale by each strategy was asked for."""
    batches: list[tg.BatchProgress] = field(default_factory=list)

    @property
    def steady(self) -> list[tg.BatchProgress]:
        """The last batches before the first rescale."""
        first = min(self.asked.values())
        return [batch for batch in self.batches if batch.finished_at.timestamp() < first][-STEADY:]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="0.1 GB of state only, within five minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--only", default="", help="just the rows whose name contains this")
    parser.add_argument("--plot", type=Path, help="draw latency around a rescale by each strategy")
    asked = parser.parse_args(arguments)
    spark = session.start("benchmark", master="local[*]", driver_memory="4g", packages=set(), conf={})
    rows: list[Row] = []
    try:
        for part in (_hot_set, _tours, _idle):
            for row in part(spark, quick=asked.quick, only=asked.only, plot=asked.plot):
                if asked.only in row.name:
                    rows.append(row)
                    print(f"{row.name}: {row.ratio:.3g} ({row.goal})", file=sys.stderr, flush=True)
    finally:
        spark.stop()
    tell("Rescales under steady load", rows, as_json=asked.json)


def _tours(spark: SparkSession, *, quick: bool, only: str, plot: Path | None) -> Iterator[Row]:
    """Gaps, latency and bytes by size of state."""
    if only and not any(only in text for text in ("gap", "latency")):
        return
    capacity = _capacity(15 if quick else 25)
    least, *larger = LOADS
    turns = (*COMPARED, *COMPARED)
    if plot is not None:
        turns = ORDER if quick else (*ORDER, *COMPARED)
    gaps: dict[int, list[float]] = {}
    for size in [least] if quick else LOADS:
        rate = LOADS[size] * capacity
        tour = toured(size // PAYLOAD, rate, COMPARED if size in larger else turns)
        gaps[size] = [_gap(turn) for turn in tour.records["hybrid"]]
        if plot is not None and size == least:
            _draw(tour, plot)
        yield from _rows(tour, size)
        if size in larger:
            name = f"longest gap, {_named(size)} against {_named(least)}"
            yield _row(name, gaps[size], gaps[least], most=1.5)
        yield _against_spark(spark, tour, size, rate)


def _rows(tour: Tour, size: int) -> list[Row]:
    hybrid, restart = tour.records["hybrid"], tour.records["restart"]
    steady = max(batch.latency_p99 or 0.0 for batch in tour.steady)
    visible = [batch.finished_at.timestamp() for batch in tour.steady]
    details = {"longest distance of outputs in steady state, s": max(b - a for a, b in pairwise(visible))}
    for strategy, (first, *_) in tour.records.items():
        details |= {
            f"{strategy} longest gap, s": _gap(first),
            f"{strategy} p99 during, s": _p99(first),
            f"{strategy} seconds to settled": max(each.seconds_to_settled or float("nan") for each in first),
            f"{strategy} MB on demand": sum(each.on_demand.bytes for each in first) / 1e6,
            f"{strategy} MB in the background": sum(each.background.bytes for each in first) / 1e6,
        }
    name = _named(size)
    return [
        _row(
            f"longest gap in intervals, hybrid, {name}",
            [_gap(turn) for turn in hybrid],
            [INTERVAL],
            most=2,
            more=details,
        ),
        _row(
            f"p99 latency during against steady, hybrid, {name}",
            [_p99(turn) for turn in hybrid],
            [steady],
            most=2,
        ),
        _row(
            f"gap beyond steady in intervals, hybrid, {name}",
            [_beyond([each]) for turn in hybrid for each in turn],
            [INTERVAL],
            most=0.25,
        ),
        _row(
            f"gap beyond steady, restart against hybrid, {name}",
            [_beyond(turn) for turn in restart],
            [_beyond(turn) for turn in hybrid],
        ),
    ]


def toured(
    keys: int,
    rate: float,
    strategies: Sequence[Strategy],
    *,
    path: Sequence[int] = PATH,
    after: int = AFTER,
    live: Keys | None = None,
    each: Callable[[tg.BatchProgress], None] | None = None,
) -> Tour:
    """Build the state, then take the pipeline through its rescales under load."""
    tour = Tour()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        checkpoint = Path(folder) / "c"

        def hear(progress: tg.BatchProgress) -> None:
            tour.batches.append(progress)
            if each is not None:
                each(progress)

        guide = threading.Thread(
            target=_guide, args=(tour, checkpoint, strategies, rate, path, after), daemon=True, name="guide"
        )
        guide.start()
        pipeline(keys, rate, live).run(
            config=_config(checkpoint, {"state.nodes": 1, "admission.initial_rows": 200_000}),
            listeners=[hear],
        )
        guide.join(10)
    if guide.is_alive():
        raise SystemExit("the run was stopped before its rescales were through")
    return tour


def _guide(
    tour: Tour,
    checkpoint: Path,
    strategies: Sequence[Strategy],
    rate: float,
    path: Sequence[int],
    after: int,
) -> None:
    def wait(batches: int) -> None:
        until = len(tour.batches) + batches
        while len(tour.batches) < until:
            time.sleep(0.02)

    def caught_up() -> bool:
        latest = tour.batches[-5:]
        return len(latest) == 5 and all((batch.lag or 0) < 1.5 * rate for batch in latest)

    while not caught_up():
        time.sleep(0.1)
    wait(STEADY)
    client = ControlClient.find(checkpoint)
    for turn, strategy in enumerate(strategies):
        tour.asked.setdefault(strategy, time.time())
        numbers = []
        for nodes in path if strategy == "hybrid" else path[:1]:
            numbers.append(client.apply(Ask(nodes=nodes, strategy=strategy)).number)
            if strategy == "lazy":
                wait(LAZY)
            else:
                _settled(client, numbers[-1])
            wait(after)
        tour.records.setdefault(strategy, []).append([client.rescale(number) for number in numbers])
        if turn < len(strategies) - 1:  # Back to where it began.
            _settled(client, client.apply(Ask(nodes=1, strategy="hybrid")).number)
            wait(after)
    client.stop()


def _settled(client: ControlClient, number: int) -> None:
    while not client.rescale(number).over:
        time.sleep(0.5)  # The driver answers, which has batches to run.


def pipeline(keys: int, rate: float | None, live: Keys | None = None) -> tg.Pipeline:
    p = tg.Pipeline("rescale")
    first = p.source(tg.sources.Sensors(sensors=keys, rate=None, rows=keys))
    then = p.source(tg.sources.Sensors(sensors=keys, rate=rate, keys=live or tg.sources.Uniform(), seed=1))
    both = first.union(then).with_column("payload", payload())
    both.key_by("id").aggregate(n=tg.agg.count(), payload=tg.agg.max("payload")).sink(tg.sinks.Discard())
    return p


def payload() -> str:
    return f"repeat(cast(id as string), {PAYLOAD} div length(cast(id as string)))"


def _config(checkpoint: Path, more: Mapping[str, object]) -> config.Config:
    settings = {
        "engine.interval": f"{INTERVAL} seconds",
        "engine.checkpoint": str(checkpoint),
        "state.transfer": "peer",
        "state.memory": "2g",
        "state.timeout": "60 seconds",
        **more,
    }
    return config.load(environ={}, overrides=settings)


def _capacity(duration: float) -> float:
    """Rows per second of the same pipeline when they never run out, where few of a batch have a key in
    common: with more of those it could do more."""
    told: list[tg.BatchProgress] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        pipeline(1_000_000, None).run(
            config=_config(Path(folder) / "c", {"state.nodes": 1, **_KEPT}),
            listeners=[told.append],
            duration=duration,
        )
    return statistics.median(batch.rows_per_second for batch in told[-5:])


def _against_spark(spark: SparkSession, tour: Tour, size: int, rate: float) -> Row:
    """The pause of Spark's own way: stop, repartition the state, start."""
    gap, steady = _sparks_gap(spark, size // PAYLOAD, rate)
    return _row(
        f"gap beyond steady, Spark's own way against hybrid, {_named(size)}",
        [gap - steady],
        [_beyond(turn) for turn in tour.records["hybrid"]],
    )


def _sparks_gap(spark: SparkSession, keys: int, rate: float) -> tuple[float, float]:
    ends: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, session.lent(_SPARK):
        sources = (
            tg.sources.Sensors(sensors=keys, rate=None, rows=keys),
            tg.sources.Sensors(sensors=keys, rate=rate, keys=tg.sources.Uniform(), seed=1),
        )

        def discard(frame: DataFrame, _: int) -> None:
            frame.write.format("noop").mode("append").save()
            ends.append(time.time())

        def query() -> StreamingQuery:
            first, then = (source.load(spark, parallelism=2, first_rows=None) for source in sources)
            rows = first.unionByName(then).selectExpr("id", f"{payload()} as payload")
            return (
                rows.groupBy("id")
                .agg({"payload": "max", "*": "count"})
                .writeStream.outputMode("update")
                .foreachBatch(discard)
                .option("checkpointLocation", folder)
                .trigger(processingTime=f"{INTERVAL} seconds")
                .start()
            )

        running = query()
        # Spark moves no state of a query that was stopped in a batch: it has to have committed this one.
        wait_for(running, lambda: (told := running.lastProgress) is not None and told.batchId >= 11)
        steady = statistics.median(after - before for before, after in pairwise(ends[-6:]))
        running.stop()
        last = ends[-1]
        spark._streamingCheckpointManager.repartition(folder, 4)
        count = len(ends)
        running = query()
        wait_for(running, lambda: len(ends) > count)
        first_after = ends[count]
        running.stop()
    return first_after - last, steady


_SPARK = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
}


def _hot_set(spark: SparkSession, *, quick: bool, only: str, plot: Path | None) -> Iterator[Row]:
    """Accesses that need not ask the old owner, ten batches after the switch."""
    name = "state accesses that are local after 10 batches, 5 % hot"
    if only not in name:
        return
    shares: list[tuple[int, float]] = []

    def look(progress: tg.BatchProgress) -> None:
        total = progress.state_local + progress.state_remote
        shares.append((progress.batch_id, progress.state_local / total if total else 1.0))

    hot = tg.sources.HotSet(keys=0.05, rows=0.95)
    tour = toured(
        100_000 if quick else 1_000_000, 20_000, ["hybrid"], live=hot, each=look, path=PATH[:1], after=12
    )
    first = tour.records["hybrid"][0][0].first_batch
    assert first is not None
    share = next(share for number, share in shares if number == first + 10)
    seen = {f"batch {n - first}": found for n, found in shares if 0 <= n - first <= 12}
    yield _row(name, [share], [1.0], "share", least=0.9, more=seen)


def _idle(spark: SparkSession, *, quick: bool, only: str, plot: Path | None) -> Iterator[Row]:
    """Throughput with the means to rescale at hand, against without."""
    name = "throughput, hybrid at hand against a fixed route"
    if only not in name:
        return
    _throughput(
        enabled=True, duration=12
    )  # Until its code is compiled, a session gets faster from run to run.
    found: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(TURNS):
        for enabled in (True, False) if turn % 2 else (False, True):
            found[enabled].append(_throughput(enabled=enabled, duration=8 if quick else 15))
    yield _row(name, found[True], found[False], "rows/s", least=0.97)


def _throughput(*, enabled: bool, duration: float) -> float:
    told: list[tg.BatchProgress] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        pipeline(100_000, None).run(
            config=_config(Path(folder) / "c", {"control.enabled": enabled, **_KEPT}),
            listeners=[told.append],
            duration=duration,
        )
    return statistics.median(batch.rows_per_second for batch in told[len(told) // 2 :])


def _gap(records: Sequence[Rescale]) -> float:
    return max(record.longest_gap or 0.0 for record in records)


def _beyond(records: Sequence[Rescale]) -> float:
    """How much longer the longest gap is than the steady distance of outputs; not less than can be seen."""
    return max(1e-2, *((record.longest_gap or 0.0) - (record.steady_gap or 0.0) for record in records))


def _p99(records: Sequence[Rescale]) -> float:
    return max(record.during.p99 or 0.0 for record in records)


def _named(size: int) -> str:
    return f"{size / 1e9:g} GB"


def _row(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    unit: str = "s",
    *,
    least: float | None = None,
    most: float | None = None,
    more: Mapping[str, float] | None = None,
) -> Row:
    """The median and the spread of the turns, one by one where both have as many. Without `least` and `most`
    there is no goal."""
    pairs = zip(ours, peer, strict=True) if len(ours) == len(peer) else product(ours, peer)
    turns = [a / b for a, b in pairs]
    ratio = statistics.median(turns)
    goal, met = "", None
    if least is not None:
        goal, met = f">= {least:g}", ratio >= least
    elif most is not None:
        goal, met = f"<= {most:g}", ratio <= most
    return Row(
        name,
        statistics.median(ours),
        statistics.median(peer),
        unit,
        ratio,
        goal,
        met,
        (min(turns), max(turns)),
        dict(more or {}),
    )


def _draw(tour: Tour, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    starts = sorted(tour.asked.values())
    for strategy, at in tour.asked.items():
        # Up to the way back to one node, before the next strategy has its turn.
        until = min([later - at - AFTER for later in starts if later > at] + [15.0])
        points = [
            (batch.finished_at.timestamp() - at, batch.latency_p99)
            for batch in tour.batches
            if -10 <= batch.finished_at.timestamp() - at <= until and batch.latency_p99 is not None
        ]
        axes.plot([x for x, _ in points], [y for _, y in points], marker=".", label=strategy)
    axes.axvline(0, color="0.6", linewidth=1)
    axes.set(xlabel="seconds since the rescale was asked for", ylabel="latency p99, s", ylim=(0, None))
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
