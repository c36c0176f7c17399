"""An operator whose rows lag behind the watermark finds its state as if that were so much earlier."""

from __future__ import annotations

import pyarrow as pa

from tidegate.batch.time import Time
from tidegate.state.table.table import DUE, HASH, NEVER, StateTable
from tidegate.testing.states import MemoryState
from tidegate.translation.delay import DelayedState

TABLE = StateTable("rows", "buffer", pa.schema({"k": pa.int64()}), pa.schema({}))


def rows(*due: int) -> pa.Table:
    number = range(len(due))
    columns = [pa.array(number, pa.uint64()), pa.array(due, pa.int64()), pa.array(number, pa.int64())]
    return pa.Table.from_arrays(columns, schema=TABLE.written)


def dues(found: pa.Table) -> list[int]:
    return sorted(found[DUE].to_pylist())


def test_what_is_due_stays_until_the_delayed_watermark_has_reached_it() -> None:
    state = MemoryState()
    delayed = DelayedState(state, 5)
    delayed.put(TABLE, rows(10, 20, NEVER))
    state.commit(12)
    assert dues(delayed.scan(TABLE)) == [10, 20, NEVER], "the watermark of the step is at 7"
    assert dues(delayed.due(TABLE, 7)) == []
    assert dues(delayed.due(TABLE, 10)) == [10]
    assert dues(delayed.get(TABLE, rows(0, 0, 0).select([HASH, "k"]))) == [10, 20, NEVER]
    state.commit(15)
    assert dues(delayed.scan(TABLE)) == [20, NEVER]


def test_the_time_of_such_a_step() -> None:
    assert Time(None, 9).delayed(4) == Time(None, 5)
    assert Time(8, 9).delayed(4) == Time(4, 5)
    assert Time(8, 9).delayed(0) == Time(8, 9)
