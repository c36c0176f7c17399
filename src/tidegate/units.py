"""Durations, sizes and bandwidths as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

from tidegate.errors import DurationError, SizeError

_SECONDS = {
    name: length
    for length, names in {
        0.001: ("ms", "millisecond", "milliseconds"),
        1.0: ("s", "sec", "second", "seconds"),
        60.0: ("m", "min", "minute", "minutes"),
        3600.0: ("h", "hour", "hours"),
        86400.0: ("d", "day", "days"),
    }.items()
    for name in names
}
_BYTES: dict[str, int] = {
    "": 1,
    "b": 1,
    **{unit: 1024**power for power, unit in enumerate("kmgt", 1)},
    **{f"{unit}i{b}": 1024**power for power, unit in enumerate("kmgt", 1) for b in ("", "b")},
    **{f"{unit}b": 1000**power for power, unit in enumerate("kmgt", 1)},
}
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


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
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in _SECONDS:
        raise DurationError(f"{text!r} is not a duration; write it like '4 seconds' or '250 ms'")
    return round(float(match[1]) * _SECONDS[match[2].lower()], 6)


def size(text: str) -> int:
    """A size in bytes. A letter alone counts in 1024s, as in Java and Spark, and so does KiB; KB in 1000s.

    >>> size("512"), size("100m"), size("2 GiB"), size("200 MB")
    (512, 104857600, 2147483648, 200000000)
    >>> size("2 gallons")
    Traceback (most recent call last):
    tidegate.errors.SizeError: '2 gallons' is not a size; write it like '512m', '2 GiB' or '200 MB'
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _BYTES:
        raise SizeError(f"{text!r} is not a size; write it like '512m', '2 GiB' or '200 MB'")
    return round(float(match[1]) * _BYTES[match[2].lower()])


def bandwidth(text: str) -> int:
    """A bandwidth in bits per second.

    >>> bandwidth("100 Mbit"), bandwidth("1.5 Gbit")
    (100000000, 1500000000)
    >>> bandwidth("fast")
    Traceback (most recent call last):
    tidegate.errors.SizeError: 'fast' is not a bandwidth; write it like '100 Mbit' or '1 Gbit' (per second)
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _BITS:
        raise SizeError(f"{text!r} is not a bandwidth; write it like '100 Mbit' or '1 Gbit' (per second)")
    return round(float(match[1]) * _BITS[match[2].lower()])
