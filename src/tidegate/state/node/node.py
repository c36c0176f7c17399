"""What a state node does with a request: whether it is allowed, and what becomes of the state.

Knows nothing of the wire. Every method is called from many threads at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate import faults
from tidegate.batch.ticket import Ticket
from tidegate.errors import FencedError, StateError
from tidegate.state.node.fence import Fence
from tidegate.state.node.rwlock import ReadWriteLock
from tidegate.state.node.staging import Staging
from tidegate.state.table.keys import Groups, Hashes, group_of, hash_column
from tidegate.state.table.table import HASH, StateTable
from tidegate.state.wire.commands import Begin, NodeStatus, PrepareAnswer

if TYPE_CHECKING:
    from tidegate.state.node.shard import Shard

_log = logging.getLogger(__name__)

_COURTESY = 4.0
"""Work in the background lets a batch go first, for up to so many times as long as it took itself."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the latest `begin` gave to this node."""

    count: int = 1
    """Key groups in all."""
    groups: Groups = frozenset()
    tables: Mapping[str, StateTable] = field(default_factory=dict)
    watermark: int | None = None
    urgent: bool = False

    def table(self, name: str) -> StateTable:
        if name not in self.tables:
            known = ", ".join(sorted(self.tables)) or "none"
            raise StateError(f"this node has no table {name[:200]!r}; known are: {known}")
        return self.tables[name]

    def check_hashes(self, hashes: NDArray[np.uint64]) -> None:
        """Every one in a key group of this node."""
        if len(self.groups) == self.count:
            return
        mine = np.zeros(self.count, np.bool_)
        mine[sorted(self.groups)] = True
        found = mine[group_of(hashes, self.count)]
        if not found.all():
            raise StateError(
                f"{len(found) - int(found.sum()):,} rows are of key groups that are not on this node"
            )


