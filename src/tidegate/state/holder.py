"""What a state node does with a request: whether it may, whose turn it is, and what becomes of the state.

Knows nothing of the wire. Every method is called from many threads at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.errors import StateError
from tidegate.state.keys import Groups, group_of, hash_column
from tidegate.state.staging import Staging
from tidegate.state.standing import Standing, Ticket
from tidegate.state.table import HASH, StateTable
from tidegate.state.turns import Turns
from tidegate.state.wire import Begin, NodeStatus, PrepareAnswer
from tidegate.testing import faults

if TYPE_CHECKING:
    from tidegate.state.shard import Shard

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holding:
    """What the latest `begin` gave to this node."""

    count: int = 1
    """Key groups in all."""
    groups: Groups = frozenset()
    tables: Mapping[str, StateTable] = field(default_factory=dict)
    watermark: int | None = None

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


class Holder:
    """The state of one node, and where it stands between two batches."""

    def __init__(self, shard: Shard, *, name: str, staged: int) -> None:
        self._shard = shard
        self._name = name
        self._turns = Turns()
        self._standing = Standing()
        self._holding = Holding()
        self._staging = Staging(staged)
        self._answer: PrepareAnswer | None = None
        self._committed = threading.Event()
        self._closing = False
        self._merger = threading.Thread(target=self._merge, name="merge", daemon=True)
        self._merger.start()

    def begin(self, command: Begin) -> None:
        with self._turns.alone():
            after = self._standing.begin(command.ticket)
            if after.phase != "open":
                return
            faults.reach("node.begin", command.ticket.batch_id)
            # Until the shard is there, nothing is open: a failure in between leaves a node that has to be
            # begun again, not one that serves the state of another batch.
            self._standing = replace(after, phase="idle")
            self._answer = None
            self._staging.clear()
            self._shard.begin(command.manifest, command.groups)
            tables = {table.name: table for table in command.manifest.tables}
            self._holding = Holding(command.manifest.groups, command.groups, tables, command.watermark)
            self._standing = after

    def readable(self, ticket: Ticket, table: str) -> StateTable:
        """The table, if a task may read it now. `get` checks again when it has the keys."""
        with self._turns.shared():
            self._standing.read(ticket)
            return self._holding.table(table)

    def writable(self, ticket: Ticket, table: str) -> StateTable:
        """The table, if a task may stage for it now. `stage` checks again."""
        with self._turns.shared():
            self._standing.stage(ticket)
            return self._holding.table(table)

    def get(self, ticket: Ticket, table: str, keys: pa.Table) -> pa.Table:
        with self._turns.shared():
            self._standing.read(ticket)
            faults.reach("node.get", ticket.batch_id)
            return self._shard.get(table, keys)

    def due(self, ticket: Ticket, table: str, groups: Groups, upto: int) -> pa.Table:
        with self._turns.shared():
            self._standing.read(ticket)
            return self._shard.due(table, groups, upto)

    def scan(self, ticket: Ticket, table: str, groups: Groups) -> pa.Table:
        with self._turns.shared():
            self._standing.read(ticket)
            return self._shard.scan(table, groups)

    def pull(self, table: str, groups: Groups) -> pa.Table:
        """All rows as they are now: after the latest committed batch."""
        with self._turns.shared():
            return self._shard.scan(table, groups)

    def stage(
        self, ticket: Ticket, table: str, partition: int, rows: pa.Table, stats: Mapping[str, int]
    ) -> None:
        with self._turns.shared():
            self._standing.stage(ticket)
            self._holding.table(table)
            self._holding.check_hashes(hash_column(rows[HASH]))
            faults.reach("node.stage", ticket.batch_id)
            self._staging.put(table, partition, rows, stats)

    def prepare(self, ticket: Ticket) -> PrepareAnswer:
        with self._turns.alone():
            after = self._standing.prepare(ticket)
            if after is self._standing and self._answer is not None:
                return self._answer
            faults.reach("node.prepare", ticket.batch_id)
            gathered = self._staging.gathered()
            prepared = self._shard.prepare(
                ticket.batch_id,
                f"{ticket.generation}-{ticket.attempt}",
                gathered.writes,
                self._holding.watermark,
            )
            self._answer = PrepareAnswer(gathered.tables, gathered.stats, prepared.runs, prepared.bytes)
            self._standing = after
            self._staging.clear()
            faults.reach("node.prepared", ticket.batch_id)
            return self._answer

    def commit(self, ticket: Ticket, watermark: int | None) -> None:
        with self._turns.alone():
            after = self._standing.commit(ticket)
            if after == self._standing:
                return
            if watermark != self._holding.watermark:
                raise StateError(
                    f"{ticket} began with watermark {self._holding.watermark} and cannot be committed "
                    f"with {watermark}"
                )
            faults.reach("node.commit", ticket.batch_id)
            self._shard.commit(ticket.batch_id, watermark)
            self._standing = after
            self._committed.set()
            faults.reach("node.committed", ticket.batch_id)

    def abort(self, ticket: Ticket) -> None:
        """What was prepared stays in the log, where nothing refers to it; `begin` sets the shard back."""
        with self._turns.alone():
            after = self._standing.abort(ticket)
            if after != self._standing:
                self._standing = after
                self._staging.clear()
                self._answer = None

    def digest(self, table: str, group: int) -> str:
        with self._turns.shared():
            return self._shard.digest(table, group)

    def status(self, *, sizes: bool = False) -> NodeStatus:
        """Waits for nobody, so that a node at work is not taken for a dead one. `sizes` reads the index of
        every run."""
        standing, groups = self._standing, self._holding.groups
        figures = self._staging.bytes, self._turns.busy(), self._shard.sizes() if sizes else {}
        return NodeStatus(self._name, standing.ticket, standing.phase, groups, *figures)

    def close(self) -> None:
        self._closing = True
        self._committed.set()
        self._merger.join()
        with self._turns.alone():
            self._shard.close()

    def _merge(self) -> None:
        """In the background: once after each commit, so that runs do not pile up under steady load, then as
        long as there is something to merge and no batch begins. Reads and the batch protocol go on beside."""
        while True:
            self._committed.wait()
            self._committed.clear()
            try:
                while not self._closing and self._merged() and self._standing.phase == "committed":
                    pass
            except Exception:
                # Nothing is lost: the runs stay as they are and the next commit tries again.
                _log.exception("merging runs failed")
            if self._closing:
                return

    def _merged(self) -> bool:
        faults.reach("node.merge", self._standing.ticket.batch_id)
        return self._shard.merge()
