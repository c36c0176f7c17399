"""State row by row in a store of keys, loaded from the log key group by key group."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.log.compaction import inside, live, reached, sorted_by_hash
from tidegate.state.log.log import Snapshot
from tidegate.state.log.manifest import StateManifest
from tidegate.state.node.backends.backend import Backend
from tidegate.state.node.backends.columnar import Columnar
from tidegate.state.node.backends.store import Change, Id, Store
from tidegate.state.table.keys import Groups, bounds, group_of, hash_column
from tidegate.state.table.rows import decoded, due_of, encoded, encoded_keys, packed, unpacked
from tidegate.state.table.table import DUE, GONE, HASH, NEVER, StateTable, by_probe, with_probe, with_probes

LOADING = 0.05
"""Seconds that a `get` may go on loading key groups."""
PART_ROWS = 5_000
PART_BYTES = 4 << 20
"""What is loaded in one go."""
_MARK = re.compile(r"(-?\d+-[0-9a-f]+)\+([0-9a-f]+)(?:@(\d+):(\d+))?")


@dataclass(frozen=True, slots=True)
class Mark:
    """What a store has as the version of a key group, as text. A text never comes back once it has changed:
    whoever finds the one that was there before knows that nothing happened in between."""

    version: str
    """Which state it is: the number of its batch, `-`, and a digest of what that consists of."""
    load: str
    """Tells one load of the group from any other."""
    cursor: tuple[int, int] | None
    """The table, by number, and the hash from which on nothing is loaded yet; None when all of it is."""

    @classmethod
    def first(cls, version: str) -> Mark:
        """Of a load that begins."""
        return cls(version, secrets.token_hex(8), (0, 0))

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """None for a text that is no mark."""
        found = _MARK.fullmatch(text)
        if found is None:
            return None
        version, load, table, start = found.groups()
        return cls(version, load, None if table is None else (int(table), int(start)))

    @property
    def batch_id(self) -> int:
        return int(self.version.rpartition("-")[0])

    def __str__(self) -> str:
        at = "" if self.cursor is None else f"@{self.cursor[0]}:{self.cursor[1]}"
        return f"{self.version}+{self.load}{at}"


class Keyed(Backend):
    """A store in front of the log.

    Key groups that a `get` needs are loaded part by part, a little with each `get`, and what is loaded is
    taken along by every commit from then on: the version of a group in the store, a `Mark`, tells how far
    that is. Until a group is there whole it is read from the runs, so nobody waits for it; so is one that
    another process has taken to another state.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs = Columnar()
        self._lock = threading.Lock()  # of what the store has
        self._known: tuple[StateManifest, dict[int, str]] | None = None

    def begin(self, snapshot: Snapshot) -> None:
        if self._store.shared:  # Groups that went elsewhere are their new owner's now.
            return
        with self._lock:
            texts = self._store.versions(frozenset(range(snapshot.count)))
            stale = texts.keys() - self._fitting(snapshot, texts).keys()
            if stale:
                self._store.drop(snapshot.tables, frozenset(stale))

    def commit(self, before: Snapshot, after: Snapshot, writes: Mapping[str, pa.Table]) -> None:
        with self._lock:
            marks = self._fitting(before, self._store.versions(before.groups))
            held = frozenset(marks)
            changes: list[Change] = []
            for table in after.manifest.tables:
                changes.extend(self._changes(table, writes.get(table.name), held, after))
            versions = self._versions(after)
            moved = {group: replace(mark, version=versions[group]) for group, mark in marks.items()}
            self._store.put(changes, _texts(marks), _texts(moved))
            if after.closed is not None:
                for name in after.tables:
                    self._store.passed(name, held, after.closed)

    def get(self, snapshot: Snapshot, table: StateTable, keys: pa.Table) -> pa.Table:
        ids = _ids(table, keys, snapshot.count)
        pieces, texts = self._store.get(table.name, ids)
        held = self._whole(snapshot, texts)
        rows: list[bytes] = []
        probes: list[int] = []
        others: list[int] = []
        for probe, ((group, _), piece) in enumerate(zip(ids, pieces, strict=True)):
            if group not in held:
                others.append(probe)
            elif piece is not None:
                found = _rows(table, piece)
                rows += found
                probes += [probe] * len(found)
        kept = with_probe(decoded(rows, table.schema), np.array(probes, np.int64))
        kept = live(kept, snapshot.closed)
        if not others:
            return kept
        read = self._runs.get(snapshot, table, keys.take(pa.array(others)))
        self._load(snapshot, frozenset(ids[probe][0] for probe in others))
        return by_probe(table, [kept, with_probes(read, np.array(others, np.int64))])

    def due(self, snapshot: Snapshot, table: StateTable, groups: Groups, upto: int) -> pa.Table:
        ids, texts = self._store.due(table.name, groups, upto)
        pieces, again = self._store.get(table.name, ids)
        moved = {group for group, _ in ids if again.get(group) != texts.get(group)}
        held = self._whole(snapshot, texts) - moved
        found = [piece for (group, _), piece in zip(ids, pieces, strict=True) if piece and group in held]
        rows = decoded([row for piece in found for row in _rows(table, piece)], table.schema)
        rows = live(rows.filter(pc.less_equal(rows[DUE], upto)), snapshot.closed)
        if groups - held:
            rows = pa.concat_tables([rows, self._runs.due(snapshot, table, groups - held, upto)])
        return sorted_by_hash(rows)

    def scan(self, snapshot: Snapshot, table: StateTable, groups: Groups) -> pa.Table:
        texts = self._store.versions(groups)
        found = {group: self._store.scan(table.name, group) for group in self._whole(snapshot, texts)}
        again = self._store.versions(frozenset(found))
        held = frozenset(group for group in found if again.get(group) == texts[group])
        pieces = [piece for group in held for piece in found[group]]
        rows = decoded([row for piece in pieces for row in _rows(table, piece)], table.schema)
        rows = live(rows, snapshot.closed)
        if groups - held:
            rows = pa.concat_tables([rows, self._runs.scan(snapshot, table, groups - held)])
        return sorted_by_hash(rows)

    def close(self) -> None:
        self._store.close()

    def _whole(self, snapshot: Snapshot, texts: Mapping[int, str]) -> Groups:
        marks = self._fitting(snapshot, texts)
        return frozenset(group for group, mark in marks.items() if mark.cursor is None)

    def _fitting(self, snapshot: Snapshot, texts: Mapping[int, str]) -> dict[int, Mark]:
        """The groups that the store holds in the state of a snapshot, be it in part, by their versions."""
        wanted = self._versions(snapshot)
        marks = ((group, Mark.parse(text)) for group, text in texts.items())
        return {group: mark for group, mark in marks if mark and mark.version == wanted.get(group)}

    def _load(self, snapshot: Snapshot, groups: Groups) -> None:
        """Go on loading these groups, for a while."""
        if not self._lock.acquire(blocking=False):  # Somebody else is at it, or a batch is being committed.
            return
        try:
            until = time.monotonic() + LOADING
            texts = self._store.versions(groups)
            begun = self._fitting(snapshot, texts)
            for group in sorted(groups, key=lambda group: (group not in begun, group)):
                mark = begun.get(group) or self._begun(snapshot, group, texts.get(group, ""))
                while mark is not None and mark.cursor is not None:
                    mark = self._part(snapshot, group, mark, mark.cursor)
                    if time.monotonic() >= until:
                        return
        finally:
            self._lock.release()

    def _begun(self, snapshot: Snapshot, group: int, text: str) -> Mark | None:
        """Begin to load a group; None when somebody else has it."""
        known = Mark.parse(text)
        # Further on than we are: its owner is another one by now, and we do not know yet.
        if known is not None and known.batch_id > snapshot.manifest.batch_id:
            return None
        self._store.drop(snapshot.tables, frozenset({group}))
        mark = Mark.first(self._versions(snapshot)[group])
        return mark if self._store.put([], {group: ""}, {group: str(mark)}) else None

    def _part(self, snapshot: Snapshot, group: int, mark: Mark, cursor: tuple[int, int]) -> Mark | None:
        """Load the next part of a group; None when somebody else has changed it."""
        tables = snapshot.manifest.tables
        place, start = cursor
        table = tables[place]
        first, beyond = bounds(group, snapshot.count)
        span = (max(first, start), beyond)
        runs = [run for _, run in snapshot.opened(table)]
        stop = reached(runs, table, [span], rows=PART_ROWS, size=PART_BYTES)
        rows = self._runs.scan(snapshot, table, frozenset({group}), (span[0], stop))
        changes = [_change(table, at, held) for at, held in _content(table, rows, snapshot.count).items()]
        if stop < beyond:
            after = replace(mark, cursor=(place, stop))
        else:
            after = replace(mark, cursor=(place + 1, 0) if place + 1 < len(tables) else None)
        return after if self._store.put(changes, {group: str(mark)}, {group: str(after)}) else None

    def _changes(
        self, table: StateTable, rows: pa.Table | None, held: Groups, after: Snapshot
    ) -> Iterator[Change]:
        """What a batch makes of a table: its rows in, and what is due by the watermark out."""
        content: dict[Id, list[bytes]] = {}
        if rows is not None:
            # Of a group that is not whole also what comes later: the load puts the same or more in its place.
            ours = inside(held, after.count)[group_of(hash_column(rows[HASH]), after.count)]
            content = _content(table, rows.filter(pa.array(ours)), after.count)
        over = self._store.due(table.name, held, after.closed)[0] if after.closed is not None else []
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
        pieces, _ = self._store.get(table.name, ids)
        return {at: _rows(table, piece) for at, piece in zip(ids, pieces, strict=True) if piece is not None}

    def _versions(self, snapshot: Snapshot) -> dict[int, str]:
        """What tells the state of each key group of a snapshot from any other."""
        known = self._known
        if known is None or known[0] is not snapshot.manifest:
            known = self._known = (snapshot.manifest, _versions(snapshot.manifest, snapshot.groups))
        return known[1]


def _versions(manifest: StateManifest, groups: Groups) -> dict[int, str]:
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


def _texts(marks: Mapping[int, Mark]) -> dict[int, str]:
    return {group: str(mark) for group, mark in marks.items()}


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
