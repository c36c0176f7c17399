"""What keyed state costs: the same work under Tidegate and with Spark's own stateful operators.

Also: how the cost of a batch depends on the size of the state, what durability and the loss of a state node
cost, and what the state takes in memory and on disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import tidegate as tg
from benchmarks.comparison import Row, Sample, in_turns, tell
from benchmarks.sides import CORES, Declare, ours, peer, run
from benchmarks.ticks import Ticks
from tidegate import config
from tidegate.batch.garbage import Garbage
from tidegate.batch.ticket import Ticket
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Entry
from tidegate.spark import session
from tidegate.state.fleet.local import LocalNodes
from tidegate.state.log.manifest import StateManifest
from tidegate.state.node.shard import Shard
from tidegate.state.table.table import DUE, GONE, HASH, NEVER, StateTable
from tidegate.state.wire.client import NodeClient, client_for
from tidegate.state.wire.commands import Begin
from tidegate.storage.place import open_storage

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": str(CORES),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer turns, smaller state: under five minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--only", help="rows whose name contains this text")
    asked = parser.parse_args()
    spark = session.start("state", master=f"local[{CORES}]", driver_memory="4g", conf=ROCKSDB)
    rows = []
    for name, measure in _rows(asked.quick).items():
        if asked.only is None or asked.only in name:
            rows.append(replace(measure(spark), name=name))
            if asked.json:
                tell("", rows[-1:], as_json=True)
    spark.stop()
    if not asked.json:
        tell("Keyed state beside Spark against Spark's own, 2 cores", rows, as_json=False)


def _rows(quick: bool) -> Mapping[str, Callable[[SparkSession], Row]]:
    turns, few = (2, 1) if quick else (5, 5)
    keys, touched = (1_000_000, 250_000) if quick else (5_000_000, 250_000)
    many = 2_000_000 if quick else 10_000_000
    return {
        "running count, 100 k keys": lambda spark: (
            _count(spark, turns, batches=10, cold=2) if quick else _count(spark, turns, batches=20, cold=5)
        ),
        f"running count, each row its own key, {keys:,} keys": lambda spark: _distinct(
            spark, keys, touched, 1 if quick else 3
        ),
        "process, one key per row, against transformWithState": lambda spark: _process(spark, few),
        "4 s window join, 2 x 50 k ids": lambda spark: _join(spark, few),
        "4 s window count, 100 k keys": lambda spark: _windows(spark, few),
        "batch of 10 k keys: 10 M keys of state against 0.1 M": lambda spark: _flat(turns),
        "durable log on against off": lambda spark: _durability(turns),
        f"first batch after a node's death, {many:,} keys, against a full reload": lambda spark: _death(
            many, few
        ),
        f"memory of a node with {many:,} keys against a dict": lambda spark: _memory(many),
        "disk after 1,000 batches against one snapshot": lambda spark: _disk(300 if quick else 1000),
    }


# Spark's own operators beside ours


def _count(spark: SparkSession, turns: int, batches: int, cold: int) -> Row:
    source = Ticks(1_000_000, (("id", "value * 2654435761 % 100000"),))
    return in_turns(
        "",
        lambda: ours(lambda p: p.source(source).key_by("id").aggregate(n=tg.agg.count()), batches=batches),
        lambda: peer(spark, source, lambda rows: rows.groupBy("id").count(), mode="update", batches=batches),
        turns=turns,
        at_least=2,
        cold=cold,
    )


def _distinct(spark: SparkSession, keys: int, touched: int, turns: int) -> Row:
    # A prime that does not divide the number of keys: as many rows in a row as there are keys hit each once.
    source = Ticks(touched, (("id", f"value * 48271 % {keys}"),))
    warm = keys // touched
    return in_turns(
        "",
        lambda: ours(
            lambda p: p.source(source).key_by("id").aggregate(n=tg.agg.count()), batches=warm + 6, warm=warm
        ),
        lambda: peer(
            spark,
            source,
            lambda rows: rows.groupBy("id").count(),
            mode="update",
            batches=warm + 4,
            warm=warm,
        ),
        turns=turns,
        at_least=3,
    )


def _visits(rows: pa.Table, state: pa.Table, time: object) -> tuple[pa.Table, pa.Table]:
    seen = rows.group_by("id").aggregate([("id", "count")]).rename_columns(["id", "n"])
    both = pa.concat_tables([seen.cast(state.schema), state])
    total = both.group_by("id").aggregate([("n", "sum")]).rename_columns(["id", "n"])
    return total, total


def _process(spark: SparkSession, turns: int) -> Row:
    from pyspark.sql import Row as SparkRow
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Visits(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("n", "n bigint")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            before = self.count.get()
            n = (before[0] if before else 0) + sum(1 for _ in rows)
            self.count.update((n,))
            yield SparkRow(id=key[0], n=n)

        def close(self) -> None:
            pass

    def theirs(rows: DataFrame) -> DataFrame:
        return rows.groupBy("id").transformWithState(
            statefulProcessor=Visits(),
            outputStructType="id bigint, n bigint",
            outputMode="Update",
            timeMode="None",
        )

    columns = (("id", "value * 48271 % 1000000"),)
    return in_turns(
        "",
        lambda: ours(
            lambda p: (
                p.source(Ticks(200_000, columns))
                .key_by("id")
                .process(_visits, state_schema="n bigint", output_schema="id bigint, n bigint")
            ),
            batches=8,
        ),
        lambda: peer(spark, Ticks(10_000, columns), theirs, mode="update", batches=4, warm=1),
        turns=turns,
        at_least=50,
    )


def _join(spark: SparkSession, turns: int) -> Row:
    left = Ticks(200_000, (("id", "value % 50000"), ("a", "value")), millis=4000)
    right = Ticks(200_000, (("id", "value % 50000"), ("b", "value")), millis=4000)

    def mine(p: tg.Pipeline) -> tg.Stream:
        return p.source(left).window_join(p.source(right), on="id", window=tg.tumbling("4 seconds"))

    def theirs(rows: DataFrame) -> DataFrame:
        sides = [
            source.load(spark, parallelism=CORES, first_rows=None)
            .withWatermark("timestamp", "0 seconds")
            .withColumn("w", F.window("timestamp", "4 seconds"))
            .drop("timestamp")
            for source in (left, right)
        ]
        return sides[0].join(sides[1], ["id", "w"])

    return in_turns(
        "",
        lambda: ours(mine, batches=8),
        lambda: peer(spark, left, theirs, mode="append", batches=5),
        turns=turns,
        at_least=2,
    )


def _windows(spark: SparkSession, turns: int) -> Row:
    source = Ticks(1_000_000, (("id", "value * 2654435761 % 100000"),))

    def theirs(rows: DataFrame) -> DataFrame:
        timed = rows.withWatermark("timestamp", "0 seconds")
        return timed.groupBy(F.window("timestamp", "4 seconds"), "id").count()

    return in_turns(
        "",
        lambda: ours(
            lambda p: (
                p.source(source).key_by("id").window(tg.tumbling("4 seconds")).aggregate(n=tg.agg.count())
            ),
            batches=10,
        ),
        lambda: peer(spark, source, theirs, mode="append", batches=10),
        turns=turns,
        at_least=1.5,
    )


# Ours beside itself


def _flat(turns: int) -> Row:
    sizes = (100_000, 1_000_000, 10_000_000)
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            _load(Path(folder) / str(size), size)
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        for _ in range(turns):
            for size in sizes:
                told = _touch(Path(folder) / str(size), size, batches=14)
                seconds[size].append(statistics.median(batch.batch_seconds for batch in told[4:]))
    ratios = [big / small for big, small in zip(seconds[sizes[-1]], seconds[sizes[0]], strict=True)]
    ratio = statistics.median(ratios)
    details = {f"seconds with {size:,} keys": statistics.median(seconds[size]) for size in sizes}
    large, small = (statistics.median(seconds[size]) for size in (sizes[-1], sizes[0]))
    return Row(
        "", large, small, "s/batch", ratio, "<= 1.5", ratio <= 1.5, (min(ratios), max(ratios)), details
    )


def _durability(turns: int) -> Row:
    source = Ticks(1_000_000, (("id", "value * 2654435761 % 100000"),))

    def side(durable: bool) -> Sample:
        return ours(
            lambda p: p.source(source).key_by("id").aggregate(n=tg.agg.count()),
            batches=10,
            overrides={"state.durable": durable},
        )

    row = in_turns("", lambda: side(True), lambda: side(False), turns=turns, at_least=0)
    # As a cost: how much longer the same rows take.
    costs = sorted(1 / ratio - 1 for ratio in (row.ratio, *row.spread))
    cost = 1 / row.ratio - 1
    return replace(row, ratio=cost, goal="<= 0.15", met=cost <= 0.15, spread=(costs[0], costs[-1]))


def _death(size: int, kills: int) -> Row:
    """One node with all keys, killed between two batches; the peer takes up every key before it serves."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "c"
        _load(place, size, nodes=1)
        after: list[float] = []
        steady: list[float] = []
        for _ in range(kills):
            told = _touch(place, size, batches=12, nodes=1, kill_after=7)
            steady += [batch.batch_seconds for batch in told[4:7]]
            after.append(max(batch.batch_seconds for batch in told[7:10]))
        with _node(place, "columnar") as (client, manifest, _):
            start = time.perf_counter()
            for group in range(manifest.groups):
                _content(client, manifest, group)
            scan = time.perf_counter() - start
            with _dict_of(client, manifest) as (reload, _):
                pass
    ratios = [seconds / reload for seconds in after]
    ratio = statistics.median(ratios)
    details = {
        "steady s/batch": statistics.median(steady),
        "columnar: s to read all": scan,
    }
    return Row(
        "",
        statistics.median(after),
        reload,
        "s",
        ratio,
        "<= 0.2",
        ratio <= 0.2,
        (min(ratios), max(ratios)),
        details,
    )


