"""The user's own vectorised function over rows, state and time."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.input import Input
from tidegate.operators.kit.pairs import numbered, sorted_by_key
from tidegate.operators.kit.sides import TIE, TIME, Sides, arrow_schema, sides
from tidegate.operators.kit.spans import numbers, whole
from tidegate.operators.operator import Operator, Result, State, WithinPartitions
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Mode, Schema
from tidegate.state.table.keys import Hashes, distinct, hash_column, same
from tidegate.state.table.table import HASH, NEVER, PROBE, StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMER = "timer"
_STATE = "state."


@dataclass(frozen=True)
class Process(Operator):
    """`function(rows, state, time) -> (output, state)`, called at most once per task and batch.

    `rows` has the columns of the input, sorted by key, event time and a fixed order; `state` the key columns
    and those of the declared schema, for the keys in `rows` that have state and for those whose timer is due.
    The state that it returns is the new one of all keys that it was given: a key that is missing there is
    forgotten. It may name new keys only if they are in `rows`. Floating keys come without minus zero.

    A timestamp column `timer` of the state is the key's timer (null: none): in the batch whose watermark
    reaches it, the function sees the key's state, even if there are no rows. A timer that is left in the
    past is due again as soon as the watermark moves on.
    """

    name: str
    place: str
    """The step and its line, for errors of the function."""
    function: Callable[..., Any]
    key: tuple[str, ...]
    """The user's names of the key columns."""
    sides: Sides
    state: pa.Schema
    """Key columns and state columns, as the function sees them."""
    tables: tuple[StateTable, ...]
    output: pa.Schema
    mode: Mode = "append"

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        frame = self.sides.frame(rows, tie=True)
        return frame.withColumn(HASH, hashed(self.sides.keys.names))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        probes = self.tables[0].probes
        first, number = distinct(hash_column(rows[HASH]), [rows[name] for name in self.sides.keys.names])
        fresh = rows.select(probes.names).take(pa.array(first)).cast(probes)
        given, known, held = self._known(fresh, state, time)
        if not rows.num_rows and not known.num_rows:
            return Result(self.output.empty_table())
        times = numbers(whole(rows[TIME]), -(2**63))
        order = sorted_by_key(first, number, times, numbers(whole(rows[TIE])))
        (side,) = self.sides.each
        came = pa.Table.from_arrays(
            side.take(side.rows(rows, pa.schema([*self.sides.keys, *side.values])), pa.array(order)),
            schema=side.schema,
        )
        seen = pa.Table.from_arrays(
            [known[name] for name in self.tables[0].schema.names[2:]], schema=self.state
        )
        output, new = self._called(came, seen, time)
        try:
            self._put(given, held, new, state, time)
        except ValueError as error:
            raise RuntimeError(f"{self.place}: {error}") from None
        return Result(output)

    def _known(
        self, fresh: pa.Table, state: State, time: Time
    ) -> tuple[pa.Table, pa.Table, NDArray[np.bool_]]:
        """The keys of this batch, then others whose timers are due; their state; which of them have any."""
        (table,) = self.tables
        held = np.zeros(fresh.num_rows, np.bool_)
        known = table.schema.empty_table()
        if fresh.num_rows:
            known = state.get(table, fresh)
            held[known[PROBE].to_numpy()] = True
            known = known.drop_columns([PROBE])
        if TIMER not in self.state.names or time.watermark is None or time.watermark == time.closed:
            return fresh, known, held
        due = state.due(table, time.watermark)
        keys = self.sides.keys.names
        mine, theirs = numbered(
            (hash_column(fresh[HASH]), [fresh[key] for key in keys]),
            (hash_column(due[HASH]), [due[key] for key in keys]),
        )
        others = due.filter(pa.array(~np.isin(theirs, mine)))
        given = pa.concat_tables([fresh, others.select(fresh.column_names)])
        held = np.append(held, np.ones(others.num_rows, np.bool_))
        return given, pa.concat_tables([known, others]), held

    def _called(self, rows: pa.Table, state: pa.Table, time: Time) -> tuple[pa.Table, pa.Table]:
        """Output and new state, cast to what was declared."""
        file = getattr(getattr(self.function, "__code__", None), "co_filename", None)
        try:
            output, new = self.function(rows, state, time)
            return _cast(output, self.output), _cast(new, self.state)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == file]
            at = f", in line {lines[-1]}" if lines else ""
            raise RuntimeError(f"{self.place}{at}: {type(error).__name__}: {error}") from error

    def _put(self, given: pa.Table, held: NDArray[np.bool_], new: pa.Table, state: State, time: Time) -> None:
        """Write the new state of the keys of this call; raises a ValueError for any other key."""
        (table,) = self.tables
        places = _places(
            [whole(given[key]) for key in self.sides.keys.names], [whole(new[key]) for key in self.key]
        )
        self._check(new, places)
        hashes = hash_column(given[HASH])
        gone = held.copy()
        gone[places] = False
        due = np.full(new.num_rows, NEVER)
        if TIMER in self.state.names:
            due = numbers(whole(new[TIMER]), NEVER)
            if time.watermark is not None:
                due = np.maximum(due, time.watermark + 1)
        forgotten = given.filter(pa.array(gone)).select(self.sides.keys.names).columns
        count = int(gone.sum())
        written = pa.concat_tables(
            [
                _written(table, hashes[places], due, new.columns, gone=False),
                _written(
                    table,
                    hashes[gone],
                    np.full(count, NEVER),
                    [*forgotten, *(pa.nulls(count, kind) for kind in table.values.types)],
                    gone=True,
                ),
            ]
        )
        if written.num_rows:
            state.put(table, written)

    def _check(self, new: pa.Table, places: NDArray[np.int64]) -> None:
        unknown = np.flatnonzero(places < 0)
        if len(unknown):
            key = tuple(new[name][int(unknown[0])].as_py() for name in self.key)
            raise ValueError(f"the function returned state of the key {key!r}, which it was not given")
        counts = np.bincount(places)
        if (counts > 1).any():
            row = int(np.flatnonzero(counts[places] > 1)[0])
            key = tuple(new[name][row].as_py() for name in self.key)
            raise ValueError(f"the function returned state of the key {key!r} more than once")