class StateNode:
    """The state of one node, and where it stands between two batches."""

    def __init__(self, shard: Shard, *, name: str, staged: int) -> None:
        self._shard = shard
        self._name = name
        self._lock = ReadWriteLock()
        self._fence = Fence()
        self._ownership = Ownership()
        self._staging = Staging(staged)
        self._answer: PrepareAnswer | None = None
        self._load = np.zeros(1, np.int64)
        self._counting = threading.Lock()
        self._closing = False
        self._idle = threading.Event()
        """No batch is open."""
        self._committed = threading.Event()
        self._pullable = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=name, args=(event, work), daemon=True)
            for name, event, work in (
                ("compaction", self._committed, self._compact),
                ("pull", self._pullable, self._pull),
            )
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, command: Begin) -> None:
        with self._lock.exclusive():
            after = self._fence.begin(command.ticket)
            if after.phase != "open":
                return
            faults.reach("node.begin", command.ticket.batch_id)
            # Until the shard is there, nothing is open: a failure in between leaves a node that has to be
            # begun again, not one that serves the state of another batch.
            self._fence = replace(after, phase="idle")
            self._answer = None
            self._staging.clear()
            self._shard.begin(
                command.manifest, command.groups, origins=command.origins, budget=command.budget
            )
            tables = {table.name: table for table in command.manifest.tables}
            self._ownership = Ownership(
                command.manifest.groups, command.groups, tables, command.watermark, command.urgent
            )
            self._load = np.zeros(command.manifest.groups, np.int64)
            self._fence = after
            self._idle.clear()
            if command.urgent:
                self._pullable.set()

    def readable(self, ticket: Ticket, table: str) -> StateTable:
        """The table, if a task may read it now. `get` checks again when it has the keys."""
        with self._lock.shared():
            self._fence.read(ticket)
            return self._ownership.table(table)

    def writable(self, ticket: Ticket, table: str) -> StateTable:
        """The table, if a task may stage for it now. `stage` checks again."""
        with self._lock.shared():
            self._fence.stage(ticket)
            return self._ownership.table(table)

    def get(self, ticket: Ticket, table: str, keys: pa.Table) -> pa.Table:
        with self._lock.shared():
            self._fence.read(ticket)
            faults.reach("node.get", ticket.batch_id)
            self._count(hash_column(keys[HASH]))
            return self._shard.get(table, keys)

    def due(self, ticket: Ticket, table: str, groups: Groups, upto: int) -> pa.Table:
        with self._lock.shared():
            self._fence.read(ticket)
            return self._shard.due(table, groups, upto)

    def scan(self, ticket: Ticket, table: str, groups: Groups) -> pa.Table:
        with self._lock.shared():
            self._fence.read(ticket)
            return self._shard.scan(table, groups)

    def departed_table(self, table: str, groups: Groups, batch_id: int) -> StateTable:
        """A table of groups that have left, if they are kept as of that batch.

        What has left does not change, so no lock is taken: the one who asks may have locked a node that we
        wait for.
        """
        return self._shard.departed(batch_id, groups).table(table)

    def fetch_keys(self, table: str, groups: Groups, batch_id: int, keys: pa.Table) -> pa.Table:
        return self._shard.fetch_keys(table, groups, batch_id, keys)

    def fetch_due(self, table: str, groups: Groups, batch_id: int, since: int | None, upto: int) -> pa.Table:
        return self._shard.fetch_due(table, groups, batch_id, since, upto)

    def fetch_range(
        self, table: str, groups: Groups, batch_id: int, first: int, size: int
    ) -> tuple[pa.Table, int | None]:
        return self._shard.fetch_range(table, groups, batch_id, first, size)

    def release(self, ticket: Ticket, groups: Groups) -> None:
        newest = self._fence.ticket.generation
        if ticket.generation < newest:
            raise FencedError(f"a release is refused: a driver of generation {newest} has taken over")
        self._shard.release(groups, ticket.batch_id)

    def stage(
        self, ticket: Ticket, table: str, partition: int, rows: pa.Table, stats: Mapping[str, int]
    ) -> None:
        with self._lock.shared():
            self._fence.stage(ticket)
            self._ownership.table(table)
            self._ownership.check_hashes(hash_column(rows[HASH]))
            faults.reach("node.stage", ticket.batch_id)
            self._staging.put(table, partition, rows, stats)

    def prepare(self, ticket: Ticket) -> PrepareAnswer:
        with self._lock.exclusive():
            after = self._fence.prepare(ticket)
            if after is self._fence and self._answer is not None:
                return self._answer
            faults.reach("node.prepare", ticket.batch_id)
            gathered = self._staging.gathered()
            prepared = self._shard.prepare(
                ticket.batch_id,
                f"{ticket.generation}-{ticket.attempt}",
                gathered.writes,
                self._ownership.watermark,
            )
            for rows in gathered.writes.values():
                self._count(hash_column(rows[HASH]))
            self._answer = PrepareAnswer(
                gathered.tables,
                gathered.stats,
                prepared.runs,
                prepared.bytes,
                {group: int(self._load[group]) for group in np.flatnonzero(self._load).tolist()},
                self._shard.arrived(),
            )
            self._fence = after
            self._staging.clear()
            faults.reach("node.prepared", ticket.batch_id)
            return self._answer

    def commit(self, ticket: Ticket, watermark: int | None) -> None:
        with self._lock.exclusive():
            after = self._fence.commit(ticket)
            if after == self._fence:
                return
            if watermark != self._ownership.watermark:
                raise StateError(
                    f"{ticket} began with watermark {self._ownership.watermark} and cannot be committed "
                    f"with {watermark}"
                )
            faults.reach("node.commit", ticket.batch_id)
            self._shard.commit(ticket.batch_id, watermark)
            self._fence = after
            self._idle.set()
            self._committed.set()
            self._pullable.set()
            faults.reach("node.committed", ticket.batch_id)

    def status(self, *, sizes: bool = False) -> NodeStatus:
        """Waits for nobody, so that a node at work is not taken for a dead one. `sizes` reads the index of
        every run."""
        fence, groups = self._fence, self._ownership.groups
        figures = self._staging.bytes, self._lock.busy(), self._shard.sizes() if sizes else {}
        return NodeStatus(self._name, fence.ticket, fence.phase, groups, *figures, self._shard.groups_left)

    def close(self) -> None:
        self._closing = True
        for event in (self._idle, self._committed, self._pullable):
            event.set()
        for thread in self._threads:
            thread.join()
        with self._lock.exclusive():
            self._shard.close()

    def _count(self, hashes: Hashes) -> None:
        """Keys that were asked for, or rows that are written, as load of their groups."""
        found = np.bincount(group_of(hashes, len(self._load)), minlength=len(self._load))
        with self._counting:
            self._load += found

    def _work(self, event: threading.Event, work: Callable[[], None]) -> None:
        """In the background, each time that something has happened. Reads and the batch protocol go on
        beside."""
        while True:
            event.wait()
            event.clear()
            try:
                work()
            except Exception:
                # Nothing is lost: what there was to do is still there the next time.
                _log.exception("%s failed", threading.current_thread().name)
            if self._closing:
                return

    def _compact(self) -> None:
        """Once after each commit, so that runs do not pile up under steady load, then as long as there is
        something to compact and no batch begins."""
        while not self._closing and self._compacted() and self._idle.is_set():
            pass

    def _compacted(self) -> bool:
        faults.reach("node.compaction", self._fence.ticket.batch_id)
        return self._shard.compact(self._resting())

    def _pull(self) -> None:
        """Between two batches, which take no longer for it then; now and then in one, if there is no time
        between."""
        rest = self._resting()
        self._shard.tidy()
        while not self._closing and self._shard.pull():
            if not self._ownership.urgent:
                rest()

    def _resting(self) -> Callable[[], None]:
        """To be called after each part of some work, which begins now."""
        since = time.monotonic()

        def rest() -> None:
            nonlocal since
            self._idle.wait(_COURTESY * (time.monotonic() - since))
            since = time.monotonic()

        return rest
