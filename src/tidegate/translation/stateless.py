"""Steps without state, on Spark DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import singledispatch

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.errors import PipelineError
from tidegate.operators.kit.user_function import conformed, errors_of, spark_schema
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import Expression, Step


@singledispatch
def apply(step: Step, inputs: list[DataFrame]) -> DataFrame:
    """The rows that leave a step without state."""
    raise NotImplementedError(step.kind)


@apply.register
def _(step: steps.KeyBy | steps.Late, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0]


@apply.register
def _(step: steps.Select, inputs: list[DataFrame]) -> DataFrame:
    frame = inputs[0]
    plain = [frame[c] if c == "*" else _column(frame, c) for c in step.columns]
    return frame.select(*plain, *(_column(frame, value).alias(name) for name, value in step.named.items()))


@apply.register
def _(step: steps.Filter, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].where(_column(inputs[0], step.condition))


@apply.register
def _(step: steps.WithColumn, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].withColumn(step.column, _column(inputs[0], step.value))


@apply.register
def _(step: steps.Drop, inputs: list[DataFrame]) -> DataFrame:
    for column in step.columns:
        if column not in inputs[0].columns:
            raise PipelineError(f"there is no column {column!r} to drop among {inputs[0].columns}")
    return inputs[0].drop(*step.columns)


@apply.register
def _(step: steps.Union, inputs: list[DataFrame]) -> DataFrame:
    frame = inputs[0]
    for other in inputs[1:]:
        frame = frame.unionByName(other)
    return frame


@apply.register
def _(step: steps.FlatMap, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].withColumn(step.column, F.explode(_column(inputs[0], step.array)))


@apply.register
def _(step: steps.Branch, inputs: list[DataFrame]) -> DataFrame:
    frame = inputs[0]
    # A condition that is null is not true, so it must not hide the row from the branches after it.
    chosen = [F.coalesce(_column(frame, condition), F.lit(False)) for condition in step.conditions]
    for earlier in chosen[: step.index]:
        frame = frame.where(~earlier)
    return frame if step.index == len(chosen) else frame.where(chosen[step.index])


@apply.register
def _(step: steps.MapArrow, inputs: list[DataFrame]) -> DataFrame:
    schema = spark_schema(step.schema)
    place = f"{step.name} (declared at {step.where})"
    return inputs[0].mapInArrow(
        _conforming(step.function, to_arrow_schema(schema, timezone="UTC"), place), schema
    )


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
