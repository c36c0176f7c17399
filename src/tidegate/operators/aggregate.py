"""`aggregate` steps, checked and made into operators: that of all rows so far is here."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from tidegate.batch.time import Time
from tidegate.errors import PipelineError
from tidegate.operators.kit import sketches
from tidegate.operators.kit.functions import Count, Edge, Extreme, Mean, Sum, Variance
from tidegate.operators.kit.grouping import RESERVED, Grouping
from tidegate.operators.kit.keys import numbered, written
from tidegate.operators.kit.partials import PART, Partial, Partials, rank
from tidegate.operators.kit.spans import Spans, ascending
from tidegate.operators.operator import Input, Operator, Result, State
from tidegate.operators.session import SessionAggregate
from tidegate.operators.windowed import WindowAggregate
from tidegate.pipeline import keyed_step as steps
from tidegate.pipeline.agg import AggregateFunction
from tidegate.pipeline.window import END, START, Session, Sliding, Tumbling
from tidegate.sources.columns import missing
from tidegate.state.table.keys import whole
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


def from_step(step: steps.Aggregate, input: Input) -> Operator:
    """The operator of a step. Raises a PipelineError where the step does not fit its input.

    Raises a MissingExtraError where it needs the library of sketches and that is not installed.
    """
    keys = pa.schema([pa.field(key, _arrow(key, _kind(key, input))) for key in input.keys])
    bounds = {START, END} if step.window else set()
    for name, aggregate in step.aggregates.items():
        # Spark takes names that differ in case alone for one.
        if name.lower() in {*bounds, *(key.lower() for key in input.keys)}:
            raise PipelineError(
                f"{name} = {aggregate} has the same name as another output column of the step"
            )
        if name.startswith("_"):
            raise PipelineError(f"{name} = {aggregate}: names that start with '_' are reserved for Tidegate")
    partials = Partials(tuple(_partial(*pair, input) for pair in step.aggregates.items()))
    taken = {*partials.kept.names, *partials.arriving.names, *bounds}
    clash = [key for key in keys.names if key.lower() in taken]
    if clash:
        raise PipelineError(f"the key {clash[0]!r} has the same name as a column of this step; rename it")
    read = {aggregate.column for aggregate in step.aggregates.values() if aggregate.column is not None}
    if input.event_time and any(isinstance(partial, Edge) for partial in partials.each):
        read.update(input.event_time.columns)
    grouped = (step.name, keys, tuple(sorted(read - set(keys.names))), partials)
    window = step.window
    if window is None:
        return RunningAggregate(*grouped)
    if input.event_time is None:
        raise PipelineError(
            f"windows ({window.describe()}) need an event time; give the source event_time='column'"
        )
    if isinstance(window, Tumbling | Sliding):
        return WindowAggregate(*grouped, window, input.event_time, step.mode)
    if not isinstance(window, Session):
        raise PipelineError(f"aggregates do not support windows like {window.describe()}")
    if step.mode != "append":
        raise PipelineError(
            "session windows are emitted when they are final (emit='append'): a session emitted "
            "earlier could not be withdrawn when two sessions merge"
        )
    return SessionAggregate(*grouped, window, input.event_time)


def _kind(column: str, input: Input) -> T.DataType:
    if column not in input.schema.names:
        raise PipelineError(missing(input.schema.names, column))
    if column in RESERVED:
        raise PipelineError(f"a column {column!r} cannot be used here: Tidegate uses that name itself")
    return input.schema[column].dataType


def _arrow(column: str, kind: T.DataType) -> pa.DataType:
    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException:
        raise PipelineError(f"{column!r} is a {kind.simpleString()}, which Arrow does not support") from None


def _partial(name: str, aggregate: AggregateFunction, input: Input) -> Partial:
    function, column = aggregate.function, aggregate.column
    if function == "count" or column is None:
        return Count(name, pa.int64())
    kind = _kind(column, input)
    _check_kind(aggregate, kind, ordered=function in ("min", "max", "first", "last", "approx_distinct"))
    match function:
        case "sum":
            total = pa.float64() if isinstance(kind, T.FractionalType) else pa.int64()
            if isinstance(kind, T.DecimalType):
                total = pa.decimal128(min(38, kind.precision + 10), kind.scale)
            return Sum(name, total, column)
        case "min" | "max":
            return Extreme(name, _arrow(column, kind), column, function == "max")
        case "mean":
            return Mean(name, pa.float64(), column)
        case "variance":
            return Variance(name, pa.float64(), column)
        case "first" | "last":
            if input.event_time is None:
                raise PipelineError(
                    f"{name} = {aggregate} needs an event time; give the source event_time='column'"
                )
            return Edge(name, _arrow(column, kind), column, input.event_time, function == "last")
        case "approx_distinct":
            sketches.require(function)
            return sketches.Distinct(name, pa.int64(), column, kind)
        case "quantile":
            sketches.require(function)
            assert aggregate.share is not None, "agg.quantile takes a share"
            return sketches.Quantile(name, pa.float64(), column, aggregate.share)


def _check_kind(aggregate: AggregateFunction, kind: T.DataType, *, ordered: bool) -> None:
    if not ordered and not isinstance(kind, T.NumericType):
        raise PipelineError(f"{aggregate} needs numbers, but {aggregate.column!r} is a {kind.simpleString()}")
    nested = T.ArrayType | T.MapType | T.StructType | T.VariantType | T.NullType
    if isinstance(kind, nested):
        raise PipelineError(
            f"{aggregate} needs values that can be ordered, but {aggregate.column!r} is a "
            f"{kind.simpleString()}; select the relevant part as a separate column"
        )
    if isinstance(kind, T.StringType) and kind.collation != "UTF8_BINARY":
        raise PipelineError(
            f"{aggregate}: {aggregate.column!r} has the collation {kind.collation}, which state does not "
            "keep; select it with `collate UTF8_BINARY`"
        )
