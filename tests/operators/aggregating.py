"""Batches of an aggregate without Spark: rows in plain Python, arranged as Spark SQL would."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import DataType, StructField, StructType

from tests.operators.arranging import Hash, Row, spread
from tidegate.batch.time import Time
from tidegate.batch.watermark import Watermark
from tidegate.errors import Where
from tidegate.operators.aggregate import from_step
from tidegate.operators.kit.functions import Count, Edge, Extreme, Mean, Sum, Variance
from tidegate.operators.kit.grouping import PANE, ROWS, TIME
from tidegate.operators.kit.partials import PART, Partial
from tidegate.operators.kit.sketches import LG_K, Distinct, Quantile
from tidegate.operators.operator import Input, Operator
from tidegate.operators.session import SessionAggregate
from tidegate.operators.windowed import WindowAggregate
from tidegate.pipeline import keyed_step as steps
from tidegate.pipeline.agg import AggregateFunction
from tidegate.pipeline.step import Mode
from tidegate.pipeline.window import START, EventTime, Window
from tidegate.state.table.table import HASH
from tidegate.testing.states import MemoryState, part_of

Batches = list[list[tuple[Row, int]]]
"""Rows, each with its Spark partition."""
AT = EventTime("at")
"""In plain rows, event time is a number of microseconds."""


def operator(
    columns: Mapping[str, DataType],
    keys: Sequence[str],
    aggregates: Mapping[str, AggregateFunction],
    window: Window | None = None,
    emit: Mode = "append",
    event_time: EventTime | None = AT,
) -> Operator:
    """The operator of an aggregate over rows with these columns."""
    step = steps.Aggregate("totals", Where("job.py", 1), (), dict(aggregates), window, emit)
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    return from_step(step, Input(schema, tuple(keys), event_time))


def crowded(key: Hashable) -> int:
    """A hash of three values."""
    return spread(key) % 3 * (2**63 - 1)


@dataclass
class Run:
    """An operator over batches, with `tasks` tasks each."""

    operator: Operator
    tasks: int = 1
    hash: Hash = spread
    state: MemoryState = field(default_factory=MemoryState)
    rows: list[Row] = field(default_factory=list)
    """What has left so far."""
    late: int = 0

    def batch(self, rows: Iterable[tuple[Row, int]], time: Time) -> list[Row]:
        """Apply a batch of pairs (row, Spark partition) and commit it; what has left."""
        arranged = arrange(self.operator, rows, self.hash)
        left = []
        for index, part in enumerate(self.state.parts(self.tasks)):
            mine = part_of(arranged[HASH].to_numpy(), self.tasks) == index
            result = self.operator.apply(arranged.filter(pa.array(mine)), part, time)
            assert result.rows.schema.equals(self.operator.output)
            result.rows.validate(full=True)
            left += result.rows.to_pylist()
            self.late += result.late
        self.state.commit(time.watermark)
        self.rows += left
        return left

    def batches(self, batches: Sequence[Sequence[tuple[Row, int]]], grace: float) -> None:
        """Apply batches with the watermark that the engine would have, then let time run out."""
        mark, closed = Watermark({"source": grace}, {}), None
        for batch in batches:
            self.batch(batch, Time(closed, mark.micros))
            closed = mark.micros
            times = [row["at"] for row, _ in batch if row["at"] is not None]
            mark = mark.advance({"source": max(times)} if times else {})
        self.batch([], Time(closed, 2**62))


def in_grace(batches: Sequence[Sequence[tuple[Row, int]]], grace: float) -> list[list[tuple[Row, int]]]:
    """The batches, with rows from before the watermark of their batch moved up to it."""
    mark, moved = Watermark({"source": grace}, {}), []
    for batch in batches:
        least = mark.micros
        rows = [
            ({**row, "at": row["at"] if least is None else max(row["at"], least)}, part)
            for row, part in batch
        ]
        mark = mark.advance({"source": max(row["at"] for row, _ in rows)} if rows else {})
        moved.append(rows)
    return moved


def replays(operator: Operator, batch: Sequence[tuple[Row, int]], time: Time, random: Random) -> list[Any]:
    """What a batch leaves and keeps, as bytes: with its rows in one order, and in another."""
    arranged, outcomes = arrange(operator, batch, crowded), []
    shuffled = random.sample(range(arranged.num_rows), arranged.num_rows)
    for rows in (arranged, arranged.take(pa.array(shuffled, pa.int64()))):
        run = Run(operator, hash=crowded)
        run.batch(batch[::2], Time(None, None))
        result = operator.apply(rows, run.state, time)
        run.state.commit()
        kept = run.state.scan(operator.tables[0])
        outcomes.append((_bytes(result.rows), result.late, _bytes(kept)))
    return outcomes


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def arrange(operator: Any, rows: Iterable[tuple[Row, int]], hash: Hash = spread) -> pa.Table:
    """What `arrange` makes of rows, in plain Python."""
    groups: dict[tuple[Any, ...], tuple[tuple[Any, ...], list[Row]]] = {}
    for row, part in rows:
        key = tuple(plain(row[name]) for name in operator.keys.names)
        groups.setdefault((repr(key), _within(operator, row), part), (key, []))[1].append(row)
    out = []
    for (_, within, part), (key, members) in groups.items():
        made = dict(zip(operator.keys.names, key, strict=True))
        for partial in operator.partials.each:
            made |= zip([f.name for f in partial.arriving], _partial(partial, members), strict=True)
        made |= {PART: part, ROWS: len(members), PANE: within, TIME: within}
        for start in _starts(operator, within):
            hashed = (*key, start) if isinstance(operator, WindowAggregate) else key
            out.append({**made, START: start, HASH: hash(hashed)})
    fields = [*operator.keys, *operator.partials.arriving, pa.field(PART, pa.int32()), (HASH, pa.uint64())]
    fields += [(name, pa.int64()) for name in (ROWS, PANE, TIME, START)]
    return pa.Table.from_pylist(out, pa.schema(fields))


def _within(operator: Operator, row: Row) -> int | None:
    if row.get("at") is None or not isinstance(operator, WindowAggregate | SessionAggregate):
        return None
    at: int = row["at"]
    return at if isinstance(operator, SessionAggregate) else at - at % operator.every


def _starts(operator: Operator, pane: int | None) -> list[int | None]:
    if not isinstance(operator, WindowAggregate) or pane is None:
        return [None]
    return list(range(pane - operator.size + operator.every, pane + 1, operator.every))


def plain(value: Any) -> Any:
    """Without minus zero."""
    return value + 0.0 if isinstance(value, float) else value


def rank(value: Any) -> tuple[Any, ...]:
    """Spark's order of values: null, numbers, NaN."""
    if value is None:
        return (0,)
    return (2,) if value != value else (1, value)


