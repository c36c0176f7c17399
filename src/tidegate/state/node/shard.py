"""The key groups of one node: state after the last batch, and what the next one leaves."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import StaleError, StateError
from tidegate.state.log.compaction import (
    MOST_RUNS,
    Compaction,
    Rest,
    compacted,
    sorted_by_hash,
    substituted,
)
from tidegate.state.log.log import Log, Snapshot
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.node.arrival import CHUNK_BYTES, Arrival, continued, restricted
from tidegate.state.node.backends import open_backend
from tidegate.state.node.backends.columnar import Columnar
from tidegate.state.node.backends.migrating import Migrating
from tidegate.state.node.departure import Departures
from tidegate.state.node.peers import Connect, Peers
from tidegate.state.table.keys import Groups, Hashes, group_of, hash_column, show_groups
from tidegate.state.table.table import DUE, HASH, NEVER, StateTable, conformed
from tidegate.storage.storage import Storage

_MOST_RUNS_REPLACED = 3 * MOST_RUNS
"""With more runs than these, those of a log are read again in place of what arrived, so that they can be
compacted."""
_FIGURES = ("demand_keys", "demand_bytes", "background_keys", "background_bytes", "local", "remote")
_NOWHERE = StateManifest(-1, 1, None, ())


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that is durable and not committed yet."""

    batch_id: int
    watermark: int | None
    writes: Mapping[str, pa.Table]
    """Rows by table, sorted by hash."""
    runs: tuple[RunRef, ...]
    """All runs that make up the state after the batch, oldest first."""
    rows: int
    """Rows in the run of the batch; 0 when it has none."""
    bytes: int
    furthest: int | None
    """See `wire.PrepareAnswer.furthest`."""


