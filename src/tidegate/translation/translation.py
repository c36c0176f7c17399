"""A plan as Spark DataFrames, checked by Spark's analyser step by step."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, singledispatch
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from tidegate.errors import PipelineError, SinkError
from tidegate.operators.kit.event_time import EventTime
from tidegate.operators.kit.input import Input
from tidegate.operators.kit.windows import late
from tidegate.operators.operator import LEFT, RIGHT, SIDE, Operator
from tidegate.pipeline import step as steps
from tidegate.pipeline.plan import Plan
from tidegate.pipeline.step import Expression, SinkStep, SourceStep, Step
from tidegate.sinks.foreach_batch import ForEachBatch
from tidegate.sinks.sink import SinkWriter
from tidegate.sources.source import RAW, REASON, Seen
from tidegate.spark import row_size
from tidegate.spark.frames import compute
from tidegate.spark.reasons import reason
from tidegate.state.table.table import StateTable
from tidegate.state.task.assignment import Assignment
from tidegate.translation.event_time import event_time
from tidegate.translation.handover import (
    handover,
    is_united,
    must_be_kept,
    numbered_sources,
    only_reader,
    paired,
    reads,
)
from tidegate.translation.keyed import applied, both, operator_of, probed

if TYPE_CHECKING:
    import pyarrow as pa

_TAG = "_tidegate_stream"


class Translation:
    """A plan in one Spark session."""

    def __init__(
        self, plan: Plan, spark: SparkSession, *, parallelism: int, first_rows: int | None, groups: int
    ) -> None:
        self._plan = plan
        self._spark = spark
        self._groups = groups
        self._handover = handover(plan)
        self.sources = numbered_sources(plan)
        """In the order in which Spark numbers them."""
        self.operators: dict[Step, Operator] = {}
        """The steps that keep state, at work."""
        self._frames: dict[Step, DataFrame] = {}
        for source in plan.sources:
            load = partial(source.source.load, spark, parallelism=parallelism, first_rows=first_rows)
            self._frames[source] = _checked(source, partial(_observed, source, load))
        self._probe = dict(self._frames)
        self._event_times: dict[Step, EventTime | None] = {}
        self._for_python: list[StructType] = []
        # What comes after the handover is only analysed here: it runs on each batch.
        for step in plan.steps:
            if not isinstance(step, SinkStep):
                self._analyse(step)
        self._narrowed: set[Step] = set()
        for step in self._handover:
            reader = only_reader(plan, step)
            if reader is None:
                self._frames[step] = self._probe[step]
            else:
                self._frames[step] = self.operators[reader].narrow(self._probe[step])
                self._narrowed.add(reader)

    @property
    def tables(self) -> tuple[StateTable, ...]:
        """All state tables of the plan."""
        return tuple(table for operator in self.operators.values() for table in operator.tables)

    @property
    def meaning(self) -> dict[str, dict[str, str]]:
        """What the state of each step stands for."""
        return {step.name: step.meaning() for step in self.operators}

    @property
    def needs_a_full_read(self) -> bool:
        """Whether what is observed of a source would be wrong otherwise: a user's function may read less."""
        return any(isinstance(step.sink, ForEachBatch) for step in self._plan.sinks) and not all(
            step.source.countable for step in self._plan.sources
        )

    @property
    def read_more_than_once(self) -> bool:
        """Whether a batch's rows are worth keeping until its jobs have run."""
        return self.needs_a_full_read or reads(self._plan) > 1

    @property
    def settings(self) -> dict[str, str]:
        """What Spark is to be set to for the streaming query."""
        if any(isinstance(step.sink, ForEachBatch) for step in self._plan.sinks):
            return {}  # A user's function may do anything with the rows.
        frames = [self._probe[step.inputs[0]] for step in self._plan.sinks]
        schemas = [*self._for_python, *(frame.schema for frame in frames)]
        return row_size.settings(self._spark, schemas, frames)

    def check(self, writers: Mapping[SinkStep, SinkWriter]) -> None:
        """Raise a PipelineError for the first sink that cannot take the columns it is to get."""
        for step, writer in writers.items():
            frame = _readable(step.inputs[0], self._probe[step.inputs[0]])
            _checked(step, partial(_passing, writer, frame))

    def stream(self) -> DataFrame:
        """The streaming DataFrame whose batches `outputs` takes."""
        frames = [self._frames[step] for step in self._handover]
        if len(frames) == 1:
            return frames[0]
        tagged = [
            frame.select(
                F.lit(tag).alias(_TAG),
                *(
                    F.struct("*").alias(_row(other))
                    if other == tag
                    else F.lit(None).cast(f.schema).alias(_row(other))
                    for other, f in enumerate(frames)
                ),
            )
            for tag, frame in enumerate(frames)
        ]
        stream = tagged[0]
        for frame in tagged[1:]:
            stream = stream.union(frame)
        return stream

    @contextmanager
    def outputs(self, batch: DataFrame, assignment: Assignment | None) -> Iterator[dict[SinkStep, DataFrame]]:
        """The rows of a batch for each sink. What several steps read of a keyed step is kept in the block."""
        frames = self._handed_over(batch)
        kept: list[DataFrame] = []
        try:
            for step in self._plan.steps:
                if isinstance(step, SinkStep):
                    continue
                self._build(step, frames, batch, assignment)
                if step in self.operators and must_be_kept(self._plan, step):
                    frames[step] = frames[step].persist()
                    kept.append(frames[step])
                    compute(frames[step])
            yield {sink: _readable(sink.inputs[0], frames[sink.inputs[0]]) for sink in self._plan.sinks}
        finally:
            for frame in kept:
                frame.unpersist()

    def unreadable(self, batch: DataFrame) -> dict[SourceStep, DataFrame]:
        """The rows of a batch that could not be read, as (reason, raw), for each fallible source."""
        frames = self._handed_over(batch)
        return {
            step: frames[step]
            .where(f"{REASON} is not null")
            .select(F.col(REASON).alias("reason"), F.col(RAW).alias("raw"))
            for step in self._plan.sources
            if step.source.fallible
        }

    def _analyse(self, step: Step) -> None:
        """Have Spark check a step on streaming frames."""
        if step not in self._probe:
            build = self._keyed_probe if step.keyed else self._plain_probe
            self._probe[step] = _checked(step, partial(build, step))
        schema = _readable(step, self._probe[step]).schema
        self._event_times[step] = event_time(step, schema, self._event_times)

    def _plain_probe(self, step: Step) -> DataFrame:
        inputs = [_readable(above, self._probe[above]) for above in step.inputs]
        if isinstance(step, steps.MapArrow):
            self._for_python.append(inputs[0].schema)
        return inputs[0] if isinstance(step, steps.Late | steps.KeyBy) else _apply(step, inputs)

    def _keyed_probe(self, step: Step) -> DataFrame:
        if isinstance(step, steps.KeyBy):
            return self._plain_probe(step)
        inputs = [
            Input(_readable(above, self._probe[above]).schema, _keys(step, side), self._event_times[above])
            for side, above in enumerate(step.inputs)
        ]
        self.operators[step] = operator_of(step, inputs, groups=self._groups)
        frames = [_readable(above, self._probe[above]) for above in step.inputs]
        arranged, left = probed(self.operators[step], frames[0] if len(frames) == 1 else both(*frames))
        self._for_python.append(arranged.schema)
        return left

    def _build(
        self, step: Step, frames: dict[Step, DataFrame], batch: DataFrame, assignment: Assignment | None
    ) -> None:
        """Add the frame of a step in one batch, unless the streaming query has done it."""
        if step in frames or not all(above in frames for above in step.inputs) or not step.inputs:
            return
        inputs = [_readable(above, frames[above]) for above in step.inputs]
        if step in self.operators:
            assert assignment is not None
            operator = self.operators[step]
            rows = inputs[0] if len(inputs) == 1 else self._pair(step, inputs, batch)
            rows = rows if step in self._narrowed else operator.narrow(rows)
            marked = is_united(self._plan, step)
            frames[step] = _checked(step, partial(applied, operator, rows, assignment, marked=marked))
        elif isinstance(step, steps.Late):
            assert assignment is not None
            frames[step] = self._late(step, inputs[0], assignment.time.closed)
        else:
            build = partial(_apply, step, inputs)
            frames[step] = inputs[0] if isinstance(step, steps.KeyBy) else _checked(step, build)

    def _pair(self, step: Step, inputs: list[DataFrame], batch: DataFrame) -> DataFrame:
        """The two inputs of a step as one frame; in one pass where the batch holds both side by side."""
        sides = paired(self._plan, step)
        if sides is None:
            return both(*inputs)
        left, right = (self._handover.index(side) for side in sides)
        tag = F.col(_TAG)
        return batch.where(tag.isin(left, right)).select(
            F.when(tag == left, 0).otherwise(1).alias(SIDE),
            F.col(_row(left)).alias(LEFT),
            F.col(_row(right)).alias(RIGHT),
        )

    def _late(self, step: steps.Late, rows: DataFrame, closed: int | None) -> DataFrame:
        at = self._event_times[step.inputs[0]]
        window = step.of.window if isinstance(step.of, steps.Aggregate | steps.WindowJoin) else None
        assert at is not None
        assert window is not None
        # Without a watermark only rows without a time are late: no window will ever hold them.
        return rows.where(at.micros().isNull() if closed is None else late(window, at, closed))

    def _handed_over(self, batch: DataFrame) -> dict[Step, DataFrame]:
        if len(self._handover) == 1:
            return {self._handover[0]: batch}
        return {
            step: batch.where(F.col(_TAG) == tag).select(f"{_row(tag)}.*")
            for tag, step in enumerate(self._handover)
        }


