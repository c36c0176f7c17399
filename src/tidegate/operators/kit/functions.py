"""The partials of each aggregate function, but for the sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate.errors import PipelineError
from tidegate.operators.kit.partials import Partial
from tidegate.operators.kit.spans import Numbers, Spans, column, numbers, valid
from tidegate.pipeline.window import EventTime

_COUNT, _REAL = pa.int64(), pa.float64()


@dataclass(frozen=True, slots=True)
class Count(Partial):
    """Number of rows."""

    parts = {"count": _COUNT}

    def sql(self) -> list[Column]:
        return [F.count(F.lit(1))]

    def merge(self, columns: Sequence[pa.Array], spans: Spans) -> list[pa.Array]:
        return [column(_added(columns[0], spans), _COUNT)]


@dataclass(frozen=True, slots=True)
class Sum(Partial):
    """Sum of the values that are not null, null when there are none; as bigint, double or decimal."""

    of: str
    parts = {"sum": None}

    def sql(self) -> list[Column]:
        return [F.sum(named(self.of))]

    def merge(self, columns: Sequence[pa.Array], spans: Spans) -> list[pa.Array]:
        (values,) = columns
        if pa.types.is_decimal(self.output):
            about = _added(values.cast(_REAL), spans)
            self._refuse(np.abs(about) >= 10.0 ** (self.output.precision - self.output.scale))
            return [spans.fold("sum", values).cast(self.output)]
        known, total = spans.reduce(np.logical_or, valid(values)), _added(values, spans)
        if pa.types.is_integer(self.output):
            # A sum that wrapped around is off by 2**64, far more than the rounding of the other one.
            about = spans.reduce(np.add, numbers(values).astype(np.float64))
            self._refuse(np.abs(total.astype(np.float64) - about) > 2.0**62)
        return [column(total, self.output, known)]

    def _refuse(self, beyond: Numbers) -> None:
        if beyond.any():
            raise PipelineError(
                f"{self.name} = sum({self.of}) overflows {self.output}; "
                f"sum a column of a wider type, e.g. with_column({self.of!r}, 'cast({self.of} as double)')"
            )


@dataclass(frozen=True, slots=True)
class Extreme(Partial):
    """Smallest or largest value; a NaN is above all numbers, as in Spark."""

    of: str
    largest: bool

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        return (self._field("max" if self.largest else "min", self.output),)

    def sql(self) -> list[Column]:
        return [F.max(named(self.of)) if self.largest else F.min(named(self.of))]

    def merge(self, columns: Sequence[pa.Array], spans: Spans) -> list[pa.Array]:
        (values,) = columns
        if not pa.types.is_primitive(self.output):
            return [spans.fold("max" if self.largest else "min", values)]
        function: np.ufunc
        if pa.types.is_floating(self.output):
            # fmin passes over NaN, which stands for null too.
            function, null = (np.maximum, -np.inf) if self.largest else (np.fmin, np.nan)
        else:
            limits = np.iinfo(numbers(values[:0]).dtype)
            function, null = (np.maximum, limits.min) if self.largest else (np.minimum, limits.max)
        found = spans.reduce(function, numbers(values, null))
        return [column(found, self.output, spans.reduce(np.logical_or, valid(values)))]


@dataclass(frozen=True, slots=True)
class Mean(Partial):
    """Arithmetic mean, as double."""

    of: str
    parts = {"count": _COUNT, "sum": _REAL}

    def sql(self) -> list[Column]:
        value = named(self.of).cast("double")
        return [F.count(value), F.sum(value)]

    def merge(self, columns: Sequence[pa.Array], spans: Spans) -> list[pa.Array]:
        count, total = (_added(part, spans) for part in columns)
        return [column(count, _COUNT), column(total, _REAL, count > 0)]

    def finish(self, columns: Sequence[pa.Array]) -> pa.Array:
        count, total = map(numbers, columns)
        return column(total / np.maximum(count, 1), _REAL, count > 0)


@dataclass(frozen=True, slots=True)
class Variance(Partial):
    """Sample variance, as double; null for fewer than two values."""

    of: str
    parts = {"count": _COUNT, "mean": _REAL, "m2": _REAL}

    def sql(self) -> list[Column]:
        value = named(self.of).cast("double")
        return [F.count(value), F.avg(value), F.var_pop(value) * F.count(value)]

    def merge(self, columns: Sequence[pa.Array], spans: Spans) -> list[pa.Array]:
        """Chan, Golub and LeVeque's formula for any number of parts at once."""
        count, mean, m2 = map(numbers, columns)
        total = spans.reduce(np.add, count)
        if not spans.single:
            with np.errstate(all="ignore"):
                centre = spans.reduce(np.add, count * mean) / np.maximum(total, 1)
                apart = np.where(count > 0, mean - centre[spans.ids], 0.0)
                mean, m2 = centre, spans.reduce(np.add, m2 + count * apart * apart)
        known = total > 0
        return [column(total, _COUNT), column(mean, _REAL, known), column(m2, _REAL, known)]

    def finish(self, columns: Sequence[pa.Array]) -> pa.Array:
        count, _, m2 = map(numbers, columns)
        return column(m2 / np.maximum(count - 1, 1), _REAL, count > 1)


@dataclass(frozen=True, slots=True)
class Edge(Partial):
    """Value of the earliest or latest event, null if that is its value.

    Of several at one time, first is the least value and last the greatest; a null is below all values.
    """

    of: str
    time: EventTime
    latest: bool
    parts = {"time": _COUNT, "value": None}

    def sql(self) -> list[Column]:
        time = self.time.micros()
        event = F.when(time.isNotNull(), F.struct(time.alias("time"), named(self.of).alias("value")))
        edge = F.max(event) if self.latest else F.min(event)
        return [edge.getField("time"), edge.getField("value")]

    def merge(self, columns: Sequence[pa.Array], spans: Spans) -> list[pa.Array]:
        times, values = columns
        if spans.single:
            return [times, values]
        limits = np.iinfo(np.int64)
        micros = numbers(times, int(limits.min if self.latest else limits.max))
        edge = spans.reduce(np.maximum if self.latest else np.minimum, micros)
        ids = spans.ids
        rows = np.flatnonzero((micros == edge[ids]) & valid(times))
        rows = self._untied(rows, ids[rows], values)
        pick = np.full(len(edge), -1, np.int64)
        pick[ids[rows]] = rows
        picked = pa.array(pick, mask=pick < 0)
        return [times.take(picked), values.take(picked)]

    def _untied(self, rows: Numbers, ids: Numbers, values: pa.Array) -> Numbers:
        """Of rows that share a span, the one with the least or greatest value."""
        shared = Spans.of(ids)
        if shared.single:
            return rows
        tied = values.take(pa.array(rows))
        # Arrow puts a NaN after the numbers, as Spark does, but a null last.
        table = pa.table({"span": pa.array(ids), "known": tied.is_valid(), "value": tied})
        order = pc.sort_indices(table, [(name, "ascending") for name in table.column_names])
        ends = np.append(shared.starts[1:], shared.rows) - 1 if self.latest else shared.starts
        return np.asarray(rows[order.to_numpy()[ends]])


def named(name: str) -> Column:
    """A column of the input, whatever characters its name has."""
    return F.col(f"`{name}`")


def _added(values: pa.Array, spans: Spans) -> Numbers:
    return spans.reduce(np.add, numbers(values))