class Shard:
    """State of some key groups, kept as runs in a log and served by a backend.

    `begin`, `prepare` and `commit` are for one thread; reads and `compact` may run beside them. A read sees
    the state of one batch, whole. Key groups that come from other nodes are got part by part, by reads that
    need them and by `pull`, which is for one thread and may run beside everything. Key groups that go are
    kept as they were, for their new owners, until `release`.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        name: str,
        scratch: Path,
        backend: str = "columnar",
        memory: int = 1 << 30,
        durable: bool = True,
        options: Mapping[str, str] | None = None,
        connect: Connect | None = None,
        pool: Executor | None = None,
    ) -> None:
        """`name` is the node's, and unique to this start of it: it goes into the names of runs, so that two
        writers never meet. `scratch` is for files that need not outlive the process. `memory` is in bytes:
        of rows in a cache, or of sections of remote runs. Without `durable` nothing is written. `connect`
        leads to other nodes, several of which are asked at once by `pool`."""
        self._name = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "node"
        self._log = Log(storage, memory=memory, durable=durable)
        self._peers = Peers(connect, pool)
        self._backend = open_backend(backend, scratch=scratch, memory=memory, options=options or {})
        self._reads = Migrating(self._backend, self._peers)
        self._departures = Departures()
        self._departed = Migrating(Columnar(), self._peers)  # reads what has departed
        self._scratch = scratch
        self._allowance = 0
        self._memory = memory
        self._now = Snapshot(self._log, _NOWHERE, frozenset())
        self._pending: Prepared | None = None
        self._compactions: list[Compaction] = []
        self._compacting = False
        self._written = 0
        self._lock = threading.Lock()  # of `_now`, `_pending` and `_compactions` changing together

    def begin(
        self,
        base: StateManifest,
        groups: Groups,
        *,
        origins: Mapping[str, Groups] | None = None,
        budget: int = 0,
    ) -> None:
        """Stand at the state that `base` describes, of these groups. Nothing is read; when the shard is
        there already, nothing happens. What was prepared and is not part of `base` is dropped.

        Groups of `origins` that are new here come from the nodes at these addresses; up to `budget` bytes of
        all that is under way may be pulled until the next `begin`. Without origins the log has them.
        """
        pending = self._pending
        if pending is not None and _alike(self._after(pending), base, self._now.groups & groups):
            self.commit(base.batch_id, base.closed)
        base = base.restricted(groups)
        with self._lock:
            self._pending = None
            before = self._now
            there = _alike(before.manifest, base, before.groups & groups)
            held = before.groups & groups if there else frozenset()
            arrivals = restricted(before.arrivals, held)
            back = self._departures.after(base.batch_id)
            if back is not None and _alike(back.manifest, base, back.groups & (groups - held)):
                # A change of owners was taken back; what was under way then is so again.
                arrivals = (*arrivals, *restricted(back.arrivals, groups - held))
                held |= back.groups & groups
            if origins:
                keep = not (self._log.durable and self._log.mapped)
                arrivals = continued(
                    arrivals, base, origins, held, durable=self._log.durable, keep=keep, scratch=self._scratch
                )
            if there and before.groups - groups:
                self._departures.freeze(before.restricted(before.groups - groups))
            self._departures.rewind(base.batch_id)
            self._allowance = budget
            for arrival in arrivals:
                arrival.transfer.wake()
            if before.manifest == base and before.groups == groups and before.arrivals == arrivals:
                return
            self._now = self._snapshot(base, groups, arrivals)
            self._backend.begin(self._now)
        self._tidy()

    @property
    def groups(self) -> Groups:
        return self._now.groups

    def table(self, name: str) -> StateTable:
        """A table by its name. StateError when there is none."""
        return self._now.table(name)

    def check_rows(self, table: str, rows: pa.Table) -> None:
        """Whether rows can be written to a table. StateError when it takes others, or they are of groups that
        are not held here."""
        now, wanted = self._now, self.table(table).written
        if rows.schema.names != wanted.names or rows.schema.types != wanted.types:
            raise StateError(
                f"rows for state table {table} have the columns {rows.schema.names}; "
                f"it takes {wanted.names}, typed {[str(kind) for kind in wanted.types]}"
            )
        _check_held(hash_column(rows[HASH]), now.groups, now.count)

    def get(self, table: str, keys: pa.Table) -> pa.Table:
        """The rows of these keys, see `State.get`. StateError for a key of a group that is not held here."""
        now = self._now
        _check_held(hash_column(keys[HASH]), now.groups, now.count)
        return self._reads.get(now, now.table(table), keys)

    def due(self, table: str, groups: Groups, upto: int) -> pa.Table:
        """The rows of these groups that are due by then, see `State.due`."""
        now = self._now
        _check_groups(groups, now.groups)
        return self._reads.due(now, now.table(table), groups, upto)

    def scan(self, table: str, groups: Groups) -> pa.Table:
        """All rows of these groups, see `State.scan`."""
        now = self._now
        _check_groups(groups, now.groups)
        return self._reads.scan(now, now.table(table), groups)

    def fetch_keys(self, table: str, groups: Groups, batch_id: int, keys: pa.Table) -> pa.Table:
        """The rows of keys of these groups, which have left or are about to, after a batch."""
        kept = self.departed(batch_id, groups)
        _check_held(hash_column(keys[HASH]), groups, kept.count)
        return self._departed.get(kept, kept.table(table), keys)

    def fetch_due(self, table: str, groups: Groups, batch_id: int, since: int | None, upto: int) -> pa.Table:
        """The rows of such groups that are due by `upto` and were not by `since`."""
        kept = self.departed(batch_id, groups)
        rows = self._departed.due(kept, kept.table(table), groups, upto)
        return rows if since is None else rows.filter(pc.greater(rows[DUE], since))

    def fetch_range(
        self, table: str, groups: Groups, batch_id: int, first: int, size: int
    ) -> tuple[pa.Table, int | None]:
        """The rows of such groups in a range, and the hash to go on from; see `wire.FetchRange`."""
        kept = self.departed(batch_id, groups)
        return self._departed.fetch_range(kept, kept.table(table), groups, first, size)

    def departed(self, batch_id: int, groups: Groups) -> Snapshot:
        """The state of groups after a batch, for their next owner. StaleError when it is not here."""
        # It may be that the next owner has heard of the change before us: then it is all here still.
        for found in (self._departures.after(batch_id), self._now):
            if found is not None and found.manifest.batch_id == batch_id and groups <= found.groups:
                return found
        raise StaleError(
            f"key groups {show_groups(groups)} as of batch {batch_id} are not kept here; "
            "they were released, or were never here"
        )

    def release(self, groups: Groups, batch_id: int) -> None:
        """Forget what had left before this batch."""
        self._departures.release(groups, batch_id)
        self._tidy()

    def pull(self) -> bool:
        """Get a part of what is with other nodes, within the budget; whether there may be more to get."""
        if self._allowance <= 0:
            return False
        came = self._reads.pull(self._now, min(CHUNK_BYTES, self._allowance))
        if came is None:
            return False
        with self._lock:  # An empty part is not for nothing either.
            self._allowance -= max(came, 1)
            return self._allowance > 0

    def tidy(self) -> None:
        """Bring what came key by key into few parts, beside everything."""
        for arrival in self._now.arriving:
            arrival.transfer.tidy()

    def arrived(self) -> dict[str, int]:
        """What came from other nodes since this was last asked for; see `wire.PrepareAnswer.arrived`."""
        figures = dict.fromkeys(_FIGURES, 0) | self._reads.figures()
        return {**figures, "groups_left": self.groups_left}

    @property
    def groups_left(self) -> int:
        """Key groups whose state has not wholly arrived."""
        return len(self._now.open)

    @property
    def received(self) -> int:
        """Bytes that have come from other nodes."""
        return self._reads.received

    def prepare(
        self, batch_id: int, attempt: str, writes: Mapping[str, pa.Table], watermark: int | None
    ) -> Prepared:
        """Make the rows of a batch durable, as one run; no run when there are none.

        `writes`: rows by table, columns as `StateTable.written`, in any order. Another attempt at the batch
        takes the place of the one before.
        """
        now = self._now
        if batch_id <= now.manifest.batch_id:
            raise StaleError(f"batch {batch_id} is over: the shard is at batch {now.manifest.batch_id}")
        content = []
        for table, rows in sorted(writes.items()):
            self.check_rows(table, rows)
            if rows.num_rows:
                known = now.table(table)
                content.append((known, sorted_by_hash(conformed(rows, known.written))))
        new: RunRef | None = None
        if content:
            name = self._run_name(batch_id, attempt)
            new = self._log.write(
                name, content, sequence=batch_id, groups=now.groups, count=now.count, read_soon=True
            )
        runs = (*now.runs, new) if new else now.runs
        kept = {known.name: rows for known, rows in content}
        figures = (new.rows, new.bytes) if new else (0, 0)
        prepared = Prepared(batch_id, watermark, kept, runs, *figures, _furthest(content))
        with self._lock:
            self._pending = prepared
        return prepared

    def commit(self, batch_id: int, watermark: int | None) -> None:
        """Make the prepared batch current. That it is already is fine."""
        pending = self._pending
        if pending is None or pending.batch_id != batch_id:
            if self._now.manifest.batch_id == batch_id:
                return
            raise StaleError(f"batch {batch_id} was not prepared here; begin it again")
        with self._lock:
            before = self._now
            manifest = replace(self._after(pending), closed=watermark)
            after = self._snapshot(manifest, before.groups, before.arrivals)
            self._backend.commit(before, after, pending.writes)
            self._now, self._pending = after, None
        self._tidy()

    def sizes(self) -> dict[str, Any]:
        """See `Snapshot.sizes`."""
        return self._now.sizes()

    def compact(self, rest: Rest = lambda: None) -> bool:
        """Compact a few runs into one when that is due; whether it was. For one thread at a time.

        `rest` is called between two parts of a long compaction. The next `prepare` lists the new run instead
        of its inputs, whose files stay: earlier manifests need them.
        """
        done: Compaction | None = None
        with self._lock:
            now, self._compacting = self._now, True
        try:
            now = self._without_arrivals(now)
            done = compacted(now, rest, memory=self._memory, name=self._run_name)
        finally:
            with self._lock:  # Once: the new run has to have a name before anything tidies up again.
                self._compacting = False
                if done is not None:
                    self._compactions.append(done)
                    self._now = self._snapshot(self._now.manifest, self._now.groups, self._now.arrivals)
        return done is not None

    def close(self) -> None:
        """Let go of files and connections."""
        self._backend.close()
        self._peers.close()
        self._log.keep(())

    def _without_arrivals(self, now: Snapshot) -> Snapshot:
        """With more runs than is good, those that the log has as well are read again, not what arrived."""
        if not self._log.durable or now.open or len(now.runs) <= _MOST_RUNS_REPLACED:
            return now
        with self._lock:
            if self._now is now:
                self._now = replace(now, arrivals=())
            return self._now

    def _after(self, pending: Prepared) -> StateManifest:
        return replace(
            self._now.manifest, batch_id=pending.batch_id, closed=pending.watermark, runs=pending.runs
        )

    def _snapshot(self, manifest: StateManifest, groups: Groups, arrivals: tuple[Arrival, ...]) -> Snapshot:
        """A manifest with the compactions that fit it; other ones are forgotten. So are arrivals when all
        runs that they were read for are compacted."""
        runs, self._compactions = substituted(manifest, groups, self._compactions)
        # By the manifest: when a compaction is forgotten, its inputs are needed again.
        needed = Snapshot(self._log, manifest, groups, manifest.runs, restricted(arrivals, groups)).arriving
        return Snapshot(self._log, manifest, groups, runs, needed)

    def _run_name(self, batch_id: int, purpose: str) -> str:
        with self._lock:
            self._written += 1
            number = self._written
        purpose = re.sub(r"[^A-Za-z0-9]+", "-", purpose)[:40]
        return f"{batch_id:012d}-{self._name}-{number}-{purpose}.run"

    def _tidy(self) -> None:
        """Close runs that nothing names any more."""
        with self._lock:
            if self._compacting:  # It has opened some, and written one that nothing names yet.
                return
            names = {ref.name for ref in (*self._now.runs, *self._now.manifest.runs)}
            names |= self._departures.names()
            if self._pending is not None:
                names |= {ref.name for ref in self._pending.runs}
            for compaction in self._compactions:
                names |= {ref.name for ref in compaction.inputs}
            self._log.keep(names)


def _alike(one: StateManifest, other: StateManifest, groups: Groups) -> bool:
    """Whether these describe the same state of some groups."""
    if one == other:
        return True
    one, other = one.restricted(groups), other.restricted(groups)
    return replace(one, runs=()) == replace(other, runs=()) and set(one.runs) == set(other.runs)


def _furthest(content: Sequence[tuple[StateTable, pa.Table]]) -> int | None:
    """The latest moment for which rows of value tables wait. Buffers are about what may still come."""
    dues = [rows[DUE].to_numpy() for table, rows in content if table.kind == "value"]
    return max((int(due[due < NEVER].max()) for due in dues if (due < NEVER).any()), default=None)


def _check_held(hashes: Hashes, mine: Groups, count: int) -> None:
    if len(mine) < count:
        present = np.bincount(group_of(hashes, count), minlength=count)
        _check_groups(frozenset(np.flatnonzero(present).tolist()), mine)


def _check_groups(groups: Groups, mine: Groups) -> None:
    if not groups <= mine:
        raise StateError(f"key groups {show_groups(groups - mine)} are not held here; ask their owner")
