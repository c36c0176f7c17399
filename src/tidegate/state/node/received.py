"""What has come of key groups from other nodes, at one moment. No I/O beyond files for large pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.state.log.compaction import inside, sorted_by_hash
from tidegate.state.log.pieces import LARGE, Piece, Pieces, as_written, kept
from tidegate.state.node.backends.columnar import contains, looked_up
from tidegate.state.table.keys import Groups, group_of, hash_column, slices
from tidegate.state.table.table import HASH, PROBE, Places, StateTable, with_probes


@dataclass(frozen=True)
class _Fetched:
    """Keys of a table that were fetched by name, there or not, and their rows."""

    keys: pa.Table
    """Sorted by hash, each once."""
    pieces: Pieces

    @property
    def bytes(self) -> int:
        sections = [section for part in self.pieces.parts.values() for section in part.sections]
        return int(self.keys.nbytes) + sum(section.length for section in sections)

    def is_like(self, newer: _Fetched) -> bool:
        """Sizes double from new to old, so that there are few to be looked into."""
        return bool(self.keys.num_rows <= 2 * newer.keys.num_rows)


@dataclass(frozen=True)
class Loading:
    """Groups that are being got whole, all from one origin, in the order of tables and hashes."""

    groups: Groups
    address: str
    pieces: Pieces
    place: int = 0
    """The table that is on, by number."""
    first: int = 0
    """The hash from which on nothing is here."""
    bytes: int = 0

    def covers(self, place: int, hashes: NDArray[np.uint64], count: int) -> NDArray[np.bool_]:
        """Of hashes of a table, by number, those whose rows are all here."""
        if place > self.place:
            return np.zeros(len(hashes), np.bool_)
        covered = inside(self.groups, count)[group_of(hashes, count)]
        return covered & (hashes < np.uint64(self.first)) if place == self.place else covered

    def whole(self) -> dict[str, list[Piece]]:
        """What is here of the groups, without those that took another way meanwhile."""

        def wanted(piece: Piece) -> bool:  # Each is of one group.
            first = np.array([piece.section.first], np.uint64)
            return int(group_of(first, self.pieces.count)[0]) in self.groups

        return {name: list(filter(wanted, pieces)) for name, pieces in self.pieces.content.items()}


@dataclass(frozen=True)
class Received:
    """What is here at one moment."""

    count: int
    open: Groups
    settled: Pieces
    """The groups that were got whole, where they are read in place of runs."""
    loading: Loading | None = None
    fetched: Mapping[str, tuple[_Fetched, ...]] = field(default_factory=dict)

    def lookup(
        self, place: int, table: StateTable, keys: pa.Table, closed: int | None
    ) -> tuple[pa.Table, Places]:
        """Rows of keys of open groups, as `Backend.get` gives them, and the keys, by place, that have to be
        asked for."""
        hashes = hash_column(keys[HASH])
        loaded = np.zeros(len(hashes), np.bool_)
        found = [table.answered.empty_table()]
        if self.loading is not None:
            loaded = self.loading.covers(place, hashes, self.count)
            found.append(_rows(self.loading.pieces, table, keys, np.flatnonzero(loaded), closed))
        left = np.flatnonzero(~loaded)
        for fetched in self.fetched.get(table.name, ()):
            known = contains(fetched.keys, keys.take(pa.array(left)), table.keys.names)
            found.append(_rows(fetched.pieces, table, keys, left[known], closed))
            left = left[~known]
        return pa.concat_tables(found), left

    def learned(self, place: int, table: StateTable, keys: pa.Table, rows: pa.Table) -> Received:
        """With the answer for some keys, each of which is there once; see `lookup`. What is known already
        stays as it is, so that nothing is there twice. A batch waits for it, so what is large is left as it
        came; see `tidied`."""
        fresh = self.lookup(place, table, keys, None)[1]
        fresh = fresh[inside(self.open, self.count)[group_of(hash_column(keys[HASH])[fresh], self.count)]]
        new = rows.filter(pa.array(np.isin(rows[PROBE].to_numpy(), fresh)))
        if not len(fresh):
            return self
        asked = sorted_by_hash(keys.take(pa.array(fresh))).combine_chunks()
        parts = [*self.fetched.get(table.name, ()), self._fetched(table, asked, as_written(table, new), None)]
        while len(parts) > 1 and parts[-2].is_like(parts[-1]) and parts[-2].bytes + parts[-1].bytes < LARGE:
            parts[-2:] = [self._joined(table, parts[-2:], None)]
        return replace(self, fetched={**self.fetched, table.name: tuple(parts)})

    def tidied(self, table: StateTable, scratch: Path) -> tuple[_Fetched, ...]:
        """What was asked for, in few parts, large ones in files."""
        parts: list[_Fetched] = []
        for part in self.fetched.get(table.name, ()):
            parts.append(part)
            while len(parts) > 1 and parts[-2].is_like(parts[-1]):
                parts[-2:] = [self._joined(table, parts[-2:], scratch)]
        return tuple(parts)

    def _joined(self, table: StateTable, parts: Sequence[_Fetched], scratch: Path | None) -> _Fetched:
        keys = sorted_by_hash(self._of_open(pa.concat_tables([part.keys for part in parts])))
        batches = [piece.rows for part in parts for piece in part.pieces.content.get(table.name, ())]
        rows = self._of_open(pa.Table.from_batches(batches, table.written))
        return self._fetched(table, keys.combine_chunks(), rows, scratch)

    def _fetched(self, table: StateTable, keys: pa.Table, rows: pa.Table, scratch: Path | None) -> _Fetched:
        pieces = kept(table, sorted_by_hash(rows), scratch)
        return _Fetched(keys, Pieces(frozenset(), self.count, {table.name: pieces}))

    def _of_open(self, rows: pa.Table) -> pa.Table:
        mine = inside(self.open, self.count)[group_of(hash_column(rows[HASH]), self.count)]
        return rows if mine.all() else rows.filter(pa.array(mine))

    def loaded(
        self, tables: Sequence[StateTable], rows: pa.Table, further: int | None, scratch: Path, *, keep: bool
    ) -> Received:
        """With the next part of what is being loaded; `further` is the hash to go on from."""
        loading = self.loading
        assert loading is not None
        table = tables[loading.place]
        pieces = []
        written = as_written(table, rows).combine_chunks()
        hashes = hash_column(written[HASH])
        for group in sorted(loading.groups):
            for piece in slices(hashes, frozenset({group}), self.count):
                pieces += kept(table, written.slice(*piece), scratch if keep else None)
        place, first = (loading.place + 1, 0) if further is None else (loading.place, further)
        after = replace(
            loading,
            place=place,
            first=first,
            bytes=loading.bytes + written.nbytes,
            pieces=loading.pieces.plus({table.name: pieces}),
        )
        if place < len(tables):
            return replace(self, loading=after)
        received = self.without(after.groups)
        if keep:
            received = replace(received, settled=self.settled.plus(after.whole(), after.groups))
        return received

    def without(self, groups: Groups) -> Received:
        """With these groups no longer open: nothing of them is asked for."""
        loading = self.loading
        if loading is not None and loading.groups & groups:
            left = loading.groups - groups
            loading = replace(loading, groups=left) if left else None
        left = self.open - groups
        return replace(self, open=left, loading=loading, fetched=self.fetched if left else {})


def _rows(pieces: Pieces, table: StateTable, keys: pa.Table, places: Places, closed: int | None) -> pa.Table:
    """The rows that there are of the keys in these places."""
    if not len(places) or table.name not in pieces.parts:
        return table.answered.empty_table()
    return with_probes(looked_up([pieces.alone], table, keys.take(pa.array(places)), closed)[0], places)
