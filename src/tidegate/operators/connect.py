"""Each row of a stream with the latest row of another that has the same key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.batch.time import Time
from tidegate.operators.kit.keys import numbered
from tidegate.operators.kit.sides import sides
from tidegate.operators.kit.versions import Lookup, lookup
from tidegate.operators.operator import Input, Result, State
from tidegate.pipeline import keyed_step as steps
from tidegate.state.table.table import PROBE


@dataclass(frozen=True)
class Connect(Lookup):
    """A left row without partner leaves with nulls. A null key is a key like any other."""

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        given, fresh = self.sides.split(rows)
        left, late = self.leaving(given, state, time)
        keys, (fresh_number, left_number) = numbered(self.right, fresh, left)
        if not keys.num_rows:
            return Result(self.output.empty_table(), late)
        known = state.get(self.right, keys)
        history = self.history(keys, known, known[PROBE].to_numpy(), fresh, fresh_number)
        changed = np.unique(fresh_number)
        if len(changed):
            rows = self.written(history, keys.take(pa.array(changed)), changed, time.watermark)
            state.put(self.right, rows)
        every = np.arange(left.num_rows)
        found = self.current(history, left, every, left_number)
        partners = pa.array(found, mask=found < 0)
        return Result(self.paired(left, pa.array(every), history.rows, partners), late)


def from_step(step: steps.Connect, left: Input, right: Input) -> Connect:
    both = sides(left, right)
    return Connect(*lookup(step.name, both, both.keys, both.keys, right="right"))
