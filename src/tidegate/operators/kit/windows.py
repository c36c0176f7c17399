"""Windows of event time as arithmetic on microseconds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate.pipeline.window import (
    END,
    START,
    EventTime,
    Session,
    Sliding,
    Tumbling,
    Window,
    in_micros,
    lengths,
)

_STAMP = pa.timestamp("us", tz="UTC")
BOUNDS = pa.schema({START: _STAMP, END: _STAMP})


def pane(time: Column, every: int) -> Column:
    """The start of the stretch of `every` microseconds that holds a time; before 1970 too."""
    return time - F.pmod(time, F.lit(every))


def late(window: Window, event_time: EventTime, closed: int) -> Column:
    """Whether a row comes too late: all its windows had ended by `closed`, or it has no event time."""
    time = event_time.micros()
    if isinstance(window, Session):
        too_old = time + in_micros(window.gap) < closed
    else:
        assert isinstance(window, Tumbling | Sliding)  # No step takes another window.
        size, every = lengths(window)
        too_old = pane(time, every) + size <= closed
    return time.isNull() | too_old


def stamps(micros: NDArray[np.int64] | pa.Array) -> pa.Array:
    """Microseconds since 1970 as timestamps."""
    return pa.array(micros).view(_STAMP)
