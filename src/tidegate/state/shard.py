"""The key groups of one node: state after the last batch, and what the next one leaves."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import StaleError, StateError
from tidegate.state.backends import open_backend
from tidegate.state.digest import digest_of
from tidegate.state.keys import Groups, Hashes, group_of, hash_column, show_groups
from tidegate.state.log import Log, Snapshot
from tidegate.state.manifest import Manifest, RunRef
from tidegate.state.merge import chosen, expired, inside, merged_rows, sorted_by_hash
from tidegate.state.storage import Storage
from tidegate.state.table import HASH, StateTable

_MERGED_AT_ONCE = 64 << 20
_NOWHERE = Manifest(-1, 1, None, ())


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a shard answers when a batch is durable."""

    runs: tuple[RunRef, ...]
    """All runs that make up its state after the batch, oldest first."""
    rows: int
    """Rows in the run of the batch; 0 when it has none."""
    bytes: int


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch that is durable and not committed yet."""

    batch_id: int
    watermark: int | None
    runs: tuple[RunRef, ...]
    writes: Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True)
class _Merge:
    """Runs, and the one that holds the same state; None when nothing is left of them."""

    inputs: tuple[RunRef, ...]
    output: RunRef | None
    closed: int | None
    """Rows due by then were left out."""


class Shard:
    """State of some key groups, kept as runs in a log and served by a backend.

    `begin`, `prepare` and `commit` are for one thread; reads and `merge` may run beside them. A read sees the
    state of one batch, whole.
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
    ) -> None:
        """`name` is the node's, and unique to this start of it: it goes into the names of runs, so that two
        writers never meet. `scratch` is for files that need not outlive the process. `memory` is in bytes:
        of rows in a cache, or of sections of remote runs. Without `durable` nothing is written."""
        self._name = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "node"
        self._log = Log(storage, memory=memory, durable=durable)
        self._backend = open_backend(backend, scratch=scratch, memory=memory, options=options or {})
        self._budget = min(_MERGED_AT_ONCE, memory // 8)
        self._now = Snapshot(self._log, _NOWHERE, frozenset())
        self._pending: _Pending | None = None
        self._merges: list[_Merge] = []
        self._merging = False
        self._written = 0
        self._lock = threading.Lock()  # of `_now`, `_pending` and `_merges` changing together

    def begin(self, base: Manifest, groups: Groups) -> None:
        """Stand at the state that `base` describes, of these groups. Nothing is read; when the shard is
        there already, nothing happens. What was prepared and is not part of `base` is dropped."""
        pending = self._pending
        if pending is not None and self._after(pending) == base.restricted(self._now.groups):
            self.commit(base.batch_id, base.closed)
        base = base.restricted(groups)
        with self._lock:
            self._pending = None
            if self._now.manifest == base and self._now.groups == groups:
                return
            self._now = self._snapshot(base, groups)
            self._backend.begin(self._now)
        self._tidy()

    def get(self, table: str, keys: pa.Table) -> pa.Table:
        """The rows of these keys, see `State.get`. StateError for a key of a group that is not held here."""
        now = self._now
        _check_held(hash_column(keys[HASH]), now)
        return self._backend.get(now, now.table(table), keys)

    def due(self, table: str, groups: Groups, upto: int) -> pa.Table:
        """The rows of these groups that are due by then, see `State.due`."""
        now = self._now
        _check_groups(groups, now)
        return self._backend.due(now, now.table(table), groups, upto)

    def scan(self, table: str, groups: Groups) -> pa.Table:
        """All rows of these groups, see `State.scan`."""
        now = self._now
        _check_groups(groups, now)
        return self._backend.scan(now, now.table(table), groups)

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
        content = _ordered(now, writes)
        kept = now.runs
        new: RunRef | None = None
        if content:
            name = self._run_name(batch_id, attempt)
            new = self._log.write(
                name, content, sequence=batch_id, groups=now.groups, count=now.count, read_soon=True
            )
        runs = (*kept, new) if new else kept
        rows = {table.name: part for table, part in content}
        with self._lock:
            self._pending = _Pending(batch_id, watermark, runs, rows)
        return Prepared(runs, new.rows if new else 0, new.bytes if new else 0)

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
            after = self._snapshot(manifest, before.groups)
            self._backend.commit(before, after, pending.writes)
            self._now, self._pending = after, None
        self._tidy()

    def digest(self, table: str, group: int) -> str:
        """A text that is equal for equal state, however it is kept."""
        return digest_of(self.scan(table, frozenset({group})))

    def sizes(self) -> dict[str, Any]:
        """Rows and bytes as they lie in the runs, versions that no longer count among them."""
        now = self._now
        tables = {name: {"rows": 0, "bytes": 0} for name in now.tables}
        for ref in now.runs:
            for section in self._log.run(ref).sections:
                figures = tables.setdefault(section.table, {"rows": 0, "bytes": 0})
                figures["rows"] += section.rows
                figures["bytes"] += section.length
        return {"runs": len(now.runs), "bytes": sum(ref.bytes for ref in now.runs), "tables": tables}

    def merge(self) -> bool:
        """Merge a few runs into one when that is due; whether it was. For one thread at a time.

        The next `prepare` lists the merged run instead of its inputs, whose files stay: earlier manifests
        need them.
        """
        done: _Merge | None = None
        with self._lock:
            now, self._merging = self._now, True
        try:
            done = self._dropped(now) or self._merged(now)
        finally:
            with self._lock:  # Once: what is merged has to have a name before anything tidies up again.
                self._merging = False
                if done is not None:
                    self._merges.append(done)
                    self._now = self._snapshot(self._now.manifest, self._now.groups)
        return done is not None

    def close(self) -> None:
        """Let go of files and connections."""
        self._backend.close()
        self._log.keep(())

    def _dropped(self, now: Snapshot) -> _Merge | None:
        """The oldest runs, when nothing in them counts any more: windows that are over."""
        over = 0
        if now.closed is None:
            return None
        while over < len(now.runs) and expired(self._log.run(now.runs[over]), now.closed):
            over += 1
        return _Merge(now.runs[:over], None, now.closed) if over else None

    def _merged(self, now: Snapshot) -> _Merge | None:
        number = chosen(now.runs)
        if not number:
            return None
        inputs = now.runs[-number:]
        content = merged_rows(now, inputs, bottom=number == len(now.runs), budget=self._budget)
        first = next(content, None)
        if first is None:
            return _Merge(inputs, None, now.closed)
        sequence = inputs[-1].sequence
        output = self._log.write(
            self._run_name(sequence, "merged"),
            chain([first], content),
            sequence=sequence,
            groups=now.groups,
            count=now.count,
        )
        return _Merge(inputs, output, now.closed)

    def _after(self, pending: _Pending) -> Manifest:
        return replace(
            self._now.manifest, batch_id=pending.batch_id, closed=pending.watermark, runs=pending.runs
        )

    def _snapshot(self, manifest: Manifest, groups: Groups) -> Snapshot:
        """A manifest with the merges done that fit it; the other ones are forgotten."""
        runs, fitting = manifest.runs, []
        for merge in self._merges:
            after = _substituted(runs, merge, manifest.closed, groups)
            if after is not None:
                runs = after
                fitting.append(merge)
        self._merges = fitting
        return Snapshot(self._log, manifest, groups, runs)

    def _run_name(self, batch_id: int, purpose: str) -> str:
        with self._lock:
            self._written += 1
            number = self._written
        purpose = re.sub(r"[^A-Za-z0-9]+", "-", purpose)[:40]
        return f"{batch_id:012d}-{self._name}-{number}-{purpose}.run"

    def _tidy(self) -> None:
        """Close runs that nothing names any more."""
        with self._lock:
            if self._merging:  # It has opened some, and written one that nothing names yet.
                return
            names = {ref.name for ref in (*self._now.runs, *self._now.manifest.runs)}
            if self._pending is not None:
                names |= {ref.name for ref in self._pending.runs}
            for merge in self._merges:
                names |= {ref.name for ref in merge.inputs}
            self._log.keep(names)


def _substituted(
    runs: tuple[RunRef, ...], merge: _Merge, closed: int | None, groups: Groups
) -> tuple[RunRef, ...] | None:
    """The runs with a merged one in place of its inputs; None when they are not all there as they were."""
    if merge.closed is not None and (closed is None or closed < merge.closed):
        return None
    if merge.output is not None and merge.output.groups != groups:
        return None
    number = len(merge.inputs)
    for start in range(len(runs) - number + 1):
        if runs[start : start + number] == merge.inputs:
            between = () if merge.output is None else (merge.output,)
            return (*runs[:start], *between, *runs[start + number :])
    return None


def _ordered(now: Snapshot, writes: Mapping[str, pa.Table]) -> Sequence[tuple[StateTable, pa.Table]]:
    content = []
    for name in sorted(writes):
        table, rows = now.table(name), writes[name]
        if not rows.num_rows:
            continue
        if rows.schema.names != table.written.names or rows.schema.types != table.written.types:
            raise StateError(
                f"rows for state table {name} have the columns {rows.schema.names}; "
                f"it takes {table.written.names}, typed {[str(kind) for kind in table.written.types]}"
            )
        _check_held(hash_column(rows[HASH]), now)
        content.append((table, sorted_by_hash(rows.cast(table.written))))
    return content


def _check_held(hashes: Hashes, now: Snapshot) -> None:
    if len(now.groups) == now.count:
        return
    groups = group_of(hashes, now.count)
    held = inside(now.groups, now.count)[groups]
    if not held.all():
        strange = np.unique(groups[~held]).tolist()
        raise StateError(f"key groups {show_groups(strange)} are not held here; ask their owner")


def _check_groups(groups: Groups, now: Snapshot) -> None:
    if not groups <= now.groups:
        raise StateError(f"key groups {show_groups(groups - now.groups)} are not held here; ask their owner")
