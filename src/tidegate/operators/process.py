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

from tidegate.errors import PipelineError
from tidegate.operators.hashing import hashed
from tidegate.operators.input import Input
from tidegate.operators.operator import Operator, Partially, Result, State, Time
from tidegate.operators.pairs import numbered
from tidegate.operators.sides import TIE, TIME, Sides, arrow_schema, sides
from tidegate.operators.spans import numbers, whole
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Mode, Schema
from tidegate.state.keys import Hashes, distinct, hash_column
from tidegate.state.table import HASH, NEVER, PROBE, StateTable

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

    def arrange(self, rows: DataFrame, partially: Partially) -> DataFrame:
        frame = self.sides.frame(rows, tie=True)
        return frame.withColumn(HASH, hashed(self.sides.keys.names))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        probes = self.tables[0].probes
        first, number = distinct(hash_column(rows[HASH]), [rows[name] for name in self.sides.keys.names])
        fresh = rows.select(probes.names).take(pa.array(first)).cast(probes)
        known = self._known(fresh, state, time)
        if not rows.num_rows and not known.num_rows:
            return Result(self.output.empty_table())
        order = np.lexsort((numbers(whole(rows[TIE])), numbers(whole(rows[TIME]), -(2**63)), number))
        (side,) = self.sides.each
        given = pa.Table.from_arrays(
            side.take(side.rows(rows, pa.schema([*self.sides.keys, *side.values])), pa.array(order)),
            schema=side.schema,
        )
        seen = pa.Table.from_arrays(
            [known[name] for name in self.tables[0].schema.names[2:]], schema=self.state
        )
        output, new = self._called(given, seen, time)
        try:
            self._put(fresh, known, new, state, time)
        except ValueError as error:
            raise RuntimeError(f"{self.place}: {error}") from None
        return Result(output)

    def _known(self, fresh: pa.Table, state: State, time: Time) -> pa.Table:
        """The state of the keys of this batch, then that of other keys whose timers are due."""
        (table,) = self.tables
        known = table.schema.empty_table()
        if fresh.num_rows:
            known = state.get(table, fresh).drop_columns([PROBE])
        if TIMER not in self.state.names or time.watermark is None or time.watermark == time.closed:
            return known
        due = state.due(table, time.watermark)
        keys = self.sides.keys.names
        mine, theirs = numbered(
            (hash_column(fresh[HASH]), [fresh[key] for key in keys]),
            (hash_column(due[HASH]), [due[key] for key in keys]),
        )
        return pa.concat_tables([known, due.filter(pa.array(~np.isin(theirs, mine)))]).combine_chunks()

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

    def _put(self, fresh: pa.Table, known: pa.Table, new: pa.Table, state: State, time: Time) -> None:
        """Write the new state of the keys of this call; raises a ValueError for any other key."""
        (table,) = self.tables
        # A key of this batch that has state is there twice; either will do.
        given = pa.concat_tables([fresh, known.select(fresh.column_names)]).combine_chunks()
        places, same_key = _places(
            [whole(given[key]) for key in self.sides.keys.names], [whole(new[key]) for key in self.key]
        )
        self._check(new, places)
        hashes = hash_column(given[HASH])
        gone = ~np.isin(same_key, places)
        gone[: fresh.num_rows] = False
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
        numbers, counts = np.unique(places, return_counts=True)
        if (counts > 1).any():
            row = int(np.flatnonzero(places == numbers[counts > 1][0])[0])
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


def _places(
    given: Sequence[pa.Array], returned: Sequence[pa.Array]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each returned key the first row of `given` that has it, or -1; and the number of each given key."""
    count = len(given[0])
    number: NDArray[np.int64] | None = None
    for mine, theirs in zip(given, returned, strict=True):
        if pa.types.is_floating(mine.type):
            theirs = pc.add(theirs, pa.scalar(0.0, theirs.type))  # no minus zero
        both = pa.concat_arrays([mine, theirs]).dictionary_encode(null_encoding="encode")
        codes = both.indices.to_numpy().astype(np.int64)
        if number is not None:
            _, codes = np.unique(number * len(both.dictionary) + codes, return_inverse=True)
        number = codes
    assert number is not None, "a key has at least one column"
    place = np.full(len(number), -1, np.int64)
    # Backwards, so that the first row of a key is the one that stays.
    place[number[:count][::-1]] = np.arange(count)[::-1]
    return place[number[count:]], place[number[:count]]