def _memory(size: int) -> Row:
    resident = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "c"
        _load(place, size, nodes=1)
        with _node(place, "columnar") as (client, manifest, pid):
            for group in range(manifest.groups):
                _content(client, manifest, group)
            resident["columnar"] = _resident(pid)
            with _dict_of(client, manifest) as (_, other):
                resident["memory"] = _resident(other)
    ratio = resident["columnar"] / resident["memory"]
    return Row(
        "",
        resident["columnar"] / 2**20,
        resident["memory"] / 2**20,
        "MiB resident",
        ratio,
        "<= 0.3",
        ratio <= 0.3,
        (ratio, ratio),
    )


def _disk(batches: int) -> Row:
    """On one shard, with the ledger and the collection of garbage as in a run."""
    keys, rewritten, groups = 1_000_000, 100_000, 256
    table = StateTable(
        "count", "value", pa.schema([("id", pa.int64())]), pa.schema([("n.count", pa.int64())])
    )
    rng = np.random.default_rng(1)
    hashes = np.sort(rng.integers(0, 2**64, keys, np.uint64))

    def rows(places: np.ndarray[Any, Any], n: int) -> pa.Table:
        columns: dict[str, Any] = {
            HASH: hashes[places],
            DUE: np.full(len(places), NEVER),
            GONE: np.zeros(len(places), bool),
            "id": places,
            "n.count": np.full(len(places), n),
        }
        return pa.table(columns, schema=table.written)

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "state"
        storage = open_storage(str(log))
        shard = Shard(storage, name="node-0", scratch=Path(folder) / "scratch")
        ledger = Ledger(Path(folder) / "ledger")
        ledger.take_over()
        garbage = Garbage(ledger, storage, config.Config().state.retention)
        manifest = StateManifest(-1, groups, None, (table,))
        everything = frozenset(range(groups))
        hot = np.sort(rng.choice(keys, rewritten, replace=False))
        largest, snapshot = 0.0, 0
        for batch_id in range(batches + 1):
            shard.begin(manifest, everything)
            written = rows(np.arange(keys) if batch_id == 0 else hot, batch_id)
            prepared = shard.prepare(batch_id, "1", {"count": written}, None)
            manifest = StateManifest(batch_id, groups, None, (table,), prepared.runs)
            ledger.append(Entry(batch_id, ledger.generation, {}, {}, {}, state=manifest))
            shard.commit(batch_id, None)
            garbage.collect(manifest)
            while shard.compact():
                pass
            used = sum(path.stat().st_size for path in log.rglob("*") if path.is_file())
            snapshot = snapshot or used
            largest = max(largest, used)
        shard.close()
    ratio = used / snapshot
    return Row(
        "",
        used / 2**20,
        snapshot / 2**20,
        "MiB",
        ratio,
        "<= 3",
        ratio <= 3,
        (ratio, largest / snapshot),
        {"batches": batches, "largest on the way, MiB": largest / 2**20},
    )


