"""What is seen of the rows that enter: how many, which could not be read, and their event times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from tidegate.errors import PipelineError
from tidegate.pipeline.step import SourceStep, Step
from tidegate.sources.columns import missing
from tidegate.sources.source import RAW, REASON, Seen
from tidegate.units import seconds

_AHEAD = "the event time "
"""What the reason of a row with a time too far ahead begins with."""


def readable(step: Step, frame: DataFrame) -> DataFrame:
    """The rows of a step, without those that its source could not read."""
    if step.fallible and REASON in frame.columns:
        return frame.where(f"{REASON} is null").drop(RAW, REASON)
    return frame


def observed(step: SourceStep, load: Callable[[], DataFrame], ahead: str | None) -> DataFrame:
    """See what enters; the early quantiles of event time become the late ones of latency."""
    frame, event_time = load(), step.source.event_time
    if event_time is not None:
        if event_time not in frame.columns:
            raise PipelineError(f"event_time={event_time!r}: {missing(frame.columns, event_time)}")
        kind = frame.schema[event_time].dataType
        if not isinstance(kind, TimestampType):
            raise PipelineError(
                f"event_time={event_time!r} is a {kind.simpleString()}; it must be a timestamp"
            )
    if step.source.countable:
        return frame
    measures = [F.count(F.lit(1)).alias("rows")]
    if event_time is not None:
        frame = _times_checked(frame, event_time, ahead)
        micros = F.when(F.col(REASON).isNull(), F.unix_micros(F.col(event_time)))
        measures.append(F.max(micros).alias("newest"))
        measures.append(F.percentile_approx(micros, [0.01, 0.5], 1000).alias("quantiles"))
        measures.append(F.count_if(F.col(REASON).startswith(_AHEAD)).alias("ahead"))
    if step.fallible:
        measures.append(F.count(REASON).alias("unreadable"))
    return frame.observe(step.name, *measures)


def _times_checked(frame: DataFrame, event_time: str, ahead: str | None) -> DataFrame:
    """With RAW and REASON, also for rows with an event time that is more than `ahead` of the batch.

    In a streaming query the current time is that at which the batch was planned, also when it runs again.
    """
    columns = [F.col(f"`{name}`") for name in frame.columns if name not in (RAW, REASON)]
    raw, why = (
        F.col(name) if name in frame.columns else F.lit(None).cast("string") for name in (RAW, REASON)
    )
    if ahead is not None:
        time, now = F.col(f"`{event_time}`"), F.current_timestamp()
        too_far = why.isNull() & (F.unix_micros(time) > F.unix_micros(now) + round(seconds(ahead) * 1e6))
        text = (time.cast("string"), F.lit(f" is more than {ahead} ahead of the batch, planned at "))
        why = F.when(too_far, F.concat(F.lit(_AHEAD), *text, now.cast("string"))).otherwise(why)
        raw = F.when(too_far, F.to_json(F.struct(*columns))).otherwise(raw)
    return frame.select(*columns, raw.alias(RAW), why.alias(REASON))


def seen(step: SourceStep, start: Any, end: Any, observed: Mapping[str, Mapping[str, Any]]) -> Seen:
    """What the batch from `start` to `end` saw of a source."""
    if step.source.countable:
        return step.source.seen(start, end)
    found = observed.get(step.name, {})
    oldest, middle = found.get("quantiles") or (None, None)
    rows, unreadable, ahead = (found.get(name) or 0 for name in ("rows", "unreadable", "ahead"))
    return Seen(rows, unreadable, found.get("newest"), oldest, middle, ahead)