def _keys(step: Step, side: int) -> tuple[str, ...]:
    """The key columns of one input of a keyed step."""
    if isinstance(step, steps.WindowJoin | steps.IntervalJoin):
        return tuple(pair[side] for pair in step.on)
    above = step.inputs[side]
    return above.columns if isinstance(above, steps.KeyBy) else ()


def _row(tag: int) -> str:
    return f"_tidegate_row_{tag}"


def _readable(step: Step, frame: DataFrame) -> DataFrame:
    if isinstance(step, SourceStep) and step.source.fallible and REASON in frame.columns:
        return frame.where(f"{REASON} is null").drop(RAW, REASON)
    return frame


def _observed(step: SourceStep, load: Callable[[], DataFrame]) -> DataFrame:
    """See what enters; the early quantiles of event time become the late ones of latency."""
    frame = load()
    _check_event_time(step, frame)
    if step.source.countable:
        return frame
    measures = [F.count(F.lit(1)).alias("rows")]
    if step.source.fallible:
        measures.append(F.count(REASON).alias("unreadable"))
    if step.source.event_time is not None:
        micros = F.unix_micros(F.col(step.source.event_time))
        measures.append(F.max(micros).alias("newest"))
        measures.append(F.percentile_approx(micros, [0.01, 0.5], 1000).alias("quantiles"))
    return frame.observe(step.name, *measures)


