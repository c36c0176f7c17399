"""Durations as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from tidegate.errors import DurationError

_UNITS = {
    "ms": 0.001,
    "millisecond": 0.001,
    "milliseconds": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "days": 86400.0,
}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def seconds(text: str | timedelta) -> float:
    """The length of a duration in seconds.

    >>> seconds("250 ms"), seconds("4 seconds"), seconds("1.5h")
    (0.25, 4.0, 5400.0)
    >>> seconds("4 lightyears")
    Traceback (most recent call last):
    tidegate.errors.DurationError: '4 lightyears' is not a duration; write it like '4 seconds' or '250 ms'
    """
    if isinstance(text, timedelta):
        return text.total_seconds()
    match = _PATTERN.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise DurationError(f"{text!r} is not a duration; write it like '4 seconds' or '250 ms'")
    return round(float(match[1]) * _UNITS[match[2].lower()], 6)
