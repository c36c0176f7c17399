"""What a state node does with a request: whether it is allowed, and what becomes of the state.

Knows nothing of the wire. Every method is called from many threads at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate import faults
from tidegate.batch.ticket import Ticket
from tidegate.errors import FencedError, StateError
from tidegate.state.log.compaction import Rest
from tidegate.state.node.fence import Fence
from tidegate.state.node.lease import Lease
from tidegate.state.node.rwlock import ReadWriteLock
from tidegate.state.node.staging import Staged, Staging
from tidegate.state.table.keys import Groups, Hashes, group_of, hash_column
from tidegate.state.table.table import HASH, StateTable
from tidegate.state.wire.commands import Begin, NodeStatus, PrepareAnswer

if TYPE_CHECKING:
    from tidegate.state.node.shard import Shard


class Signals:
    """What has happened at a node, for those who work beside its requests."""

    def __init__(self) -> None:
        self.idle = threading.Event()
        """No batch is open."""
        self.committed = threading.Event()
        self.pullable = threading.Event()

    def set(self) -> None:
        """A batch is committed, or the node ends."""
        for signal in (self.idle, self.committed, self.pullable):
            signal.set()


class StateNode:
    """The state of one node, and where it stands between two batches."""

    def __init__(
        self,
        shard: Shard,
        *,
        name: str,
        staged: int,
        lock: ReadWriteLock | None = None,
        lease: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Owns no threads: what is to be done beside requests is for `Background`, and whoever runs the node
        ends it once `lease` has run out. That is in seconds; None: it never does."""
        self.signals = Signals()
        self._shard = shard
        self._name = name
        self._lock = lock or ReadWriteLock()
        self._clock = clock
        self._lease = Lease.starting(lease, clock())
        self._leasing = threading.Lock()
        self._fence = Fence()
        self._watermark: int | None = None
        self._urgent = False
        self._staging = Staging(staged)
        self._answer: PrepareAnswer | None = None
        self._load = np.zeros(1, np.int64)
        self._counting = threading.Lock()
        # What has left does not change, so no lock is taken to fetch it: the one who asks may have locked a
        # node that we wait for.
        self.fetch_keys, self.fetch_due = shard.fetch_keys, shard.fetch_due
        self.fetch_range = shard.fetch_range
        self.tidy = shard.tidy

    @property
    def lease_left(self) -> float | None:
        """Seconds until the node has to give up, 0 or less when it has to now; None: it never has to."""
        return self._lease.left(self._clock())

    def renew(self, generation: int) -> None:
        """A driver of this generation lives, and has not given this node up. Waits for nobody."""
        with self._leasing:
            self._lease = self._lease.renewed(generation, self._clock())

    def begin(self, command: Begin) -> None:
        self.renew(command.ticket.generation)
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
            self._watermark, self._urgent = command.watermark, command.urgent
            self._load = np.zeros(command.manifest.groups, np.int64)
            self._fence = after
            self.signals.idle.clear()
            if command.urgent:
                self.signals.pullable.set()

    def readable(self, ticket: Ticket, table: str) -> StateTable:
        """The table, if a task may read it now. `get` checks again when it has the keys."""
        with self._lock.shared():
            self._fence.read(ticket)
            return self._shard.table(table)

    def writable(self, ticket: Ticket, table: str) -> StateTable:
        """The table, if a task may stage for it now. `stage` checks again."""
        with self._lock.shared():
            self._fence.stage(ticket)
            return self._shard.table(table)

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
        """A table of groups that have left, if they are kept as of that batch."""
        return self._shard.departed(batch_id, groups).table(table)

    def release(self, ticket: Ticket, groups: Groups) -> None:
        newest = self._fence.ticket.generation
        if ticket.generation < newest:
            raise FencedError(f"a release is refused: a driver of generation {newest} has taken over")
        self._shard.release(groups, ticket.batch_id)

    def stage(
        self,
        ticket: Ticket,
        table: str,
        partition: int,
        rows: pa.Table,
        stats: Mapping[str, int],
        nonce: int = 0,
    ) -> None:
        with self._lock.shared():
            self._fence.stage(ticket)
            self._shard.check_rows(table, rows)
            faults.reach("node.stage", ticket.batch_id)
            self._staging.put(table, partition, Staged(rows, dict(stats), nonce))

    def prepare(self, ticket: Ticket) -> PrepareAnswer:
        self.renew(ticket.generation)
        with self._lock.exclusive():
            after = self._fence.prepare(ticket)
            if after is self._fence and self._answer is not None:
                return self._answer
            faults.reach("node.prepare", ticket.batch_id)
            gathered = self._staging.gathered()
            prepared = self._shard.prepare(
                ticket.batch_id, f"{ticket.generation}-{ticket.attempt}", gathered.writes, self._watermark
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
                prepared.furthest,
                gathered.nonces,
            )
            self._fence = after
            self._staging.clear()
            faults.reach("node.prepared", ticket.batch_id)
            return self._answer

    def commit(self, ticket: Ticket, watermark: int | None) -> None:
        self.renew(ticket.generation)
        with self._lock.exclusive():
            after = self._fence.commit(ticket)
            if after == self._fence:
                return
            if watermark != self._watermark:
                began = f"{ticket} began with watermark {self._watermark}"
                raise StateError(f"{began} and cannot be committed with {watermark}")
            faults.reach("node.commit", ticket.batch_id)
            self._shard.commit(ticket.batch_id, watermark)
            self._fence = after
            self.signals.set()
            faults.reach("node.committed", ticket.batch_id)

    def status(self, *, sizes: bool = False) -> NodeStatus:
        """Waits for nobody, so that a node at work is not taken for a dead one. `sizes` reads the index of
        every run."""
        fence, groups = self._fence, self._shard.groups
        figures = self._staging.bytes, self._lock.busy(), self._shard.sizes() if sizes else {}
        coming = self._shard.groups_left, self._shard.received
        return NodeStatus(self._name, fence.ticket, fence.phase, groups, *figures, *coming)

    def compact_once(self, rest: Rest) -> bool:
        """Merge a few runs if that is due; whether it was. `rest` is called now and then. Reads and the batch
        protocol go on beside; the same is true of `pull_once`. Each is for one thread at a time."""
        faults.reach("node.compaction", self._fence.ticket.batch_id)
        return self._shard.compact(rest)

    def pull_once(self, rest: Rest) -> bool:
        """Get a part of what is with other nodes, within the budget; whether there may be more to get."""
        more = self._shard.pull()
        if more and not self._urgent:
            rest()
        return more

    def close(self) -> None:
        with self._lock.exclusive():
            self._shard.close()

    def _count(self, hashes: Hashes) -> None:
        """Keys that were asked for, or rows that are written, as load of their groups."""
        found = np.bincount(group_of(hashes, len(self._load)), minlength=len(self._load))
        with self._counting:
            self._load += found