def seen(step: SourceStep, start: Any, end: Any, observed: Mapping[str, Mapping[str, Any]]) -> Seen:
    """What the batch from `start` to `end` saw of a source."""
    if step.source.countable:
        return step.source.seen(start, end)
    found = observed.get(step.name, {})
    oldest, middle = found.get("quantiles") or (None, None)
    return Seen(found.get("rows") or 0, found.get("unreadable") or 0, found.get("newest"), oldest, middle)


def _check_event_time(step: SourceStep, frame: DataFrame) -> None:
    name = step.source.event_time
    if name is None:
        return
    if name not in frame.columns:
        raise PipelineError(f"event_time={name!r} is not among its columns {frame.columns}")
    kind = frame.schema[name].dataType
    if not isinstance(kind, TimestampType):
        raise PipelineError(f"event_time={name!r} is a {kind.simpleString()}; it must be a timestamp")


def _checked(step: Step, build: Callable[[], DataFrame]) -> DataFrame:
    """Build a DataFrame; what Spark finds wrong with it is told with the step and its line."""
    try:
        return build()
    except PipelineError as error:
        raise PipelineError(error.problem, step=step.name, where=step.where) from None
    except (SinkError, PySparkException) as error:
        raise PipelineError(reason(error), step=step.name, where=step.where) from None
    except Exception as error:
        raise PipelineError(f"{type(error).__name__}: {error}", step=step.name, where=step.where) from error


