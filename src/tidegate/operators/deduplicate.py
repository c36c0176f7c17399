"""The first row of each key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit.keys import combined, numbered, sorted_by_key, written
from tidegate.operators.kit.row_operator import RowOperator
from tidegate.operators.kit.sides import TIE, TIME, sides
from tidegate.operators.kit.spans import RowNumbers, numbers
from tidegate.operators.operator import Input, Result, State
from tidegate.pipeline import keyed_step as steps
from tidegate.state.table.keys import whole
from tidegate.state.table.table import NEVER, PROBE, StateTable

_ACCEPTED = "accepted"


@dataclass(frozen=True)
class Deduplicate(RowOperator):
    """A row leaves at once when it is the first of its key, and is forgotten otherwise.

    Of the rows of one batch the one with the least event time comes first; of several at that time, one by a
    fixed order. Without `within` a key is known for ever.

    With `within`, two rows that leave have that much event time between them, and every row that does not
    leave lies closer than that to one that does. Rows without event time are left out, and rows behind the
    watermark are dropped and counted, since what they might repeat may be forgotten.
    """

    within: int | None
    """Microseconds."""

    @property
    def timed(self) -> bool:
        return self.within is not None

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        late = 0
        if self.timed and time.closed is not None:
            on_time = rows[TIME].to_numpy() >= time.closed
            late = int(len(on_time) - on_time.sum())
            rows = rows.filter(pa.array(on_time)).combine_chunks()
        (table,), (side,) = self.tables, self.sides.each
        keys, (number,) = numbered(table, rows)
        if not keys.num_rows:
            return Result(self.output.empty_table(), late)
        known = state.get(table, keys)
        times = numbers(whole(rows[TIME]), NEVER)
        order = sorted_by_key(keys.num_rows, number, times, numbers(whole(rows[TIE])))
        chosen = order[self._fresh(number[order], times[order], known)]
        if len(chosen):
            fresh, at = keys.take(pa.array(number[chosen])), times[chosen]
            values, due = ([], NEVER) if self.within is None else ([pa.array(at)], at + self.within)
            state.put(table, written(table, fresh, values, due=due))
        return Result(side.original(rows, pa.array(chosen)), late)

    def _fresh(self, number: RowNumbers, times: RowNumbers, known: pa.Table) -> RowNumbers:
        """The rows that leave, of rows that are sorted by key and time."""
        probe = known[PROBE].to_numpy()
        if self.within is None:
            first = np.flatnonzero(np.diff(number, prepend=-1))
            return first[~np.isin(number[first], probe)]
        reach = self.within - 1
        low, high, accepted = combined(
            np.concatenate([number, number, probe]),
            times - reach,
            times + reach,
            known[_ACCEPTED].to_numpy(),
        )
        accepted.sort()
        near = np.searchsorted(accepted, low, side="left") < np.searchsorted(accepted, high, side="right")
        left = np.flatnonzero(~near)
        return left[_spaced(number[left], times[left], self.within)]


def _spaced(number: RowNumbers, times: RowNumbers, within: int) -> RowNumbers:
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
    one = sides(given)
    within = None if step.within is None else round(step.within * 1e6)
    if within is None:
        table = StateTable(step.name, "value", one.keys, pa.schema([]), given.keys)
    elif given.event_time is None:
        raise PipelineError("within= needs an event time; give the source event_time='column'")
    else:
        values = pa.schema({_ACCEPTED: pa.int64()})
        table = StateTable(step.name, "buffer", one.keys, values, given.keys, (_ACCEPTED,))
    return Deduplicate(one, (table,), one.each[0].schema, within)
