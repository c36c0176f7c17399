"""Aggregates per key over all rows so far."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.batch.time import Time
from tidegate.operators.kit.grouping import Grouping
from tidegate.operators.kit.keys import numbered, written
from tidegate.operators.kit.partials import PART, rank
from tidegate.operators.kit.spans import Spans, ascending, whole
from tidegate.operators.operator import Operator, Result, State, WithinPartitions
from tidegate.state.table.table import PROBE, StateTable


class RunningAggregate(Operator):
    """Each batch, the new aggregates of the keys that it touched."""

    def __init__(self, grouping: Grouping) -> None:
        self.grouping = grouping
        self.table = StateTable(grouping.name, "value", grouping.keys, grouping.partials.kept)
        self.tables = (self.table,)
        self.output = pa.schema([*grouping.keys, *grouping.partials.output])

    def narrow(self, rows: DataFrame) -> DataFrame:
        return self.grouping.narrow(rows)

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        partial = self.grouping.partial(rows, within_partitions)
        return self.grouping.shuffled(partial, self.grouping.keys.names)

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        if not rows.num_rows:
            return Result(self.output.empty_table())
        partials = self.grouping.partials
        touched, (number,) = numbered(self.table, rows)
        kept = state.get(self.table, touched)
        number = np.concatenate([whole(kept[PROBE]).to_numpy(), number])
        order = ascending(number, rank(kept.num_rows, rows, PART))
        merged = partials.merge(kept, rows, order, Spans.of(number[order]))
        state.put(self.table, written(self.table, touched, list(merged.values())))
        columns = [*touched.columns[1:], *partials.finish(merged)]
        return Result(pa.Table.from_arrays(columns, schema=self.output))