def _passing(writer: SinkWriter, frame: DataFrame) -> DataFrame:
    writer.check(frame)
    return frame


def _column(frame: DataFrame, expression: Expression) -> Column:
    if isinstance(expression, str):
        return F.expr(expression)
    column = expression(frame)
    if not isinstance(column, Column):
        raise PipelineError(f"the function must return a Column, not {type(column).__name__}")
    return column


@singledispatch
def _apply(step: Step, inputs: list[DataFrame]) -> DataFrame:
    raise NotImplementedError(step.kind)


@_apply.register
def _(step: steps.Select, inputs: list[DataFrame]) -> DataFrame:
    frame = inputs[0]
    plain = [frame[c] if c == "*" else _column(frame, c) for c in step.columns]
    return frame.select(*plain, *(_column(frame, value).alias(name) for name, value in step.named.items()))


@_apply.register
def _(step: steps.Filter, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].where(_column(inputs[0], step.condition))


@_apply.register
def _(step: steps.WithColumn, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].withColumn(step.column, _column(inputs[0], step.value))


@_apply.register
def _(step: steps.Drop, inputs: list[DataFrame]) -> DataFrame:
    for column in step.columns:
        if column not in inputs[0].columns:
            raise PipelineError(f"there is no column {column!r} to drop among {inputs[0].columns}")
    return inputs[0].drop(*step.columns)


@_apply.register
def _(step: steps.Union, inputs: list[DataFrame]) -> DataFrame:
    frame = inputs[0]
    for other in inputs[1:]:
        frame = frame.unionByName(other)
    return frame


@_apply.register
def _(step: steps.FlatMap, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].withColumn(step.column, F.explode(_column(inputs[0], step.array)))


@_apply.register
def _(step: steps.Branch, inputs: list[DataFrame]) -> DataFrame:
    frame = inputs[0]
    # A condition that is null is not true, so it must not hide the row from the branches after it.
    chosen = [F.coalesce(_column(frame, condition), F.lit(False)) for condition in step.conditions]
    for earlier in chosen[: step.index]:
        frame = frame.where(~earlier)
    return frame if step.index == len(chosen) else frame.where(chosen[step.index])


@_apply.register
def _(step: steps.MapArrow, inputs: list[DataFrame]) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    spark_schema = (
        StructType.fromDDL(step.schema) if isinstance(step.schema, str) else from_arrow_schema(step.schema)
    )
    assert isinstance(spark_schema, StructType)
    place = f"{step.name} (declared at {step.where})"
    return inputs[0].mapInArrow(
        _conforming(step.function, to_arrow_schema(spark_schema, timezone="UTC"), place), spark_schema
    )


def _conforming(
    function: steps.ArrowFunction, schema: pa.Schema, place: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The user's function over the batches of a task, its results cast to the declared schema."""
    file = getattr(getattr(function, "__code__", None), "co_filename", None)

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            try:
                result = function(batch)
                table = pa.Table.from_batches([result]) if isinstance(result, pa.RecordBatch) else result
                yield from table.select(schema.names).cast(schema).to_batches()
            except Exception as error:
                lines = [
                    frame.lineno
                    for frame in traceback.extract_tb(error.__traceback__)
                    if frame.filename == file
                ]
                at = f", in line {lines[-1]}" if lines else ""
                raise RuntimeError(f"{place}{at}: {type(error).__name__}: {error}") from error

    return apply
