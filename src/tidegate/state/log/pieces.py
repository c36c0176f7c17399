"""Rows in sorted pieces that are read like a run without being one: they are of no file in the log."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidegate.state.log.manifest import RunRef
from tidegate.state.log.run import Section, TablePart
from tidegate.state.table.keys import Groups
from tidegate.state.table.table import GONE, StateTable

LARGE = 8 << 20
"""Bytes from which on a piece is kept in a file."""


class Sectioned(Protocol):
    """Sections of rows by table, each sorted by hash: a run, or what is read in its place."""

    groups: Groups
    count: int
    parts: Mapping[str, TablePart]

    def batches(self, table: StateTable, which: Sequence[int]) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a table, sorted by hash, with their figures."""

    section: Section
    rows: pa.RecordBatch


class Pieces:
    """Pieces of some key groups, which do not overlap in a table. Columns as written. It never changes."""

    def __init__(self, groups: Groups, count: int, content: Mapping[str, Sequence[Piece]]) -> None:
        """`content`: by table, in any order."""
        self.groups = groups
        self.count = count
        self.content = {
            name: sorted(pieces, key=lambda piece: piece.section.first)
            for name, pieces in content.items()
            if pieces
        }
        self.parts: Mapping[str, TablePart] = {
            name: TablePart(pieces[0].rows.schema, [piece.section for piece in pieces])
            for name, pieces in self.content.items()
        }

    @property
    def alone(self) -> tuple[RunRef, Pieces]:
        """To be read like the only run of a snapshot."""
        return RunRef("", 0, self.groups, 0, 0), self

    def batches(self, table: StateTable, which: Sequence[int]) -> Iterator[pa.RecordBatch]:
        found = self.content[table.name]
        return iter([found[index].rows for index in which])

    def plus(self, content: Mapping[str, Sequence[Piece]], groups: Groups = frozenset()) -> Pieces:
        """With further ones."""
        names = self.content.keys() | content.keys()
        joined = {name: [*self.content.get(name, ()), *content.get(name, ())] for name in names}
        return Pieces(self.groups | groups, self.count, joined)


def as_written(table: StateTable, rows: pa.Table) -> pa.Table:
    """Rows that were read, with the columns that they are written with."""
    if GONE in table.written.names:
        gone = pa.array(np.zeros(rows.num_rows, np.bool_))
        rows = rows.add_column(2, table.written.field(GONE), gone)
    return rows.select(table.written.names)


def kept(table: StateTable, rows: pa.Table, scratch: Path | None) -> list[Piece]:
    """Rows, sorted by hash, as one piece; none when there are no rows. Large ones go to a file, if there is a
    place for it."""
    if not rows.num_rows:
        return []
    (batch,) = rows.combine_chunks().to_batches()
    section = Section.of(table.name, batch, offset=0, length=batch.nbytes, crc=0)
    if scratch is not None and batch.nbytes >= LARGE:
        batch = _in_file(batch, scratch)
    return [Piece(section, batch)]


def _in_file(batch: pa.RecordBatch, scratch: Path) -> pa.RecordBatch:
    """The file has no name, and goes with its last reader."""
    scratch.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix="arrived-", dir=scratch)
    os.close(handle)
    try:
        with pa.ipc.new_file(name, batch.schema) as writer:
            writer.write_batch(batch)
        with pa.memory_map(name) as file:
            return pa.ipc.open_file(file).get_batch(0)
    finally:
        Path(name).unlink()
