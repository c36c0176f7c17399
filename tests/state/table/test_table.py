"""Rows that are brought to the columns of a state table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.state.table.table import conformed

WANTED = pa.schema([pa.field("key", pa.int64(), False), pa.field("total", pa.int64())])


def test_rows_get_the_columns_that_are_wanted_in_their_order() -> None:
    rows = pa.table({"more": [0], "total": pa.array([2], pa.int32()), "key": pa.array([1], pa.int32())})
    assert conformed(rows, WANTED).equals(pa.table({"key": [1], "total": [2]}, WANTED))


def test_rows_that_have_them_are_left_as_they_are() -> None:
    rows = pa.table({"key": [1], "total": [None]}, WANTED)
    assert conformed(rows, WANTED) is rows


def test_a_null_where_there_may_be_none_is_refused() -> None:
    rows = pa.Table.from_arrays([pa.array([None], pa.int64()), pa.array([2])], schema=WANTED)
    with pytest.raises(ValueError, match="'key' with null"):
        conformed(rows, WANTED)
