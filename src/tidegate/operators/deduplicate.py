"""The first row of each key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.input import Input
from tidegate.operators.kit.pairs import Rows, combined, sorted_by_key
from tidegate.operators.kit.sides import TIE, TIME, Sides, sides
from tidegate.operators.kit.spans import numbers, whole
from tidegate.operators.operator import Operator, Result, State, WithinPartitions
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Mode
from tidegate.state.table.keys import distinct, hash_column
from tidegate.state.table.table import DUE, GONE, HASH, NEVER, PROBE, StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ACCEPTED = "accepted"


@dataclass(frozen=True)
class Deduplicate(Operator):
    """A row leaves at once when it is the first of its key, and is forgotten otherwise.

    Of the rows of one batch the one with the least event time comes first; of several at that time, one by a
    fixed order. Without `within` a key is known for ever.

    With `within`, two rows that leave have that much event time between them, and every row that does not
    leave lies closer than that to one that does. Rows without event time are left out, and rows behind the
    watermark are dropped and counted, since what they might repeat may be forgotten.
    """

    name: str
    within: int | None
    """Microseconds."""
    sides: Sides
    tables: tuple[StateTable, ...]
    output: pa.Schema
    mode: Mode = "append"

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        from pyspark.sql import functions as F

        frame = self.sides.frame(rows, tie=True)
        if self.within is not None:
            frame = frame.where(F.col(TIME).isNotNull())
        return frame.withColumn(HASH, hashed(self.sides.keys.names))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        late = 0
        if self.within is not None and time.closed is not None:
            on_time = rows[TIME].to_numpy() >= time.closed
            late = int(len(on_time) - on_time.sum())
            rows = rows.filter(pa.array(on_time)).combine_chunks()
        first, number = distinct(hash_column(rows[HASH]), [rows[key] for key in self.sides.keys.names])
        if not len(first):
            return Result(self.output.empty_table(), late)
        (table,) = self.tables
        known = state.get(table, rows.select(table.probes.names).take(pa.array(first)).cast(table.probes))
        times = numbers(whole(rows[TIME]), NEVER)
        order = sorted_by_key(first, number, times, numbers(whole(rows[TIE])))
        fresh = self._fresh(number[order], times[order], known)
        chosen = pa.array(order[fresh])
        if len(chosen):
            state.put(table, self._written(rows.take(chosen)))
        (side,) = self.sides.each
        kept = side.rows(rows, pa.schema([*self.sides.keys, *side.values]))
        return Result(pa.Table.from_arrays(side.take(kept, chosen), schema=self.output), late)

    def _fresh(self, number: Rows, times: NDArray[np.int64], known: pa.Table) -> Rows:
        """The rows that leave, of rows that are sorted by key and time."""
        probe = known[PROBE].to_numpy()
        if self.within is None:
            first = np.flatnonzero(np.diff(number, prepend=-1))
            return first[~np.isin(number[first], probe)]
        accepted = known[_ACCEPTED].to_numpy()
        order = np.lexsort((accepted, probe))
        probe, accepted = probe[order], accepted[order]
        mine, theirs = combined(np.concatenate([number, probe]), times, accepted)
        after = np.searchsorted(theirs, mine, side="right")
        near = np.zeros(len(number), np.bool_)
        for neighbour in (after - 1, after):
            there = (neighbour >= 0) & (neighbour < len(probe))
            place = neighbour[there]
            near[there] |= (probe[place] == number[there]) & (
                np.abs(accepted[place] - times[there]) < self.within
            )
        left = np.flatnonzero(~near)
        return left[_spaced(number[left], times[left], self.within)]

    def _written(self, rows: pa.Table) -> pa.Table:
        (table,) = self.tables
        if self.within is None:
            made = {DUE: np.full(rows.num_rows, NEVER), GONE: np.zeros(rows.num_rows, np.bool_)}
        else:
            accepted = rows[TIME].to_numpy()
            made = {DUE: accepted + self.within, _ACCEPTED: accepted}
        columns = [
            pa.array(made[field.name]) if field.name in made else rows[field.name].cast(field.type)
            for field in table.written
        ]
        return pa.Table.from_arrays(columns, schema=table.written)


def _spaced(number: Rows, times: NDArray[np.int64], within: int) -> Rows:
    """Of rows sorted by key and time, the first of each key and each next one that is `within` later."""
    mine, later = combined(np.concatenate([number, number]), times, times + within)
    follower = np.searchsorted(mine, later, side="left")
    current = np.flatnonzero(np.diff(number, prepend=-1))
    found = [current]
    # One round per row that leaves of a key: two or more are rare in a batch.
    while len(current):
        after = follower[current]
        there = after < len(number)
        there[there] = number[after[there]] == number[current[there]]
        current = after[there]
        found.append(current)
    return np.sort(np.concatenate(found))


def from_step(step: steps.Deduplicate, given: Input) -> Deduplicate:
    """The operator of a declared step."""
    one = sides(given)
    within = None if step.within is None else round(step.within * 1e6)
    if within is None:
        table = StateTable(step.name, "value", one.keys, pa.schema([]))
    elif given.event_time is None:
        raise PipelineError("within= needs an event time; give the source event_time='column'")
    else:
        table = StateTable(step.name, "buffer", one.keys, pa.schema({_ACCEPTED: pa.int64()}))
    return Deduplicate(step.name, within, one, (table,), one.each[0].schema)
