"""A plan as Spark DataFrames, checked by Spark's analyser step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from importlib import import_module
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from tidegate.errors import PipelineError, SinkError, StepError
from tidegate.operators.kit.windows import late
from tidegate.operators.operator import LEFT, RIGHT, SIDE, Input, Operator
from tidegate.pipeline.keyed_step import KeyedStep
from tidegate.pipeline.plan import Plan, updating
from tidegate.pipeline.step import Late, SinkStep, SourceStep, Step
from tidegate.pipeline.window import END, START, EventTime
from tidegate.sinks.sink import SinkWriter
from tidegate.sources.source import RAW, REASON
from tidegate.spark import row_size
from tidegate.spark.frames import compute
from tidegate.spark.reasons import Mistake, mistake, reason
from tidegate.state.table.table import StateTable
from tidegate.state.task.assignment import Assignment
from tidegate.translation import stateless
from tidegate.translation.handover import (
    handover,
    is_united,
    must_be_kept,
    numbered_sources,
    only_reader,
    paired,
    reads,
    shares_stage,
)
from tidegate.translation.keyed import applied, probed
from tidegate.translation.observation import observed, readable

T = TypeVar("T")

_TAG = "_tidegate_stream"


class Translation:
    """A plan in one Spark session."""

    def __init__(
        self,
        plan: Plan,
        spark: SparkSession,
        *,
        parallelism: int,
        first_rows: int | None,
        groups: int,
        ahead: str | None = None,
    ) -> None:
        self._plan = plan
        self._spark = spark
        self._groups = groups
        self._handover = handover(plan)
        self.sources = numbered_sources(plan)
        """In the order in which Spark numbers them."""
        self.operators: dict[KeyedStep, Operator] = {}
        """The steps that keep state, at work."""
        self._frames: dict[Step, DataFrame] = {}
        for source in plan.sources:
            load = partial(source.source.load, spark, parallelism=parallelism, first_rows=first_rows)
            self._frames[source] = _checked(source, partial(observed, source, load, ahead))
        self._probe = dict(self._frames)
        self._event_times: dict[Step, EventTime | None] = {}
        self._for_python: list[StructType] = []
        # What comes after the handover is only analysed here: it runs on each batch.
        for step in plan.steps:
            if step.role != "sink":
                self._analyse(step)
        self._delays = {step: plan.delay(step) for step in plan.steps}
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
        return self._plan.meaning

    @property
    def needs_a_full_read(self) -> bool:
        """Whether what is observed of a source would be wrong otherwise: a user's function may read less."""
        all_read = all(step.reads_all for step in self._plan.sinks)
        return not all_read and not all(step.source.countable for step in self._plan.sources)

    @property
    def read_more_than_once(self) -> bool:
        """Whether a batch's rows are worth keeping until its jobs have run."""
        return self.needs_a_full_read or reads(self._plan) > 1

    @property
    def settings(self) -> dict[str, str]:
        """What Spark is to be set to for the streaming query."""
        if not all(step.reads_all for step in self._plan.sinks):
            return {}  # A user's function may do anything with the rows.
        frames = [self._probe[step.inputs[0]] for step in self._plan.sinks]
        schemas = [*self._for_python, *(frame.schema for frame in frames)]
        return row_size.settings(self._spark, schemas, frames)

    def check(self, writers: Mapping[SinkStep | SourceStep, SinkWriter]) -> None:
        """Raise a PipelineError for the first sink that cannot take the columns it is to get."""
        for step in self._plan.sinks:
            frame = readable(step.inputs[0], self._probe[step.inputs[0]])
            _checked(step, partial(writers[step].check, frame))
            origin = updating(step)
            if isinstance(origin, KeyedStep):
                key = (*origin.keys(0), *((START, END) if origin.windows else ()))
                _checked(step, partial(writers[step].check_updates, key))

    def stream(self) -> DataFrame:
        """The streaming DataFrame whose batches `outputs` takes."""
        frames = [self._frames[step] for step in self._handover]
        if len(frames) == 1:
            return frames[0]
        return _tagged(frames, _TAG, [_row(tag) for tag in range(len(frames))])

    @contextmanager
    def outputs(
        self, batch: DataFrame, assignment: Assignment | None, hosts: tuple[str, ...] = ()
    ) -> Iterator[dict[SinkStep, DataFrame]]:
        """The rows of a batch for each sink. What several steps read of a keyed step is kept in the block.

        `hosts` are those on which the tasks of each Spark partition should run, if that matters.
        """
        frames = self._handed_over(batch)
        kept: list[DataFrame] = []
        try:
            for step in self._plan.steps:
                if step.role == "sink":
                    continue
                self._build(step, frames, batch, assignment, hosts)
                if step in self.operators and must_be_kept(self._plan, step):
                    frames[step] = frames[step].persist()
                    kept.append(frames[step])
                    compute(frames[step])
            yield {sink: readable(sink.inputs[0], frames[sink.inputs[0]]) for sink in self._plan.sinks}
        finally:
            for frame in kept:
                frame.unpersist()

    @contextmanager
    def attributing_errors(self) -> Iterator[None]:
        """Raise a StepError, with the step and its line, where the user's own code is what fails."""
        try:
            yield
        except Exception as error:
            found = mistake(error)
            if found is None:
                raise
            raise StepError(f"{self._origin(found)}{found.reason}") from error

    def _origin(self, found: Mistake) -> str:
        """The step whose expression failed, where there is just one with that text."""
        wanted = " ".join(found.expression.split())
        steps = [step for step in self._plan.steps if wanted and wanted in step.describe()]
        return f"{steps[0].name} (declared at {steps[0].where}): " if len(steps) == 1 else ""

    def unreadable(self, batch: DataFrame, batch_id: int) -> dict[SourceStep, DataFrame]:
        """The records of a batch that could not be read, for each fallible source, as dead letters."""
        frames = self._handed_over(batch)
        return {
            step: frames[step]
            .where(f"{REASON} is not null")
            .select(
                F.lit(batch_id).alias("batch_id"),
                F.lit(step.name).alias("source"),
                F.col(REASON).alias("reason"),
                F.col(RAW).alias("raw"),
            )
            for step in self._plan.sources
            if step.fallible
        }

    def _analyse(self, step: Step) -> None:
        """Have Spark check a step on streaming frames."""
        if step not in self._probe:
            self._probe[step] = _checked(step, partial(self._probed, step))
        schema = readable(step, self._probe[step]).schema
        times = [field.name for field in schema if isinstance(field.dataType, TimestampType)]
        found = step.event_time(self._event_times)
        if isinstance(step, KeyedStep):
            found = self.operators[step].output_time(found)
        self._event_times[step] = found if found is not None and {*found.columns} <= {*times} else None

    def _probed(self, step: Step) -> DataFrame:
        frames = [readable(above, self._probe[above]) for above in step.inputs]
        if not isinstance(step, KeyedStep):
            if step.runs_python:
                self._for_python.append(frames[0].schema)
            return stateless.apply(step, frames)
        self._check_times(step)
        inputs = [
            Input(frame.schema, step.keys(side), self._event_times[above], self._groups)
            for side, (above, frame) in enumerate(zip(step.inputs, frames, strict=True))
        ]
        operator: Operator = import_module(step.operator).from_step(step, *inputs)
        self.operators[step] = operator
        arranged, left = probed(operator, _one_frame(frames))
        self._for_python.append(arranged.schema)
        return left

    def _check_times(self, step: KeyedStep) -> None:
        """Raise a PipelineError that names the step where the event time that this one needs is lost."""
        if not step.needs_time:
            return
        for above in step.inputs:
            lost = next(
                (each for each in (above, *self._plan.upstream(above)) if self._loses_time(each)), None
            )
            if self._event_times[above] is None and lost is not None:
                raise PipelineError(
                    f"works on event time, and the rows of {lost.name} ({lost.where}) have none; keep the "
                    "timestamp column there, or put this step before it"
                )

    def _loses_time(self, step: Step) -> bool:
        """Whether rows with event time enter, and rows without leave."""
        return self._event_times[step] is None and any(
            self._event_times[above] is not None for above in step.inputs
        )

    def _build(
        self,
        step: Step,
        frames: dict[Step, DataFrame],
        batch: DataFrame,
        assignment: Assignment | None,
        hosts: tuple[str, ...],
    ) -> None:
        """Add the frame of a step in one batch, unless the streaming query has done it."""
        if step in frames or not all(above in frames for above in step.inputs) or not step.inputs:
            return
        inputs = [readable(above, frames[above]) for above in step.inputs]
        if isinstance(step, KeyedStep):
            assert assignment is not None
            operator = self.operators[step]
            pair = self._pair(step, batch)
            rows = _one_frame(inputs) if pair is None else pair
            rows = rows if step in self._narrowed else operator.narrow(rows)
            work = partial(
                applied,
                operator,
                rows,
                assignment,
                hosts,
                in_place=shares_stage(self._plan, step),
                marked=is_united(self._plan, step),
                delay=self._delays[step],
            )
            frames[step] = _checked(step, work)
        elif isinstance(step, Late):
            assert assignment is not None
            closed = assignment.time.delayed(self._delays[step.of]).closed
            frames[step] = self._late(step, inputs[0], closed)
        else:
            frames[step] = _checked(step, partial(stateless.apply, step, inputs))

    def _pair(self, step: Step, batch: DataFrame) -> DataFrame | None:
        """The two inputs of a step in one pass, where the batch holds both side by side."""
        sides = paired(self._plan, step)
        if sides is None:
            return None
        left, right = (self._handover.index(side) for side in sides)
        tag = F.col(_TAG)
        return batch.where(tag.isin(left, right)).select(
            F.when(tag == left, 0).otherwise(1).alias(SIDE),
            F.col(_row(left)).alias(LEFT),
            F.col(_row(right)).alias(RIGHT),
        )

    def _late(self, step: Late, rows: DataFrame, closed: int | None) -> DataFrame:
        at, window = self._event_times[step.inputs[0]], step.of.windows
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


