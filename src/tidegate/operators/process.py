"""The user's own vectorised function over rows, state and time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.batch.time import Time
from tidegate.errors import PipelineError, StepError
from tidegate.operators.kit.keys import due_now, numbered, sorted_by_key, written
from tidegate.operators.kit.row_operator import RowOperator
from tidegate.operators.kit.sides import TIE, TIME, arrow_schema, sides
from tidegate.operators.kit.spans import RowNumbers, numbers
from tidegate.operators.kit.user_function import conformed, errors_of, spark_schema
from tidegate.operators.operator import Input, Result, State
from tidegate.pipeline import keyed_step as steps
from tidegate.pipeline.keyed_step import TIMER
from tidegate.state.table.keys import same, whole
from tidegate.state.table.table import NEVER, PROBE, StateTable

_STATE = "state."


@dataclass(frozen=True)
class Process(RowOperator):
    """What `KeyedStream.process` promises to the function. It is called at most once per task and batch.

    Rows of one key and time come in a fixed order. `state` has the key columns, then those of the declared
    schema; a key that had none may get one if it is in `rows`. Floating keys come without minus zero. A timer
    that is left in the past is due again as soon as the watermark moves on; a null is none.
    """

    place: str
    """The step and its line, for errors of the function."""
    function: Callable[..., Any]
    key: tuple[str, ...]
    """The user's names of the key columns."""
    state: pa.Schema
    """Key columns and state columns, as the function sees them."""

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        (table,), (side,) = self.tables, self.sides.each
        fresh, (number,) = numbered(table, rows)
        given, known = self._known(fresh, state, time)
        if not rows.num_rows and not known.num_rows:
            return Result(self.output.empty_table())
        times = numbers(whole(rows[TIME]), -(2**63))
        order = sorted_by_key(fresh.num_rows, number, times, numbers(whole(rows[TIE])))
        came = side.original(rows, pa.array(order))
        seen = pa.Table.from_arrays([known[name] for name in table.schema.names[2:]], schema=self.state)
        with errors_of(self.function, self.place):
            output, new = self.function(came, seen, time)
            output, new = conformed(output, self.output), conformed(new, self.state)
        try:
            self._put(given, known, new, state, time)
        except ValueError as error:
            raise StepError(f"{self.place}: {error}") from None
        return Result(output)

    def _known(self, fresh: pa.Table, state: State, time: Time) -> tuple[pa.Table, pa.Table]:
        """The keys of this batch, then others whose timers are due; and their state, with the row of its key
        there as `_probe`."""
        (table,) = self.tables
        known = state.get(table, fresh) if fresh.num_rows else table.answered.empty_table()
        if TIMER not in self.state.names:
            return fresh, known
        due = due_now(table, state, time)
        _, (mine, theirs) = numbered(table, fresh, due)
        others = due.filter(pa.array(~np.isin(theirs, mine)))
        given = pa.concat_tables([fresh, others.select(fresh.column_names)])
        probe = pa.array(np.arange(fresh.num_rows, given.num_rows))
        others = others.append_column(table.answered.field(PROBE), probe)
        return given, pa.concat_tables([known.cast(table.answered), others])

    def _put(self, given: pa.Table, known: pa.Table, new: pa.Table, state: State, time: Time) -> None:
        """Write the new state of the keys of this call; raises a ValueError for any other key."""
        (table,) = self.tables
        places = _places(
            [whole(given[key]) for key in self.sides.keys.names], [whole(new[key]) for key in self.key]
        )
        self._check(new, places)
        gone = known.filter(pa.array(~np.isin(known[PROBE].to_numpy(), places)))
        due = np.full(new.num_rows, NEVER)
        if TIMER in self.state.names:
            due = numbers(whole(new[TIMER]), NEVER)
            if time.watermark is not None:
                due = np.maximum(due, time.watermark + 1)
        nothing = [pa.nulls(gone.num_rows, kind) for kind in table.values.types]
        rows = pa.concat_tables(
            [
                written(table, given.take(pa.array(places)), new.columns[len(self.key) :], due=due),
                written(table, gone.select(given.column_names), nothing, gone=True),
            ]
        )
        if rows.num_rows:
            state.put(table, rows)

    def _check(self, new: pa.Table, places: RowNumbers) -> None:
        unknown = np.flatnonzero(places < 0)
        if len(unknown):
            key = tuple(new[name][int(unknown[0])].as_py() for name in self.key)
            raise ValueError(f"the function returned state for the key {key!r}, which it was not given")
        twice = np.flatnonzero(np.bincount(places)[places] > 1)
        if len(twice):
            key = tuple(new[name][int(twice[0])].as_py() for name in self.key)
            raise ValueError(f"the function returned state for the key {key!r} more than once")


def from_step(step: steps.Process, given: Input) -> Process:
    one = sides(given, exact=False)
    columns = arrow_schema(spark_schema(step.state_schema))
    for name in columns.names:
        if name in given.keys:
            raise PipelineError(
                f"state_schema has a column {name!r}, which is a key column; the key is always part of the "
                "state: remove it there"
            )
    if TIMER in columns.names and not pa.types.is_timestamp(columns.field(TIMER).type):
        raise PipelineError(f"the state's column 'timer' is a {columns.field(TIMER).type}, not a timestamp")
    keys = [field.with_name(name) for field, name in zip(one.keys, given.keys, strict=True)]
    values = pa.schema([field.with_name(_STATE + field.name) for field in columns])
    return Process(
        one,
        (StateTable(step.name, "value", one.keys, values, given.keys),),
        arrow_schema(spark_schema(step.output_schema)),
        f"{step.name} (declared at {step.where})",
        step.function,
        given.keys,
        pa.schema([*keys, *columns]),
    )


def _places(given: Sequence[pa.Array], returned: Sequence[pa.Array]) -> RowNumbers:
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
