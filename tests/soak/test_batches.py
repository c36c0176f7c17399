"""Batch after batch through the real ledger, log, nodes and files sink, without Spark: nothing piles up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import tidegate as tg
from tests.soak.usage import Use, assert_bounded, cpu_seconds, use
from tidegate import config
from tidegate.batch.garbage import Garbage
from tidegate.batch.outcome import Written
from tidegate.batch.shell import Batches
from tidegate.batch.ticket import Ticket
from tidegate.batch.time import Time
from tidegate.batch.watermark import Watermark
from tidegate.ledger.ledger import Ledger
from tidegate.run import recovery
from tidegate.run.checkpoint import Checkpoint
from tidegate.security.security import Security
from tidegate.sinks.compaction import Compaction
from tidegate.sinks.files import _Writer
from tidegate.sinks.output_folder import OutputFolder
from tidegate.sinks.sink import Attempt, Receipt
from tidegate.sources.source import Seen
from tidegate.state.fleet.nodes import Nodes
from tidegate.state.table.keys import group_of
from tidegate.state.table.table import DUE, GONE, HASH, NEVER, StateTable
from tidegate.state.task.assignment import Assignment
from tidegate.state.task.state import TaskState

GROUPS = 16
KEYS = 500
"""That are counted, again and again."""
TOUCHED = 20
"""Of those in each batch."""
VISIT = 1_000_000
"""Keys from here on come once and are taken away `STAY` batches later."""
STAY = 50
COUNTS = StateTable("count", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
EVENTS = StateTable("join.left", "buffer", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
TABLES = (COUNTS, EVENTS)
RETENTION = 10
CLOCK = "clock"
"""The one source."""
OUT = "out"
"""The one sink: a row for each batch, its number."""
ROWS = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}


Ids = NDArray[np.int64]


def hashes(ids: Ids) -> NDArray[np.uint64]:
    return ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Soaked:
    """What recovery has to know of a pipeline."""

    tables: tuple[StateTable, ...] = TABLES
    meaning: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Run:
    """Batches through the real shell; their jobs are the tasks alone, without Spark."""

    def __init__(
        self, folder: Path, nodes: Nodes, ledger: Ledger, garbage: Garbage, pool: ThreadPoolExecutor
    ) -> None:
        self._folder, self._nodes, self._ledger, self._pool = folder / "nodes", nodes, ledger, pool
        self._out = OutputFolder(folder / OUT)
        self._out.files.prepare()
        self._writer = _Writer(Compaction(self._out, 1 << 20, grace=0.0), "json", "soak", remote=False)
        last = ledger.last
        self._writer.recover(
            last.batch_id if last else -1,
            last.receipts[OUT] if last else None,
            generation=ledger.generation,
        )
        seen = ledger.last.event_times if ledger.last else {CLOCK: 0}
        self._batches = Batches(
            ledger=ledger,
            nodes=nodes,
            watermark=Watermark({CLOCK: 0.0}, seen),
            garbage=garbage,
            publish=lambda batch_id, place, receipt: self._writer.publish(batch_id, receipt),
            tries=1,
            retry_wait=0.0,
            # A single one is the job, whose tasks take both threads.
            map=lambda do, todo: list(pool.map(do, todo) if len(todo) > 1 else map(do, todo)),
        )

    def batch(self, number: int) -> None:
        assert self._batches.run(number, {}, self._job) is not None

    def _job(self, ticket: Ticket, assignment: Assignment | None) -> Written:
        list(self._pool.map(partial(self._task, ticket), range(self._nodes.route.parallelism)))
        # The watermark of the next batch is its number.
        seen = {CLOCK: Seen(TOUCHED, newest=ticket.batch_id + 1)}
        return Written({OUT: self._written(ticket)}, {}, seen)

    def _written(self, ticket: Ticket) -> Receipt:
        """As the sink writes, without Spark."""
        attempt = Attempt(ticket.batch_id, ticket.generation, ticket.attempt)
        storage, name = self._out.files.staged_in(attempt, "part-0.json")
        storage.write(name, [f'{{"id":{ticket.batch_id}}}\n'.encode()])
        newest = self._writer._newest
        return {
            "attempt": str(attempt),
            "rows": 1,
            "files": ["part-0.json"],
            "schema": ROWS,
            "after": list(newest) if newest else None,
        }

    def close(self) -> None:
        self._writer.close()

    def _begin(self, number: int) -> Ticket:
        ticket = Ticket(self._ledger.generation, number, 1)
        begin = partial(self._nodes.begin, ticket=ticket, watermark=number)
        list(self._pool.map(begin, self._nodes.expected))
        return ticket

    def _task(self, ticket: Ticket, partition: int) -> None:
        """Count some keys, let one visitor in and another one out, and keep events that expire."""
        number, route = ticket.batch_id, self._nodes.route
        counted = self._mine(touched(number), partition)
        come, gone = (self._mine(np.array([visitor]), partition) for visitor in visitors(number))
        state = TaskState(self._nodes.assignment(ticket, Time(number - 1, number)), partition, self._folder)
        probes = pa.table({HASH: hashes(counted), "id": counted}, schema=COUNTS.probes)
        answer = state.get(COUNTS, probes)
        known = dict(zip(answer["id"].to_pylist(), answer["n"].to_pylist(), strict=True))
        ids = np.concatenate([counted, come, gone])
        state.put(
            COUNTS,
            pa.table(
                {
                    HASH: hashes(ids),
                    DUE: np.full(len(ids), NEVER),
                    GONE: np.isin(ids, gone),
                    "id": ids,
                    "n": [known.get(key, 0) + 1 for key in ids.tolist()],
                },
                schema=COUNTS.written,
            ),
        )
        due = np.full(len(counted), number + STAY)
        events = {HASH: hashes(counted), DUE: due, "id": counted, "n": due}
        state.put(EVENTS, pa.table(events, schema=EVENTS.written))
        state.stage(TABLES, late=0)
        assert set(group_of(hashes(ids), GROUPS)) <= route.groups_in(partition)

    def _mine(self, ids: Ids, partition: int) -> Ids:
        partitions = np.asarray(self._nodes.route.partitions)[group_of(hashes(ids), GROUPS)]
        mine: Ids = ids[(partitions == partition) & (ids >= 0)]
        return mine

    def state(self, number: int) -> tuple[dict[int, int], int]:
        """After the last batch, as a task of the next one sees it: the counts, and the number of events."""
        nodes, ticket = self._nodes, self._begin(number)
        counts: dict[int, int] = {}
        events = 0
        for partition in range(nodes.route.parallelism):
            state = TaskState(nodes.assignment(ticket, Time(number - 1, number)), partition, self._folder)
            rows = state.scan(COUNTS)
            counts |= zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True)
            events += state.scan(EVENTS).num_rows
        return counts, events


def touched(number: int) -> Ids:
    return (np.arange(TOUCHED) + number * TOUCHED) % KEYS


def visitors(number: int) -> tuple[int, int]:
    """Who comes and who goes; a negative number is nobody."""
    return VISIT + number, VISIT + number - STAY if number >= STAY else -1


def expected(batches: int) -> tuple[dict[int, int], int]:
    """The same state, worked out without any of the machinery."""
    rounds, rest = divmod(batches * TOUCHED, KEYS)
    counts = {key: rounds + (key < rest) for key in range(KEYS)}
    here = {VISIT + number: 1 for number in range(max(batches - STAY, 0), batches)}
    # The watermark of the last batch is its number: what was due by then is gone.
    alive = sum(number + STAY > batches - 1 for number in range(max(batches - STAY, 0), batches))
    return counts | here, alive * TOUCHED


@contextmanager
def started(checkpoint: Path) -> Iterator[Run]:
    ledger = Ledger(checkpoint / "ledger")
    ledger.take_over()
    settings = {"state.nodes": 2, "state.key_groups": GROUPS, "state.retention": RETENTION}
    effective = config.load(environ={}, overrides={**settings, "state.timeout": "20 seconds"})
    nodes, garbage = recovery.start(
        Checkpoint.at(checkpoint), ledger, Soaked(), effective, Security("t"), pipeline="soak", parallelism=2
    )
    assert nodes is not None
    try:
        with ThreadPoolExecutor(2) as pool:
            run = Run(checkpoint, nodes, ledger, garbage, pool)
            yield run
            run.close()
    finally:
        nodes.close()


@pytest.mark.parametrize(
    "batches", [300, pytest.param(None, marks=[pytest.mark.soak, pytest.mark.timeout(7200)], id="many")]
)
def test_batches_leave_nothing_behind(
    tmp_path: Path,
    batches: int | None,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    batches = batches or int(pytestconfig.getoption("batches"))
    began, uses, took = time.monotonic(), list[Use](), list[float]()
    with started(tmp_path) as run:
        used = cpu_seconds()
        for number in range(batches):
            run.batch(number)
            if (number + 1) % (batches // 40) == 0:
                uses.append(use(tmp_path))
                took.append(cpu_seconds() - used)
                used += took[-1]
        seconds = time.monotonic() - began
        assert run.state(batches) == expected(batches)
    record_property("batches", batches)
    record_property("ms per batch", round(1000 * seconds / batches, 1))
    slowdown = median(took[-10:]) / median(took[:10])
    record_property("CPU of a batch, last quarter to first", round(slowdown, 2))
    record_property("last use", json.dumps(asdict(uses[-1])))
    slack = Use(descriptors=10, threads=2, processes=0, memory=96 << 20, files=40, disk=4 << 20)
    record_property("last quarter to first", json.dumps(assert_bounded(uses, slack=slack)))
    # In few batches, the clock of the operating system is too coarse.
    assert batches < 10_000 or slowdown < 1.5
    assert sorted(tg.read(tmp_path / OUT)["id"].to_pylist()) == list(range(batches))
    assert len(list((tmp_path / "ledger").glob("*.json"))) <= 2 * RETENTION + 2
    with started(tmp_path) as next_run:
        assert next_run.state(batches) == expected(batches)
