"""State row by row in a store of keys, loaded from the log key group by key group."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.backends.backend import Backend
from tidegate.state.backends.columnar import Columnar
from tidegate.state.backends.store import Change, Id, Store
from tidegate.state.keys import Groups, group_of, hash_column
from tidegate.state.log import Snapshot
from tidegate.state.manifest import Manifest
from tidegate.state.merge import inside, sorted_by_hash
from tidegate.state.rows import decoded, due_of, encoded, encoded_keys, packed, unpacked
from tidegate.state.table import DUE, GONE, HASH, NEVER, PROBE, StateTable

_LOADED_AT_ONCE = 10_000


class Keyed(Backend):
    """A store in front of the log.

    A key group is loaded by the first `get` that needs it, and taken along by every commit from then on; its
    version in the store tells whether that has happened. `due` and `scan` read other groups from the runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs = Columnar()
        self._lock = threading.Lock()
        self._known: tuple[Manifest, dict[int, str]] | None = None

    def begin(self, snapshot: Snapshot) -> None:
        if self._store.shared:  # Groups that went elsewhere are their new owner's now.
            return
        with self._lock:
            wanted = self._versions(snapshot)
            held = self._store.versions(frozenset(range(snapshot.count)))
            stale = frozenset(group for group, version in held.items() if wanted.get(group) != version)
            if stale:
                self._store.drop(snapshot.tables, stale)

    def commit(self, before: Snapshot, after: Snapshot, writes: Mapping[str, pa.Table]) -> None:
        with self._lock:
            held = self._held(before, before.groups)
            changes: list[Change] = []
            for table in after.manifest.tables:
                changes.extend(self._changes(table, writes.get(table.name), held, after))
            versions = self._versions(after)
            self._store.put(changes, {group: versions[group] for group in held})
            if after.closed is not None:
                for name in after.tables:
                    self._store.passed(name, held, after.closed)

    def get(self, snapshot: Snapshot, table: StateTable, keys: pa.Table) -> pa.Table:
        ids = _ids(table, keys, snapshot.count)
        with self._lock:
            self._load(snapshot, frozenset(group for group, _ in ids))
            pieces = self._store.get(table.name, ids)
        rows: list[bytes] = []
        probes: list[int] = []
        for probe, piece in enumerate(pieces):
            if piece is not None:
                found = _rows(table, piece)
                rows += found
                probes += [probe] * len(found)
        found_rows = decoded(rows, table.schema)
        column = pa.array(np.array(probes, np.int64))
        return _open(found_rows.append_column(pa.field(PROBE, pa.int64(), False), column), snapshot.closed)

    def due(self, snapshot: Snapshot, table: StateTable, groups: Groups, upto: int) -> pa.Table:
        with self._lock:
            held = self._held(snapshot, groups)
            pieces = self._store.get(table.name, self._store.due(table.name, held, upto))
        rows = decoded([row for piece in pieces if piece for row in _rows(table, piece)], table.schema)
        rows = _open(rows.filter(pc.less_equal(rows[DUE], upto)), snapshot.closed)
        others = self._runs.due(snapshot, table, groups - held, upto)
        return sorted_by_hash(pa.concat_tables([rows, others]))

    def scan(self, snapshot: Snapshot, table: StateTable, groups: Groups) -> pa.Table:
        with self._lock:
            held = self._held(snapshot, groups)
            pieces = list(self._store.scan(table.name, held))
        rows = decoded([row for piece in pieces for row in _rows(table, piece)], table.schema)
        others = self._runs.scan(snapshot, table, groups - held)
        return sorted_by_hash(pa.concat_tables([_open(rows, snapshot.closed), others]))

    def close(self) -> None:
        self._store.close()

    def _held(self, snapshot: Snapshot, groups: Groups) -> Groups:
        """The groups that the store holds in the state of a snapshot."""
        wanted = self._versions(snapshot)
        held = self._store.versions(groups)
        return frozenset(group for group, version in held.items() if wanted.get(group) == version)

    def _load(self, snapshot: Snapshot, groups: Groups) -> None:
        for group in sorted(groups - self._held(snapshot, groups)):
            one = frozenset({group})
            self._store.drop(snapshot.tables, one)
            for table in snapshot.manifest.tables:
                rows = self._runs.scan(snapshot, table, one)
                for start in range(0, rows.num_rows, _LOADED_AT_ONCE):
                    part = _content(table, rows.slice(start, _LOADED_AT_ONCE), snapshot.count)
                    # A buffer's key may go on in the next part.
                    known = self._rows_of(table, list(part)) if table.kind == "buffer" else {}
                    self._store.put(
                        [_change(table, at, known.get(at, []) + new) for at, new in part.items()], {}
                    )
            self._store.put([], {group: self._versions(snapshot)[group]})

    def _changes(
        self, table: StateTable, rows: pa.Table | None, held: Groups, after: Snapshot
    ) -> Iterator[Change]:
        """What a batch makes of a table: its rows in, and what is due by the watermark out."""
        content: dict[Id, list[bytes]] = {}
        if rows is not None:
            loaded = inside(held, after.count)[group_of(hash_column(rows[HASH]), after.count)]
            content = _content(table, rows.filter(pa.array(loaded)), after.count)
        over = self._store.due(table.name, held, after.closed) if after.closed is not None else []
        if table.kind == "buffer":
            known = self._rows_of(table, [*content, *over])
            content = {at: known.get(at, []) + content.get(at, []) for at in known.keys() | content.keys()}
        else:
            content = {**self._rows_of(table, over), **content}
        columns, closed = len(table.schema), after.closed
        for at, held_rows in content.items():
            if closed is not None:
                held_rows = [row for row in held_rows if due_of(row, columns) > closed]
            yield _change(table, at, held_rows)

    def _rows_of(self, table: StateTable, ids: Sequence[Id]) -> dict[Id, list[bytes]]:
        pieces = self._store.get(table.name, ids)
        return {at: _rows(table, piece) for at, piece in zip(ids, pieces, strict=True) if piece is not None}

    def _versions(self, snapshot: Snapshot) -> dict[int, str]:
        """What tells the state of each key group of a snapshot from any other."""
        if self._known is None or self._known[0] is not snapshot.manifest:
            self._known = (snapshot.manifest, _versions(snapshot.manifest, snapshot.groups))
        return self._known[1]