def _partial(partial: Partial, rows: list[Row]) -> list[Any]:
    """The arriving columns of one aggregate over rows of one group."""
    if isinstance(partial, Count):
        return [len(rows)]
    of: str = partial.of  # type: ignore[attr-defined]
    values = [row[of] for row in rows if row[of] is not None]
    match partial:
        case Sum():
            return [sum(values[1:], values[0]) if values else None]
        case Extreme():
            return [(max if partial.largest else min)(values, key=rank, default=None)]
        case Mean():
            return [len(values), math.fsum(values) if values else None]
        case Variance():
            mean = np.mean(values) if values else None
            return [len(values), mean, np.var(values) * len(values) if values else None]
        case Edge():
            events = [(row["at"], rank(row[of]), row[of]) for row in rows if row["at"] is not None]
            if not events:
                return [None, None]
            edge = (max if partial.latest else min)(events, key=lambda event: event[:2])
            return [edge[0], edge[2]]
        case Distinct():
            return [_sketch(values)]
        case Quantile():
            return [sorted(float(value) for value in values if value == value)]
    raise AssertionError(partial)


def _sketch(values: list[Any]) -> bytes:
    from datasketches import hll_sketch, tgt_hll_type

    sketch = hll_sketch(LG_K, tgt_hll_type.HLL_8)
    for value in values:
        sketch.update(value)
    return bytes(sketch.serialize_updatable())


def stamp(micros: int) -> datetime:
    """Microseconds since 1970 as they come out of Arrow."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def keyed(rows: Iterable[Row]) -> dict[Any, Row]:
    """The latest row of each key and window."""
    return {(row["k"], row["j"], row["window_start"]): row for row in rows}


def assert_close(row: Row, expected: Row) -> None:
    """Floats within rounding, anything else equal."""
    for name, value in expected.items():
        if isinstance(value, float):
            assert row[name] == pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True), name
        else:
            assert row[name] == value, name
