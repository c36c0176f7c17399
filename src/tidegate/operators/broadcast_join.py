"""Each row of a stream with every current rule that it meets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.batch.time import Time
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.sides import TIE, sides
from tidegate.operators.kit.versions import History, Lookup, lookup
from tidegate.operators.operator import SIDE, Input, Result, State, WithinPartitions
from tidegate.pipeline import keyed_step as steps
from tidegate.state.table.keys import distinct, hash_column, whole
from tidegate.state.table.table import HASH

_COPY, _SPREAD = "copy", "spread"


@dataclass(frozen=True)
class BroadcastJoin(Lookup):
    """The right stream brings rules: a left row leaves once for each that it meets.

    `condition` is Spark SQL over the output columns: those of the left, then those of the right, with
    `_right` behind a name that the left has too. A rule is changed by a later row of its key. To delete one,
    give the rules a column such as `active`, ask for it in the condition and send the rule with false.

    Rules should be few: every key group has a copy of them, so that each task finds them in its own state,
    and a task makes all pairs of rows and rules before the condition is applied.
    """

    condition: str
    groups: int
    """Number of key groups, a power of two."""

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        frame = self.sides.frame(rows, tie=True, timed=self.timed)
        every = F.sequence(F.lit(0), F.lit(self.groups - 1))
        frame = frame.withColumn(
            _COPY, F.explode(F.when(F.col(SIDE) == 1, every).otherwise(F.array(F.lit(0))))
        )
        rule = hashed(self.sides.keys.names)
        if self._bits:
            group = F.shiftleft(F.col(_COPY).cast("bigint"), 64 - self._bits)
            rule = group.bitwiseOR(F.shiftrightunsigned(rule, self._bits))
        return frame.withColumn(HASH, F.when(F.col(SIDE) == 1, rule).otherwise(F.col(TIE)))

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        given, fresh = self.sides.split(rows)
        left, late = self.leaving(given.append_column(_SPREAD, given[TIE]), state, time)
        if not left.num_rows and not fresh.num_rows:
            return Result(self.output.empty_table(), late)
        history = self._rules(fresh, state, time)
        rules = np.unique(history.number)
        left_rows = np.repeat(np.arange(left.num_rows), len(rules))
        found = self.current(history, left, left_rows, np.tile(rules, left.num_rows))
        met = found >= 0
        pairs = self.paired(left, pa.array(left_rows[met]), history.rows, pa.array(found[met]))
        return Result(pairs, late)

    def finish(self, rows: DataFrame) -> DataFrame:
        return rows.where(self.condition)

    @property
    def _bits(self) -> int:
        return self.groups.bit_length() - 1

    def _rules(self, fresh: pa.Table, state: State, time: Time) -> History:
        """All versions of the rules. Those of this batch are put, a copy for each key group of this task."""
        table, keys = self.right, self.sides.keys.names
        probes = fresh.select(table.probes.names).cast(table.probes)
        copies = state.scan(table)
        known = copies.filter(pa.array(_is_one_copy(copies))).combine_chunks()
        every = pa.concat_tables([known.select(probes.column_names), probes])
        # Without the hash of the key group, which differs from copy to copy.
        hashes = hash_column(every[HASH]) << np.uint64(self._bits)
        first, number = distinct(hashes, [whole(every[key]) for key in keys])
        known_number, fresh_number = np.split(number, [known.num_rows])
        one = np.flatnonzero(_is_one_copy(fresh))
        history = self.history(
            every.select(keys).take(pa.array(first)),
            known,
            known_number,
            fresh.take(pa.array(one)),
            fresh_number[one],
        )
        if fresh.num_rows:
            first, _ = distinct(hash_column(probes[HASH]), [probes[name] for name in table.keys.names])
            probes = probes.take(pa.array(first))
            state.put(table, self.written(history, probes, fresh_number[first], time.watermark))
        return history


def _is_one_copy(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows belong to the first of the copies, which are all alike."""
    copies = rows[_COPY].to_numpy()
    return np.asarray(copies == copies.min(initial=2**31 - 1), np.bool_)


def from_step(step: steps.BroadcastJoin, left: Input, right: Input) -> BroadcastJoin:
    both = sides(replace(left, keys=()), right)
    left_keys = pa.schema({_SPREAD: pa.int64()})
    right_keys = pa.schema([pa.field(_COPY, pa.int32()), *both.keys])
    fields = lookup(step.name, both, left_keys, right_keys, right="rules")
    return BroadcastJoin(*fields, step.condition, right.groups)