def _versions(manifest: Manifest, groups: Groups) -> dict[int, str]:
    tables = "".join(f"{table.name}:{table.written.to_string()}" for table in manifest.tables)
    known: dict[tuple[str, ...], str] = {}
    versions = {}
    for group in groups:
        runs = tuple(run.name for run in manifest.runs if group in run.groups)
        if runs not in known:
            text = f"{manifest.closed};{tables};{runs}"
            known[runs] = f"{manifest.batch_id}-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"
        versions[group] = known[runs]
    return versions


def _ids(table: StateTable, keys: pa.Table, count: int) -> list[Id]:
    hashes = hash_column(keys[HASH])
    groups = group_of(hashes, count).tolist()
    parts = encoded_keys(keys.select(table.keys.names))
    heads = hashes.astype(">u8").tobytes()
    starts = range(0, len(heads), 8)
    return [
        (group, heads[start : start + 8] + part)
        for group, start, part in zip(groups, starts, parts, strict=True)
    ]


def _content(table: StateTable, rows: pa.Table, count: int) -> dict[Id, list[bytes]]:
    """Rows by key; no rows for a key that is gone."""
    content: dict[Id, list[bytes]] = {}
    ids = _ids(table, rows, count)
    gone = rows[GONE].to_pylist() if GONE in rows.column_names else [False] * rows.num_rows
    for at, row, left in zip(ids, encoded(rows.select(table.schema.names)), gone, strict=True):
        kept = content.setdefault(at, [])
        if not left:
            kept.append(row)
    return content


def _rows(table: StateTable, piece: bytes) -> list[bytes]:
    """The rows of a key, from what the store holds."""
    return [piece] if table.kind == "value" else unpacked(piece)


def _change(table: StateTable, at: Id, rows: list[bytes]) -> Change:
    if not rows:
        return Change(table.name, *at, None, NEVER)
    columns = len(table.schema)
    if table.kind == "value":
        return Change(table.name, *at, rows[0], due_of(rows[0], columns))
    return Change(table.name, *at, packed(rows), min(due_of(row, columns) for row in rows))


def _open(rows: pa.Table, closed: int | None) -> pa.Table:
    return rows if closed is None else rows.filter(pc.greater(rows[DUE], closed))
