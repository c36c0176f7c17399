"""Where the lag is going."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tidegate.run.progress import BatchProgress

_TREND_BATCHES = 10


def lag_slope(history: Sequence[BatchProgress]) -> float | None:
    """Rows per second by which the lag grew over the last batches; None when it cannot be told."""
    recent = [progress for progress in history if progress.lag is not None][-_TREND_BATCHES:]
    if len(recent) < 2:
        return None
    first, last = recent[0], recent[-1]
    elapsed = (last.finished_at - first.finished_at).total_seconds()
    if elapsed <= 0 or first.lag is None or last.lag is None:
        return None
    return (last.lag - first.lag) / elapsed


def trend(history: Sequence[BatchProgress]) -> Literal["grows", "shrinks", "steady", "unknown"]:
    """Where the lag is going. A slope below 2 % of the input rate is noise."""
    slope = lag_slope(history)
    if slope is None:
        return "unknown"
    if abs(slope) <= max(1.0, 0.02 * history[-1].input_rate):
        return "steady"
    return "grows" if slope > 0 else "shrinks"
