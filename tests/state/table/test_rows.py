"""Rows as bytes: nothing is lost, and equal keys are equal bytes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import StateError
from tidegate.state.table.rows import decoded, due_of, encoded, encoded_keys, packed, unpacked
from tidegate.state.table.table import NEVER

_text = st.text(max_size=4)
_small = st.integers(-9, 9)
COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): _small,
    pa.uint8(): st.integers(0, 255),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): _text,
    pa.large_string(): _text,
    pa.string_view(): _text,
    pa.binary(): st.binary(max_size=4),
    pa.large_binary(): st.binary(max_size=4),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.decimal128(10, 2): st.decimals(Decimal(-9), Decimal(9), places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.integers(0, 10**15),
    pa.null(): st.none(),
    pa.list_(pa.int32()): st.lists(st.none() | _small, max_size=3),
    pa.list_(pa.list_(pa.string())): st.lists(
        st.none() | st.lists(st.none() | _text, max_size=2), max_size=2
    ),
    pa.large_list(pa.bool_()): st.lists(st.none() | st.booleans(), max_size=3),
    pa.list_(pa.int16(), 2): st.lists(st.none() | _small, min_size=2, max_size=2),
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"a": st.none() | _small, "b": st.none() | st.lists(_text, max_size=2)}
    ),
    pa.map_(pa.string(), pa.int32()): st.lists(st.tuples(_text, st.none() | _small), max_size=2),
}


@given(st.data())
@settings(max_examples=150)
def test_rows_come_back(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=10))
    count = data.draw(st.integers(0, 5))
    columns = [
        pa.array(data.draw(st.lists(st.none() | COLUMNS[kind], min_size=count, max_size=count)), kind)
        for kind in kinds
    ]
    rows = pa.table(columns, [f"c{place}" for place in range(len(kinds))])
    start = data.draw(st.integers(0, count))
    for part in (rows, rows.slice(start), pa.concat_tables([rows.slice(start), rows.slice(0, start)])):
        found = decoded(encoded(part), rows.schema)
        found.validate(full=True)
        assert found.equals(part)


def test_equal_keys_are_equal_bytes() -> None:
    keys = pa.table({"f": [0.0, -0.0, float("nan"), -float("nan"), None], "s": ["a", "a", None, None, ""]})
    zero, minus, nan, other, null = encoded_keys(keys)
    assert zero == minus
    assert nan == other
    assert len({zero, nan, null}) == 3


def test_what_lies_under_a_null_does_not_matter() -> None:
    mask = pa.array([True, False])
    one = pa.table({"s": pa.StructArray.from_arrays([pa.array([1, 2])], ["a"], mask=mask)})
    two = pa.table({"s": pa.StructArray.from_arrays([pa.array([3, 2])], ["a"], mask=mask)})
    assert encoded(one) == encoded(two)


@given(st.lists(st.binary(max_size=5)))
def test_packed_rows_come_apart(rows: list[bytes]) -> None:
    assert unpacked(packed(rows)) == rows


@pytest.mark.parametrize("columns", [2, 8, 9])
@pytest.mark.parametrize("due", [-5, 0, NEVER])
def test_the_time_of_a_row_is_read_without_decoding_it(columns: int, due: int) -> None:
    arrays = [pa.array([2**64 - 1], pa.uint64()), pa.array([due]), *([pa.array(["x"])] * (columns - 2))]
    (row,) = encoded(pa.table(arrays, [str(place) for place in range(columns)]))
    assert due_of(row, columns) == due


def test_a_type_that_cannot_be_kept_is_named() -> None:
    with pytest.raises(StateError, match="dictionary"):
        encoded(pa.table({"d": pa.array(["a"]).dictionary_encode()}))
