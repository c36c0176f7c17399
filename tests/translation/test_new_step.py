"""A new step with state is two things: its declaration and its operator. Nothing else has to know of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tests.conftest import Run
from tests.run.readings import latest, read, rows_of, sensors
from tidegate.batch.time import Time
from tidegate.operators.kit.keys import numbered, written
from tidegate.operators.kit.row_operator import RowOperator
from tidegate.operators.kit.sides import sides
from tidegate.operators.operator import Input, Result, State
from tidegate.pipeline.keyed_step import KeyedStep
from tidegate.state.table.table import PROBE, StateTable

_HIGHEST = "highest"


@dataclass(frozen=True, slots=True, eq=False)
class Highest(KeyedStep):
    """The highest value of each key so far: the declaration."""

    column: str
    kind = "highest"
    operator = __name__
    emits = "update"
    needs_final_rows = True

    def describe(self) -> str:
        return self.column


@dataclass(frozen=True)
class HighestOperator(RowOperator):
    """The highest value of each key so far: the operator."""

    column: str

    def apply(self, rows: pa.Table, state: State, time: Time) -> Result:
        (table,), (side,) = self.tables, self.sides.each
        keys, (number,) = numbered(table, rows)
        if not keys.num_rows:
            return Result(self.output.empty_table())
        known = state.get(table, keys)
        highest = np.full(keys.num_rows, -np.inf)
        highest[known[PROBE].to_numpy()] = known[_HIGHEST].to_numpy()
        values = side.original(rows, pa.array(np.arange(rows.num_rows)))[self.column]
        np.maximum.at(highest, number, values.to_numpy())
        columns = [pa.array(highest)]
        state.put(table, written(table, keys, columns))
        return Result(pa.Table.from_arrays([*keys.columns[1:], *columns], schema=self.output))


def from_step(step: Highest, given: Input) -> HighestOperator:
    one = sides(given)
    value = pa.field(_HIGHEST, pa.float64())
    names = [field.with_name(name) for field, name in zip(one.keys, given.keys, strict=True)]
    table = StateTable(step.name, "value", one.keys, pa.schema([value]))
    return HighestOperator(one, (table,), pa.schema([*names, value]), step.column)


def highest(stream: tg.KeyedStream, column: str) -> tg.Stream:
    """What would be a method of `KeyedStream`."""
    return stream._then(Highest, column=column)


def test_it_is_drawn_and_checked_by_its_traits() -> None:
    p = tg.Pipeline("new")
    found = highest(p.source(sensors(10)).key_by("id"), "value")
    found.sink(tg.sinks.Discard())
    assert "highest-1" in str(p)
    p.plan()
    found.key_by("id").deduplicate().sink(tg.sinks.Discard())
    with pytest.raises(tg.PipelineError, match="needs final rows, but highest-1"):
        p.plan()


@pytest.mark.spark
def test_it_runs(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("new")
    highest(p.source(sensors(3000)).key_by("id"), "value").sink(tg.sinks.Files(tmp_path / "out"))
    _, told = run(p, engine__parallelism=2)
    assert len(told) > 1
    expected: dict[int, float] = defaultdict(lambda: float("-inf"))
    for row in rows_of(sensors(3000), 3000):
        expected[row["id"]] = max(expected[row["id"]], row["value"])
    found = latest(read(tmp_path / "out"), "id")
    assert {key: row["highest"] for key, row in found.items()} == expected
