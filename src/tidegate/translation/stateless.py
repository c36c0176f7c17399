"""Steps without state, on Spark DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.errors import PipelineError
from tidegate.operators.kit.user_function import conformed, errors_of, spark_schema
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Expression, Step
from tidegate.sources.columns import missing


def apply(step: Step, inputs: list[DataFrame]) -> DataFrame:
    """The rows that leave a step without state."""
    frame = inputs[0]
    match step:
        case steps.KeyBy() | steps.Late():
            return frame
        case steps.Select():
            plain = [frame[c] if c == "*" else _column(frame, c) for c in step.columns]
            named = (_column(frame, value).alias(name) for name, value in step.named.items())
            return frame.select(*plain, *named)
        case steps.Filter():
            return frame.where(_column(frame, step.condition))
        case steps.WithColumn():
            return frame.withColumn(step.column, _column(frame, step.value))
        case steps.Drop():
            for column in step.columns:
                if column not in frame.columns:
                    raise PipelineError(missing(frame.columns, column))
            return frame.drop(*step.columns)
        case steps.Union():
            return reduce(DataFrame.unionByName, inputs)
        case steps.FlatMap():
            return frame.withColumn(step.column, F.explode(_column(frame, step.array)))
        case steps.Branch():
            return _branch(step, frame)
        case steps.MapArrow():
            schema = spark_schema(step.schema)
            place = f"{step.name} (declared at {step.where})"
            run = _conforming(step.function, to_arrow_schema(schema, timezone="UTC"), place)
            return frame.mapInArrow(run, schema)
    raise NotImplementedError(step.kind)


def _branch(step: steps.Branch, frame: DataFrame) -> DataFrame:
    # A condition that is null is not true, so it must not hide the row from the branches after it.
    chosen = [F.coalesce(_column(frame, condition), F.lit(False)) for condition in step.conditions]
    for earlier in chosen[: step.index]:
        frame = frame.where(~earlier)
    return frame if step.index == len(chosen) else frame.where(chosen[step.index])


def _conforming(
    function: steps.ArrowFunction, schema: pa.Schema, place: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The user's function over the batches of a task, its results cast to the declared schema."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with errors_of(function, place):
                found = conformed(function(batch), schema).to_batches()
            yield from found

    return run


def _column(frame: DataFrame, expression: Expression) -> Column:
    if isinstance(expression, str):
        return F.expr(expression)
    column = expression(frame)
    if not isinstance(column, Column):
        raise PipelineError(f"the function must return a Column, not {type(column).__name__}")
    return column
