"""A run: rows of several state tables in one file, sorted by hash, in sections that are read alone.

    header    64 bytes, fixed
    sections  each an Arrow record batch as IPC writes it, padded to 64 bytes; rows of a hash are in one
    index     JSON: version, key groups, the schema of each table, and per section its place, rows, first and
              last hash, least and largest `_due` and CRC-32
    trailer   length and CRC-32 of the index, and the magic again

A section is checked when it is first used, and then used where it lies: nothing is copied.
"""

from __future__ import annotations

import json
import struct
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import StateError
from tidegate.state.codec import schema_of, schema_text
from tidegate.state.table.keys import Groups, Hashes, hash_column, parse_groups, show_groups
from tidegate.state.table.table import DUE, HASH, StateTable

SECTION_ROWS = 65_536
SECTION_BYTES = 8 << 20
VERSION = 1

_MAGIC = b"TIDERUN1"
_ALIGNED = 64  # as Arrow likes its buffers
_HEADER = _MAGIC.ljust(_ALIGNED, b"\0")
_TRAILER = struct.Struct("<QI8s")
# What a reader fetches first: most indexes are in it whole.
_TAIL = 64 << 10

_TOGETHER = 16

Read = Callable[[Sequence[tuple[int, int]]], list[pa.Buffer]]
"""Parts of a file, each given as (offset, length)."""


@dataclass(frozen=True, slots=True)
class Section:
    """One record batch in a run."""

    table: str
    offset: int
    length: int
    rows: int
    first: int
    last: int
    due_least: int
    due_largest: int
    crc: int

    @classmethod
    def of(cls, table: str, rows: pa.RecordBatch, *, offset: int, length: int, crc: int) -> Section:
        """Of rows that are sorted by hash."""
        hashes, due = hash_column(rows.column(HASH)), rows.column(DUE).to_numpy(zero_copy_only=False)
        ends = int(hashes[0]), int(hashes[-1]), int(due.min()), int(due.max())
        return cls(table, offset, length, rows.num_rows, *ends, crc)

    def share(self, low: int, beyond: int) -> float:
        """How much of it lies in a span of hashes, 0 to 1, if they are spread evenly."""
        common = min(beyond, self.last + 1) - max(low, self.first)
        return max(0, common) / (self.last + 1 - self.first)


class RunWriter:
    """The bytes of a run, to be iterated once; its figures are there afterwards.

    `content` gives the rows of one table after the other, each in pieces that go on in the order of hashes
    (a hash is in one piece only), with the columns of `table.written`.
    """

    def __init__(self, content: Iterable[tuple[StateTable, pa.Table]], groups: Groups, count: int) -> None:
        self._content = content
        self._groups = groups
        self._count = count
        self._schemas: dict[str, pa.Schema] = {}
        self.sections: list[Section] = []
        self.bytes = 0

    @property
    def rows(self) -> int:
        return sum(section.rows for section in self.sections)

    def spans(self) -> list[tuple[int, int]]:
        """What a reader of the run will ask for, as (offset, length)."""
        return [_tail(self.bytes), *((section.offset, section.length) for section in self.sections)]

    def __iter__(self) -> Iterator[bytes | pa.Buffer]:
        yield _HEADER
        at = len(_HEADER)
        for table, rows in self._content:
            self._schemas.setdefault(table.name, table.written)
            for batch in _cut(rows.select(table.written.names)):
                body = batch.serialize()
                padding = bytes(-body.size % _ALIGNED)
                length, crc = body.size + len(padding), zlib.crc32(padding, zlib.crc32(body))
                self.sections.append(Section.of(table.name, batch, offset=at, length=length, crc=crc))
                at += length
                yield body
                yield padding
        index = self._index()
        yield index
        yield _TRAILER.pack(len(index), zlib.crc32(index), _MAGIC)
        self.bytes = at + len(index) + _TRAILER.size

    def _index(self) -> bytes:
        names = list(self._schemas)
        form = {
            "version": VERSION,
            "groups": show_groups(self._groups),
            "count": self._count,
            "tables": [[name, schema_text(self._schemas[name])] for name in names],
            "sections": [[names.index(part.table), *astuple(part)[1:]] for part in self.sections],
        }
        return json.dumps(form, separators=(",", ":")).encode()


class TablePart:
    """What a run holds of one table: its sections, by hash, and their figures as columns."""

    def __init__(self, schema: pa.Schema, sections: Sequence[Section]) -> None:
        self.schema = schema
        self.sections = sections
        self.firsts = np.array([section.first for section in sections], np.uint64)
        self.lasts = np.array([section.last for section in sections], np.uint64)
        self.due_least = np.array([section.due_least for section in sections], np.int64)
        self.due_largest = np.array([section.due_largest for section in sections], np.int64)