def _one_frame(inputs: list[DataFrame]) -> DataFrame:
    """The inputs of an operator as it takes them."""
    return inputs[0] if len(inputs) == 1 else _tagged(inputs, SIDE, (LEFT, RIGHT))


def _tagged(frames: Sequence[DataFrame], tag: str, rows: Sequence[str]) -> DataFrame:
    """Several frames as one: each row holds in `tag` the number of its frame, and in the column that `rows`
    names for that frame a struct of its columns; those of the others are null."""
    return reduce(
        DataFrame.union,
        (
            frame.select(
                F.lit(number).alias(tag),
                *(
                    (F.struct("*") if other == number else F.lit(None).cast(frames[other].schema)).alias(name)
                    for other, name in enumerate(rows)
                ),
            )
            for number, frame in enumerate(frames)
        ),
    )


def _row(tag: int) -> str:
    return f"_tidegate_row_{tag}"


def _checked(step: Step, build: Callable[[], T]) -> T:
    """Build a DataFrame, or check one; what Spark finds wrong is told with the step and its line."""
    try:
        return build()
    except PipelineError as error:
        raise step.error(error.problem) from None
    except (SinkError, PySparkException) as error:
        raise step.error(reason(error)) from None
    except Exception as error:
        raise step.error(f"{type(error).__name__}: {error}") from error
