"""The state that operators are tested with."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import StateError
from tidegate.state.table.table import NEVER, StateTable
from tidegate.testing.states import MemoryState

_KEYS = pa.schema([("k", pa.string())])
_VALUE = StateTable("latest", "value", _KEYS, pa.schema([("v", pa.int64())]))
_BUFFER = StateTable("events", "buffer", _KEYS, pa.schema([("v", pa.int64())]))


def _rows(table: StateTable, *rows: dict[str, Any]) -> pa.Table:
    full = [{"_hash": 1, "_due": NEVER, "_gone": False, **row} for row in rows]
    return pa.Table.from_pylist(
        [{name: row[name] for name in table.written.names} for row in full], table.written
    )


def _probes(*pairs: tuple[int, str | None]) -> pa.Table:
    return pa.Table.from_pylist([{"_hash": hash, "k": key} for hash, key in pairs], _VALUE.probes)


def test_a_value_replaces_the_one_before_and_can_go() -> None:
    state = MemoryState()
    for row in ({"k": "a", "v": 1}, {"k": "a", "v": 2}):
        state.put(_VALUE, _rows(_VALUE, row))
        state.commit()
    assert state.scan(_VALUE)["v"].to_pylist() == [2]
    state.put(_VALUE, _rows(_VALUE, {"k": "a", "v": None, "_gone": True}))
    state.commit()
    assert state.scan(_VALUE).num_rows == 0


def test_a_buffer_grows() -> None:
    state = MemoryState()
    for v in (1, 2):
        state.put(_BUFFER, _rows(_BUFFER, {"k": "a", "v": v}))
        state.commit()
    assert state.get(_BUFFER, _probes((1, "a")))["v"].to_pylist() == [1, 2]


def test_keys_that_share_a_hash_are_told_apart() -> None:
    state = MemoryState()
    state.put(_VALUE, _rows(_VALUE, {"k": "a", "v": 1}, {"k": None, "v": 2}, {"k": "b", "v": 3}))
    state.commit()
    found = state.get(_VALUE, _probes((1, "b"), (1, "x"), (1, None)))
    assert found.select(["_probe", "k", "v"]).to_pylist() == [
        {"_probe": 0, "k": "b", "v": 3},
        {"_probe": 2, "k": None, "v": 2},
    ]


def test_rows_are_there_until_the_watermark_reaches_them() -> None:
    state = MemoryState()
    state.put(_BUFFER, _rows(_BUFFER, {"k": "a", "v": 1, "_due": 5}, {"k": "a", "v": 2, "_due": 6}))
    state.commit(watermark=4)
    assert state.due(_BUFFER, 5)["v"].to_pylist() == [1]
    state.commit(watermark=5)
    assert state.scan(_BUFFER)["v"].to_pylist() == [2]


def test_what_is_put_is_not_seen_before_the_commit_and_never_after_an_abort() -> None:
    state = MemoryState()
    state.put(_VALUE, _rows(_VALUE, {"k": "a", "v": 1}))
    assert state.scan(_VALUE).num_rows == 0
    state.abort()
    state.commit()
    assert state.scan(_VALUE).num_rows == 0


def test_each_part_has_its_slice_of_the_hash_space() -> None:
    state, hashes = MemoryState(), [0, 2**62, 2**63, 2**64 - 1]
    rows = [{"_hash": hash, "k": "a", "v": v} for v, hash in enumerate(hashes)]
    state.put(_VALUE, _rows(_VALUE, *rows))
    state.commit()
    assert [part.scan(_VALUE)["v"].to_pylist() for part in state.parts(2)] == [[0, 1], [2, 3]]


def test_a_new_column_is_null_in_old_rows() -> None:
    state = MemoryState()
    state.put(_VALUE, _rows(_VALUE, {"k": "a", "v": 1}))
    state.commit()
    grown = StateTable("latest", "value", _KEYS, pa.schema([("v", pa.int64()), ("w", pa.string())]))
    assert state.scan(grown).select(["v", "w"]).to_pylist() == [{"v": 1, "w": None}]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (_rows(_BUFFER, {"k": "a", "v": 1}), "latest takes"),
        (_rows(_VALUE, {"k": "a", "v": 1}, {"k": "a", "v": 2}), "given a key twice"),
    ],
)
def test_wrong_rows_are_refused(rows: pa.Table, problem: str) -> None:
    with pytest.raises(StateError, match=problem):
        MemoryState().put(_VALUE, rows)


def test_a_table_is_put_once_in_a_batch() -> None:
    state = MemoryState()
    for each in (state, state.parts(1)[0]):
        each.put(_VALUE, _rows(_VALUE, {"k": "a", "v": 1}))
        with pytest.raises(StateError, match="put twice"):
            each.put(_VALUE, _rows(_VALUE, {"k": "b", "v": 1}))
