"""Where each step's rows carry their event time, followed from the sources through the plan."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql.types import StructType, TimestampType

from tidegate.operators.kit.event_time import EventTime
from tidegate.operators.kit.windows import event_time_of
from tidegate.pipeline import step as steps
from tidegate.pipeline.step import SourceStep, Step


def event_time(step: Step, schema: StructType, known: Mapping[Step, EventTime | None]) -> EventTime | None:
    """The event time of the rows that leave a step, or None. `known` has that of its inputs."""
    if isinstance(step, SourceStep):
        found = EventTime(step.source.event_time) if step.source.event_time else None
    elif isinstance(step, steps.Aggregate):
        final = step.emit == "append"
        found = event_time_of(step.window) if step.window is not None and final else None
    elif isinstance(step, steps.WindowJoin):
        found = event_time_of(step.window)
    elif isinstance(step, steps.IntervalJoin | steps.TopN):
        # An interval join holds rows back for longer than a window after it would wait.
        found = None
    elif isinstance(step, steps.Union):
        times = {known[above] for above in step.inputs}
        found = times.pop() if len(times) == 1 else None
    else:
        found = known[step.inputs[0]]
    if isinstance(step, steps.Select) and found is not None:
        found = EventTime(_renamed(step, found.column), found.shift)
    if found is None or found.column not in schema.names:
        return None
    return found if isinstance(schema[found.column].dataType, TimestampType) else None


def _renamed(step: steps.Select, column: str) -> str:
    """The name that a column has after a select; its own when it is not plainly renamed."""
    for name, value in step.named.items():
        if value == column:
            return name
    for value in step.columns:
        match = re.fullmatch(rf"\s*`?{re.escape(column)}`?\s+as\s+`?(\w+)`?\s*", str(value), re.IGNORECASE)
        if match:
            return match[1]
    return column
