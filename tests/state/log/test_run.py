"""Runs: what is written is read, section by section, and damage is noticed."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.errors import StateError
from tidegate.state.log import run
from tidegate.state.log.run import Run, RunWriter
from tidegate.state.table.keys import hash_column
from tidegate.state.table.table import NEVER, StateTable

COUNTS = StateTable(
    "counts", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64()), ("name", pa.string())])
)
EVENTS = StateTable("events", "buffer", pa.schema([("id", pa.int64())]), pa.schema([("v", pa.binary())]))
ALL = frozenset(range(4))


def counts(hashes: Sequence[int], table: StateTable = COUNTS) -> pa.Table:
    size = len(hashes)
    columns = {
        "_hash": pa.array(sorted(hashes), pa.uint64()),
        "_due": pa.array([NEVER - place for place in range(size)], pa.int64()),
        "_gone": pa.array([place % 3 == 0 for place in range(size)], pa.bool_()),
        "id": pa.array(range(size), pa.int64()),
        "n": pa.array([place if place % 2 else None for place in range(size)], pa.int64()),
        "name": pa.array([str(place) for place in range(size)], pa.string()),
    }
    return pa.table({name: columns[name] for name in table.written.names}, schema=table.written)


def events(hashes: Sequence[int]) -> pa.Table:
    size = len(hashes)
    values = [bytes([place % 256]) * place for place in range(size)]
    columns = [sorted(hashes), range(size), range(size), values]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, EVENTS.written.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=EVENTS.written)


def blob(*content: tuple[StateTable, pa.Table]) -> bytes:
    return b"".join(RunWriter(content, ALL, 4))


def opened(content: bytes) -> Run:
    whole = pa.py_buffer(content)
    return Run("a.run", len(content), lambda spans: [whole.slice(*span) for span in spans], keep=True)


def everything(found: Run, table: StateTable) -> pa.Table:
    which = range(len(found.parts[table.name].sections))
    return pa.Table.from_batches(found.batches(table, which), table.written)


@given(st.lists(st.integers(0, 40) | st.integers(0, 2**64 - 1), min_size=1, max_size=60), st.integers(1, 7))
@example([5] * 20, 3)
def test_rows_come_back_in_sections_that_split_no_hash(hashes: list[int], rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "SECTION_ROWS", rows)
        found = opened(blob((COUNTS, counts(hashes)), (EVENTS, events(hashes))))
    assert everything(found, COUNTS).equals(counts(hashes))
    assert everything(found, EVENTS).equals(events(hashes))
    for part in found.parts.values():
        assert (part.lasts[:-1] < part.firsts[1:]).all()
    found.verify()


def test_the_index_says_what_is_in_a_section() -> None:
    (section,) = opened(blob((EVENTS, events([7, 9, 3])))).sections
    assert (section.table, section.rows, section.first, section.last) == ("events", 3, 3, 9)
    assert (section.due_least, section.due_largest) == (0, 2)


def test_large_rows_make_more_sections() -> None:
    rows = events(range(3000))  # about 4.5 MB of values
    assert len(opened(blob((EVENTS, rows))).sections) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "SECTION_BYTES", 1 << 20)
        assert len(opened(blob((EVENTS, rows))).sections) >= 4


def test_a_section_is_used_where_it_lies() -> None:
    content = pa.py_buffer(blob((COUNTS, counts(range(1000)))))
    found = Run("a.run", content.size, lambda spans: [content.slice(*span) for span in spans], keep=True)
    (batch,) = found.batches(COUNTS, [0])
    address = hash_column(batch.column("_hash")).__array_interface__["data"][0]
    assert content.address <= address < content.address + content.size


@given(st.data())
@settings(max_examples=150)
def test_a_changed_byte_is_noticed_wherever_it_is(data: st.DataObject) -> None:
    content = bytearray(_SAMPLE)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError, match=r"a\.run"):
        opened(bytes(content)).verify()


@given(st.integers(0, 3000))
def test_a_file_that_was_cut_short_is_noticed(length: int) -> None:
    content = _SAMPLE[: min(length, len(_SAMPLE) - 1)]
    with pytest.raises(StateError, match=r"run a\.run is damaged"):
        opened(content).verify()


def test_a_damaged_section_is_named_when_it_is_used_and_the_others_serve() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "SECTION_ROWS", 10)
        content = bytearray(blob((COUNTS, counts(range(30)))))
    third = opened(bytes(content)).sections[2]
    content[third.offset + third.length // 2] ^= 1
    found = opened(bytes(content))
    assert [batch.num_rows for batch in found.batches(COUNTS, [0, 1])] == [10, 10]
    with pytest.raises(StateError, match=r"a\.run is damaged: section 2 \(table counts\)"):
        list(found.batches(COUNTS, [2]))


def test_rows_that_are_out_of_order_are_noticed() -> None:
    rows = counts([1, 2, 3]).take([1, 0, 2])
    with pytest.raises(StateError, match="not in order"):
        opened(blob((COUNTS, rows))).verify()


def test_a_column_that_was_added_is_null_in_older_rows() -> None:
    older = replace(COUNTS, values=pa.schema([("n", pa.int64())]))
    found = opened(blob((older, counts(range(3), older))))
    (batch,) = found.batches(COUNTS, [0])
    assert batch.schema.equals(COUNTS.written)
    assert batch.column("name").null_count == 3
    assert batch.column("n").to_pylist() == [None, 1, None]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (pa.schema([("n", pa.float64()), ("name", pa.string())]), "n as int64"),
        (pa.schema([("n", pa.int64())]), "name as string"),
        (pa.schema([*COUNTS.values, pa.field("must", pa.int64(), False)]), "lacks must"),
    ],
)
def test_another_change_of_a_table_is_refused(values: pa.Schema, problem: str) -> None:
    found = opened(blob((COUNTS, counts(range(3)))))
    with pytest.raises(StateError, match=f"does not fit state table counts: it .*{problem}"):
        list(found.batches(replace(COUNTS, values=values), [0]))


def test_a_format_of_the_future_is_refused() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "VERSION", 2)
        content = blob((COUNTS, counts(range(3))))
    with pytest.raises(StateError, match="has format 2, and this version of Tidegate only reads 1"):
        opened(content)


def test_the_layout_is_as_documented() -> None:
    length, crc, magic = struct.unpack("<QI8s", _SAMPLE[-20:])
    index = _SAMPLE[-20 - length : -20]
    assert (magic, crc) == (b"TIDERUN1", zlib.crc32(index))
    form = json.loads(index)
    number, offset, size, rows, first, *_ = form["sections"][0]
    assert form["tables"][number][0] == "counts"
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(form["tables"][number][1])))
    batch = pa.ipc.read_record_batch(pa.py_buffer(_SAMPLE[offset : offset + size]), schema)
    assert (batch.num_rows, np.asarray(batch.column("_hash"))[0]) == (rows, first)


_SAMPLE = blob((COUNTS, counts(range(20))), (EVENTS, events(range(20))))