# State to measure with


def _counted(rows: int, column: str) -> Declare:
    source = Ticks(rows, (("id", column),))
    return lambda p: p.source(source).key_by("id").aggregate(n=tg.agg.count())


def _load(checkpoint: Path, size: int, *, nodes: int = 2) -> None:
    """A checkpoint with so many keys of state."""
    step = min(size, 1_000_000)
    batches = size // step
    run(_counted(step, f"value % {size}"), checkpoint, batches=batches, overrides={"state.nodes": nodes})


def _touch(
    checkpoint: Path, size: int, *, batches: int, nodes: int = 2, kill_after: int | None = None
) -> list[tg.BatchProgress]:
    """Batches of 10,000 keys on a state of `size`, on a copy of the checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "c"
        shutil.copytree(checkpoint, copy)

        def kill(number: int) -> None:
            if number == kill_after:
                for pid in _node_pids():
                    os.kill(pid, signal.SIGKILL)

        declare = _counted(10_000, f"value * 48271 % {size}")
        return run(declare, copy, batches=batches, overrides={"state.nodes": nodes}, listener=kill)


def _content(node: NodeClient, manifest: StateManifest, group: int) -> pa.Table:
    """All rows of a key group."""
    name, everything = manifest.tables[0].name, 1 << 60
    return node.fetch_range(name, frozenset({group}), manifest.batch_id, 0, everything)[0]


@contextmanager
def _dict_of(full: NodeClient, manifest: StateManifest) -> Iterator[tuple[float, int]]:
    """A node that holds the same state in a dict: seconds that it took to take it up, and its process."""
    table, groups = manifest.tables[0], frozenset(range(manifest.groups))
    with tempfile.TemporaryDirectory() as folder, _started(f"{folder}/log", "memory") as (client, pid):
        ticket = Ticket(1, 0, 1)
        empty = StateManifest(-1, manifest.groups, None, manifest.tables)
        client.begin(Begin(ticket, empty, groups, None))
        for group in range(manifest.groups):
            rows = _content(full, manifest, group)
            # What is asked for is taken into the dict, and from then on kept there.
            client.get(ticket, table.name, rows.slice(0, 1).select(table.probes.names))
            gone = pa.array(np.zeros(rows.num_rows, np.bool_))
            client.stage(ticket, table.name, group, rows.add_column(2, table.written.field(2), gone), {})
        client.prepare(ticket)
        start = time.perf_counter()
        client.commit(ticket, None)
        yield time.perf_counter() - start, pid


@contextmanager
def _node(checkpoint: Path, backend: str) -> Iterator[tuple[NodeClient, StateManifest, int]]:
    """A node that stands at the last batch of a checkpoint, and its process."""
    last = Ledger(checkpoint / "ledger").last
    assert last is not None
    assert last.state is not None
    manifest = last.state
    with _started(str(checkpoint / "state"), backend) as (client, pid):
        groups = frozenset(range(manifest.groups))
        client.begin(Begin(Ticket(1, manifest.batch_id + 1, 1), manifest, groups, None))
        yield client, manifest, pid


@contextmanager
def _started(log: str, backend: str) -> Iterator[tuple[NodeClient, int]]:
    with (
        tempfile.TemporaryDirectory() as scratch,
        LocalNodes(
            1,
            pipeline="ours",
            log=log,
            scratch=Path(scratch),
            backend=backend,
            memory=8 << 30,
            durable=True,
            options={},
            timeout=600.0,
        ) as nodes,
    ):
        node = nodes.nodes[0]
        yield client_for(node.address, security=nodes.security, pipeline="ours", timeout=600.0), node.pid


def _node_pids() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if b"tidegate.state.node.process" in words and parent == os.getpid():
            found.append(int(folder.name))
    return found


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
