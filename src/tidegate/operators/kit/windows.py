"""Windows of event time as arithmetic on microseconds, in Spark SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.pipeline.event_time import EventTime
from tidegate.pipeline.window import Session, Sliding, Tumbling, Window

if TYPE_CHECKING:
    from pyspark.sql import Column


def micros(seconds: float) -> int:
    """A length in microseconds, at least one."""
    return max(1, round(seconds * 1e6))


def lengths(window: Tumbling | Sliding) -> tuple[int, int]:
    """(size, every) in microseconds; `every` divides `size`.

    >>> lengths(Sliding(10, 2))
    (10000000, 2000000)
    """
    if isinstance(window, Tumbling):
        return micros(window.size), micros(window.size)
    every = micros(window.every)
    return every * round(window.size / window.every), every


def pane(time: Column, every: int) -> Column:
    """The start of the stretch of `every` microseconds that holds a time; before 1970 too."""
    from pyspark.sql import functions as F

    return time - F.pmod(time, F.lit(every))


def late(window: Window, event_time: EventTime, closed: int) -> Column:
    """Whether a row comes too late: all its windows had ended by `closed`, or it has no event time."""
    time = event_time.micros()
    if isinstance(window, Session):
        too_old = time + micros(window.gap) < closed
    elif isinstance(window, Tumbling | Sliding):
        size, every = lengths(window)
        too_old = pane(time, every) + size <= closed
    else:
        raise TypeError(f"no such window: {window}")
    return time.isNull() | too_old
