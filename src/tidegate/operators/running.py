"""Aggregates per key over all rows so far."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.batch.time import Time
from tidegate.operators.kit.grouping import Grouping
from tidegate.operators.kit.keys import numbered, written
from tidegate.operators.kit.partials import PART, rank
from tidegate.operators.kit.spans import Spans, ascending, whole
from tidegate.operators.operator import Result, State
from tidegate.state.table.table import PROBE


class RunningAggregate(Grouping):
    """Each batch, the new aggregates of the keys that it touched."""

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        if not rows.num_rows:
            return Result(self.output.empty_table())
        touched, (number,) = numbered(self.table, rows)
        kept = state.get(self.table, touched)
        number = np.concatenate([whole(kept[PROBE]).to_numpy(), number])
        order = ascending(number, rank(kept.num_rows, rows, PART))
        merged = self.partials.merge(kept, rows, order, Spans.of(number[order]))
        state.put(self.table, written(self.table, touched, list(merged.values())))
        columns = [*touched.columns[1:], *self.partials.finish(merged)]
        return Result(pa.Table.from_arrays(columns, schema=self.output))