class Run:
    """A run that is open. Safe to use from several threads."""

    def __init__(self, name: str, size: int, read: Read, *, keep: bool, trusted: bool = False) -> None:
        """`keep`: what was read costs no memory, so hold on to it. `trusted`: this process has written it."""
        self.name = name
        self.size = size
        self._read = read
        self._keep = keep
        self._trusted = trusted
        # By offset. Of those checked: the very bytes that were, as long as a cache holds them.
        self._batches: dict[int, pa.RecordBatch] = {}
        self._checked: dict[int, weakref.ref[Any]] = {}
        form = self._read_index()
        self.groups = parse_groups(form["groups"])
        self.count = int(form["count"])
        names = [table for table, _ in form["tables"]]
        self.sections = tuple(Section(names[number], *rest) for number, *rest in form["sections"])
        self.parts: Mapping[str, TablePart] = {
            table: TablePart(schema_of(text), [each for each in self.sections if each.table == table])
            for table, text in form["tables"]
        }

    def batches(self, table: StateTable, which: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Sections of a table (numbered within its part), with the columns of `table.written`.

        Some are fetched together, so that neither the round trips nor the memory add up.
        """
        part = self.parts[table.name]
        current = part.schema.equals(table.written)
        for start in range(0, len(which), _TOGETHER):
            sections = [part.sections[index] for index in which[start : start + _TOGETHER]]
            fresh = self._fetched([each for each in sections if each.offset not in self._batches])
            if self._keep:
                self._batches.update(fresh)
            for section in sections:
                batch = (fresh if section.offset in fresh else self._batches)[section.offset]
                yield batch if current else self._evolved(batch, table)

    def verify(self) -> None:
        """Read everything and check it: each checksum, the order of the rows, the figures in the index."""
        if self._read([(0, len(_HEADER))])[0].to_pybytes() != _HEADER:
            raise self._damaged("header")
        at = len(_HEADER)
        for number, section in enumerate(self.sections):
            if section.offset != at:
                raise self._damaged("index: its sections do not follow each other")
            at += section.length
            batch = self._decoded(section, self._read([(section.offset, section.length)])[0], check=True)
            hashes = hash_column(batch.column(HASH))
            if not (hashes[0] == section.first and hashes[-1] == section.last and ordered(hashes)):
                raise self._damaged(f"section {number}: its rows are not in order")
        if at + self._index_length + _TRAILER.size != self.size:
            raise self._damaged("index: bytes that no section holds")

    def _fetched(self, sections: Sequence[Section]) -> dict[int, pa.RecordBatch]:
        found = {}
        bodies = self._read([(section.offset, section.length) for section in sections])
        for section, body in zip(sections, bodies, strict=True):
            checked = self._checked.get(section.offset)
            known = self._trusted or (checked is not None and checked() is body)
            found[section.offset] = self._decoded(section, body, check=not known)
            if not self._keep:
                self._checked[section.offset] = weakref.ref(body)
        return found

    def _decoded(self, section: Section, body: pa.Buffer, *, check: bool) -> pa.RecordBatch:
        if check and (body.size != section.length or zlib.crc32(body) != section.crc):
            raise self._damaged(f"section {self.sections.index(section)} (table {section.table})")
        return pa.ipc.read_record_batch(body, self.parts[section.table].schema)

    def _evolved(self, batch: pa.RecordBatch, table: StateTable) -> pa.RecordBatch:
        """Rows of an older version of the table: columns that were added since are null."""
        for field in batch.schema:
            index = table.written.get_field_index(field.name)
            if index < 0 or table.written.field(index).type != field.type:
                raise self._changed(table, f"it holds {field.name} as {field.type}")
        columns = []
        for field in table.written:
            if field.name in batch.schema.names:
                columns.append(batch.column(field.name))
            elif field.nullable and field.name not in table.keys.names:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                raise self._changed(table, f"it lacks {field.name}, which may not be null")
        return pa.RecordBatch.from_arrays(columns, schema=table.written)

    def _changed(self, table: StateTable, problem: str) -> StateError:
        return StateError(
            f"run {self.name} does not fit state table {table.name}: {problem}; only nullable value columns "
            "may be added to a table. Start with a new checkpoint, or undo the change"
        )

    def _read_index(self) -> dict[str, Any]:
        if self.size < len(_HEADER) + _TRAILER.size:
            raise self._damaged(f"it has only {self.size} bytes")
        _, tail_size = span = _tail(self.size)
        tail = self._read([span])[0].to_pybytes()
        if len(tail) != tail_size:
            raise self._damaged("its end is missing")
        length, crc, magic = _TRAILER.unpack(tail[-_TRAILER.size :])
        if magic != _MAGIC or length > self.size - len(_HEADER) - _TRAILER.size:
            raise self._damaged("trailer")
        self._index_length = length
        if length + _TRAILER.size <= tail_size:
            index = tail[-_TRAILER.size - length : -_TRAILER.size]
        else:
            index = self._read([(self.size - _TRAILER.size - length, length)])[0].to_pybytes()
        if zlib.crc32(index) != crc:
            raise self._damaged("index")
        form: dict[str, Any] = json.loads(index)
        if form["version"] != VERSION:
            raise StateError(
                f"run {self.name} has format {form['version']}, and this version of Tidegate only reads "
                f"{VERSION}; use the version that wrote it"
            )
        return form

    def _damaged(self, part: str) -> StateError:
        return StateError(
            f"run {self.name} is damaged: {part}; restore the file from a copy, "
            "or go back to a savepoint that does not need it"
        )


def _tail(size: int) -> tuple[int, int]:
    length = min(size, _TAIL)
    return size - length, length


def ordered(hashes: Hashes) -> bool:
    """Whether hashes are sorted already."""
    return bool((hashes[1:] >= hashes[:-1]).all())


def _cut(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Rows in sections of bounded size that do not split a hash."""
    total = rows.num_rows
    if total == 0:
        return
    limit = min(SECTION_ROWS, max(1, SECTION_BYTES * total // max(1, rows.nbytes)))
    hashes = hash_column(rows.column(HASH))
    start = 0
    while start < total:
        stop = min(total, start + limit)
        if stop < total:
            stop = int(np.searchsorted(hashes, hashes[stop - 1], side="right"))
        piece = rows.slice(start, stop - start).combine_chunks()
        (batch,) = piece.to_batches()
        yield batch
        start = stop
