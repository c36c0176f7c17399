"""What is seen of the rows that enter: how many, which could not be read, and their event times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from tidegate.errors import PipelineError
from tidegate.pipeline.step import SourceStep, Step
from tidegate.sources.source import RAW, REASON, Seen


def readable(step: Step, frame: DataFrame) -> DataFrame:
    """The rows of a step, without those that its source could not read."""
    if step.fallible and REASON in frame.columns:
        return frame.where(f"{REASON} is null").drop(RAW, REASON)
    return frame


def observed(step: SourceStep, load: Callable[[], DataFrame]) -> DataFrame:
    """See what enters; the early quantiles of event time become the late ones of latency."""
    frame, event_time = load(), step.source.event_time
    if event_time is not None:
        if event_time not in frame.columns:
            raise PipelineError(f"event_time={event_time!r} is not among its columns {frame.columns}")
        kind = frame.schema[event_time].dataType
        if not isinstance(kind, TimestampType):
            raise PipelineError(
                f"event_time={event_time!r} is a {kind.simpleString()}; it must be a timestamp"
            )
    if step.source.countable:
        return frame
    measures = [F.count(F.lit(1)).alias("rows")]
    if step.source.fallible:
        measures.append(F.count(REASON).alias("unreadable"))
    if event_time is not None:
        micros = F.unix_micros(F.col(event_time))
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
