"""Each row of a stream with every current rule that it meets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.batch.time import Time
from tidegate.operators.kit.hashing import hashed
from tidegate.operators.kit.input import Input
from tidegate.operators.kit.pairs import Rows, numbered
from tidegate.operators.kit.sides import TIE, TIME, Sides, joined, sides
from tidegate.operators.kit.versions import History, Versions, versions
from tidegate.operators.kit.waiting import WAITED, called, waiting_room
from tidegate.operators.operator import SIDE, Operator, Result, State, WithinPartitions
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Mode
from tidegate.state.table.keys import Hashes, distinct, hash_column
from tidegate.state.table.table import HASH, StateTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COPY, _SPREAD = "copy", "spread"


@dataclass(frozen=True)
class BroadcastJoin(Operator):
    """The right stream brings rules: the latest row of a key is the current one.

    If both streams have an event time, a left row meets the rules as they were at its time, and leaves when
    the watermark is past it; rows without event time are left out, and a left row that comes later than that
    is dropped and counted. Without event time on either side it leaves at once, and the rules of its own
    batch count already. A row that meets no rule does not leave.

    `condition` is Spark SQL over the output columns: those of the left, then those of the right, with
    `_right` behind a name that the left has too. A rule is changed by a later row of its key. To delete one,
    give the rules a column such as `active`, ask for it in the condition and send the rule with false.

    Rules should be few: every key group has a copy of them, so that each task finds them in its own state,
    and a task makes all pairs of rows and rules before the condition is applied.
    """

    name: str
    condition: str
    groups: int
    """Number of key groups, a power of two."""
    sides: Sides
    versions: Versions
    tables: tuple[StateTable, ...]
    """That of the rules; where left rows wait, before it that of the left."""
    output: pa.Schema
    mode: Mode = "append"

    def arrange(self, rows: DataFrame, within_partitions: WithinPartitions) -> DataFrame:
        from pyspark.sql import functions as F

        frame = self.sides.frame(rows, tie=True)
        if self.versions.timed:
            frame = frame.where(F.col(TIME).isNotNull())
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
        side = rows[SIDE].to_numpy()
        given, fresh = (rows.filter(pa.array(side == number)).combine_chunks() for number in (0, 1))
        left, late = self._leaving(given, state, time)
        if not left.num_rows and not fresh.num_rows:
            return Result(self.output.empty_table(), late)
        history = self._rules(fresh, state, time)
        left_rows, rules = self._met(left, history)
        columns = [
            *self.sides.each[0].take(left, pa.array(left_rows)),
            *self.sides.each[1].take(history.rows, pa.array(rules)),
        ]
        return Result(pa.Table.from_arrays(columns, schema=self.output), late)

    def finish(self, rows: DataFrame) -> DataFrame:
        return rows.where(self.condition)

    @property
    def _bits(self) -> int:
        return self.groups.bit_length() - 1

    def _leaving(self, given: pa.Table, state: State, time: Time) -> tuple[pa.Table, int]:
        """The left rows that leave now, and how many came too late."""
        side = self.sides.each[0]
        if self.versions.timed:
            return called(side, self.tables[0], given.append_column(_SPREAD, given[TIE]), 0, state, time)
        return side.rows(given, side.values), 0

    def _rules(self, fresh: pa.Table, state: State, time: Time) -> History:
        """All versions of the rules. Those of this batch are put, a copy for each key group of this task."""
        table, keys = self.versions.table, self.sides.keys.names
        probes = fresh.select(table.probes.names).cast(table.probes)
        known = _one_copy(state.scan(table))
        known_number, fresh_number = numbered(
            (self._rule_hashes(known), [known[key] for key in keys]),
            (self._rule_hashes(probes), [probes[key] for key in keys]),
        )
        all_keys = pa.concat_tables([known.select(keys), probes.select(keys)]).combine_chunks()
        _, places = np.unique(np.concatenate([known_number, fresh_number]), return_index=True)
        one = np.flatnonzero(_is_one_copy(fresh))
        history = self.versions.history(
            all_keys.take(pa.array(places)),
            known,
            known_number,
            fresh.take(pa.array(one)),
            fresh_number[one],
        )
        if fresh.num_rows:
            first, _ = distinct(hash_column(probes[HASH]), [probes[name] for name in table.keys.names])
            written = self.versions.written(
                history, probes.take(pa.array(first)), fresh_number[first], time.watermark
            )
            state.put(table, written)
        return history

    def _rule_hashes(self, rows: pa.Table) -> Hashes:
        """The hash of a rule without that of its key group, which differs from copy to copy."""
        return hash_column(rows[HASH]) << np.uint64(self._bits)

    def _met(self, left: pa.Table, history: History) -> tuple[Rows, Rows]:
        """Each left row with the current version of each rule."""
        rules = np.unique(history.number)
        rows = np.repeat(np.arange(left.num_rows), len(rules))
        number = np.tile(rules, left.num_rows)
        if self.versions.timed:
            found = history.as_of(number, left[WAITED].to_numpy()[rows])
        else:
            found = history.latest(number)
        return rows[found >= 0], found[found >= 0]


def _is_one_copy(rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows belong to the first of the copies, which are all alike."""
    copies = rows[_COPY].to_numpy()
    return np.asarray(copies == copies.min(initial=2**31 - 1), np.bool_)


def _one_copy(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(_is_one_copy(rows))).combine_chunks()


def from_step(step: steps.BroadcastJoin, left: Input, right: Input) -> BroadcastJoin:
    """The operator of a declared step."""
    both = sides(replace(left, keys=()), right)
    timed = left.event_time is not None and right.event_time is not None
    keys = pa.schema([pa.field(_COPY, pa.int32()), *both.keys])
    kept = versions(f"{step.name}.rules", keys, both.each[1], timed=timed)
    spread = pa.schema({_SPREAD: pa.int64()})
    waiting = (waiting_room(f"{step.name}.left", spread, both.each[0]),) if timed else ()
    return BroadcastJoin(
        step.name, step.condition, right.groups, both, kept, (*waiting, kept.table), joined(*both.each)
    )