def from_step(step: steps.Process, given: Input) -> Process:
    """The operator of a declared step."""
    one = sides(given, exact=False)
    columns, output = _declared(step.state_schema), _declared(step.output_schema)
    for name in columns.names:
        if name in given.keys:
            raise PipelineError(
                f"the state has a column {name!r}, which is a key; the key is in the state anyway, "
                "leave it out of state_schema"
            )
    if TIMER in columns.names and not pa.types.is_timestamp(columns.field(TIMER).type):
        raise PipelineError(f"the state's column 'timer' is a {columns.field(TIMER).type}, not a timestamp")
    keys = [field.with_name(name) for field, name in zip(one.keys, given.keys, strict=True)]
    values = pa.schema([field.with_name(_STATE + field.name) for field in columns])
    return Process(
        step.name,
        f"{step.name} (declared at {step.where})",
        step.function,
        given.keys,
        one,
        pa.schema([*keys, *columns]),
        (StateTable(step.name, "value", one.keys, values),),
        output,
    )


def _written(
    table: StateTable, hashes: Hashes, due: NDArray[np.int64], columns: Sequence[Any], *, gone: bool
) -> pa.Table:
    marks = np.full(len(hashes), gone)
    return pa.Table.from_arrays([*map(pa.array, (hashes, due, marks)), *columns], schema=table.written)


def _declared(schema: Schema) -> pa.Schema:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    declared = StructType.fromDDL(schema) if isinstance(schema, str) else from_arrow_schema(schema)
    assert isinstance(declared, StructType)
    return arrow_schema(declared)


def _cast(table: Any, schema: pa.Schema) -> pa.Table:
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    return table.select(schema.names).cast(schema)


def _places(given: Sequence[pa.Array], returned: Sequence[pa.Array]) -> NDArray[np.int64]:
    """For each returned key the row of `given` that has it, or -1."""
    returned = [
        pc.add(key, pa.scalar(0.0, key.type)) if pa.types.is_floating(key.type) else key  # no minus zero
        for key in returned
    ]
    count = len(given[0])
    if count == len(returned[0]) and same(given, returned).all():
        return np.arange(count)
    number = np.zeros(count + len(returned[0]), np.int64)
    for mine, theirs in zip(given, returned, strict=True):
        both = pa.concat_arrays([mine, theirs]).dictionary_encode(null_encoding="encode")
        codes = both.indices.to_numpy().astype(np.int64)
        _, number = np.unique(number * len(both.dictionary) + codes, return_inverse=True)
    place = np.full(len(number), -1, np.int64)
    place[number[:count]] = np.arange(count)
    return place[number[count:]]
