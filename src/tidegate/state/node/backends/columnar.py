"""State straight from the runs: binary search in memory-mapped columns, whole batches of keys at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.state.log.compaction import inside, live, merged, rows_within, sorted_by_hash
from tidegate.state.log.log import Snapshot
from tidegate.state.log.manifest import RunRef
from tidegate.state.log.pieces import Sectioned
from tidegate.state.node.backends.backend import Backend
from tidegate.state.table.keys import Groups, Hashes, distinct, group_of, hash_column, same
from tidegate.state.table.table import DUE, HASH, Places, StateTable, by_probe, empty, with_probe


class Columnar(Backend):
    """Holds nothing of its own: a snapshot's runs are all it needs."""

    def get(self, snapshot: Snapshot, table: StateTable, keys: pa.Table) -> pa.Table:
        return looked_up(snapshot.opened(table), table, keys, snapshot.closed)[0]

    def due(self, snapshot: Snapshot, table: StateTable, groups: Groups, upto: int) -> pa.Table:
        closed = snapshot.closed
        opened = snapshot.opened(table)
        parts = [_due_rows(ref, run, table, groups, closed, upto) for ref, run in opened]
        parts = [part for part in parts if part.num_rows]
        if not parts:
            return empty(table.schema)
        rows = pa.concat_tables(parts)
        if table.kind == "buffer" or len(opened) == 1:
            return sorted_by_hash(live(rows, closed).select(table.schema.names))
        # An older row may have been replaced by one that is due at another time.
        rows = rows.combine_chunks()
        first, _ = distinct(hash_column(rows[HASH]), [rows[name] for name in table.keys.names])
        newest = self.get(snapshot, table, rows.select(table.probes.names).take(pa.array(first)))
        return newest.filter(pc.less_equal(newest[DUE], upto)).select(table.schema.names)

    def scan(
        self, snapshot: Snapshot, table: StateTable, groups: Groups, span: tuple[int, int] = (0, 2**64)
    ) -> pa.Table:
        """See `Backend.scan`; of the hashes in `span` only."""
        parts = [rows_within(ref, run, table, groups, span) for ref, run in snapshot.opened(table)]
        return live(merged(table, parts), snapshot.closed).select(table.schema.names)


def looked_up(
    opened: Sequence[tuple[RunRef, Sectioned]], table: StateTable, keys: pa.Table, closed: int | None
) -> tuple[pa.Table, Places]:
    """Rows of keys in runs, given oldest first, as `Backend.get` has them; and the keys, by place, that older
    runs may have rows of: in a value table those that none of these has one of, be it gone."""
    keys = keys.combine_chunks()
    hashes = hash_column(keys[HASH])
    order = np.argsort(hashes)
    probes = _Probes(hashes[order], order, [keys[name] for name in table.keys.names])
    found: list[pa.Table] = []
    if table.kind == "value":
        for ref, run in reversed(opened):
            if not len(probes.rows):
                break
            hits, rows = _hits(ref, run, table, probes)
            if len(rows):
                found.append(rows)
                probes = probes.without(hits)
    else:
        found = [_hits(ref, run, table, probes)[1] for ref, run in opened]
    return live(by_probe(table, found), closed).select(table.answered.names), np.sort(probes.rows)


def contains(held: pa.Table, keys: pa.Table, names: Sequence[str]) -> NDArray[np.bool_]:
    """For each key whether it is among those held, which are sorted by hash."""
    known = np.zeros(keys.num_rows, np.bool_)
    if not held.num_rows or not keys.num_rows:
        return known
    hashes = hash_column(keys[HASH])
    order = np.argsort(hashes)
    where, at = _matches(hash_column(held[HASH]), hashes[order])
    places = order[where]
    mine, theirs = held.take(pa.array(at)), keys.take(pa.array(places))
    known[places[same([mine[name] for name in names], [theirs[name] for name in names])]] = True
    return known


@dataclass(frozen=True, slots=True)
class _Probes:
    """Keys to look for, by hash. `rows` are their places in the table they came in."""

    hashes: Hashes
    rows: Places
    keys: Sequence[pa.ChunkedArray]

    def without(self, found: NDArray[np.int64]) -> _Probes:
        left = np.ones(len(self.rows), np.bool_)
        left[found] = False
        return _Probes(self.hashes[left], self.rows[left], self.keys)


def _hits(
    ref: RunRef, run: Sectioned, table: StateTable, probes: _Probes
) -> tuple[NDArray[np.int64], pa.Table]:
    """The probes that a run has rows of (as places in `probes`, once per row), and the rows with `_probe`."""
    part = run.parts[table.name]
    starts = np.searchsorted(probes.hashes, part.firsts, side="left")
    stops = np.searchsorted(probes.hashes, part.lasts, side="right")
    touched = np.flatnonzero(stops > starts)
    places: list[NDArray[np.int64]] = []
    pieces: list[pa.RecordBatch] = []
    for index, batch in zip(touched, run.batches(table, touched.tolist()), strict=True):
        start, stop = starts[index], stops[index]
        where, at = _matches(hash_column(batch.column(HASH)), probes.hashes[start:stop])
        if len(where):
            places.append(where + start)
            pieces.append(batch.take(pa.array(at)))
    if not pieces:
        return np.empty(0, np.int64), empty(table.answered)
    place = np.concatenate(places)
    rows = pa.Table.from_batches(pieces).combine_chunks()
    wanted = pa.array(probes.rows[place])
    # The hash is the same; whether the key is decides.
    right = same([rows[name] for name in table.keys.names], [column.take(wanted) for column in probes.keys])
    if not run.groups <= ref.groups:
        right &= inside(ref.groups, run.count)[group_of(probes.hashes[place], run.count)]
    if not right.all():
        place, rows = place[right], rows.filter(pa.array(right))
    return place, with_probe(rows, probes.rows[place])


def _matches(hashes: Hashes, probes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs (probe, row) of equal hash; both sides are sorted."""
    at = np.searchsorted(hashes, probes)
    last = len(hashes) - 1
    hit = np.flatnonzero(hashes[np.minimum(at, last)] == probes)
    first = at[hit]
    again = hashes[np.minimum(first + 1, last)] == probes[hit]
    if not (again & (first < last)).any():
        return hit, first
    lengths = np.searchsorted(hashes, probes[hit], side="right") - first
    ends = np.cumsum(lengths)
    steps = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    return np.repeat(hit, lengths), np.repeat(first, lengths) + steps


def _due_rows(
    ref: RunRef, run: Sectioned, table: StateTable, groups: Groups, closed: int | None, upto: int
) -> pa.Table:
    """The rows of one run in some key groups that are due by `upto` and were not before."""
    part = run.parts[table.name]
    open_still = part.due_largest > closed if closed is not None else np.ones(len(part.sections), np.bool_)
    which = np.flatnonzero((part.due_least <= upto) & open_still).tolist()
    counted = groups & ref.groups
    check = None if run.groups <= counted else inside(counted, run.count)
    pieces = []
    for batch in run.batches(table, which):
        due = batch.column(DUE).to_numpy(zero_copy_only=False)
        wanted = due <= upto
        if closed is not None:
            wanted &= due > closed
        if check is not None:
            wanted &= check[group_of(hash_column(batch.column(HASH)), run.count)]
        rows = np.flatnonzero(wanted)
        if len(rows):
            pieces.append(batch.take(pa.array(rows)))
    return pa.Table.from_batches(pieces, table.written)
