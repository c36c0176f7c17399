"""How many rows per second a source sends, over time.

All shapes are straight pieces, so how many rows have been sent by a moment, and when a given row is
sent, are exact and the inverse of each other. Seconds count from the start of the stream.
"""

from __future__ import annotations

import csv
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import DurationError
from tidegate.pipeline.where import refused
from tidegate.sources._curve import Curve
from tidegate.units import seconds as duration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Beyond this, neighbouring rows are closer than a double can tell apart after a day.
FASTEST = 1e9
# A sine in this many straight pieces is never off by more than 0.01 % of its amplitude.
_SINE_PIECES = 256


class Rate(ABC):
    @abstractmethod
    def _curve(self) -> Curve: ...

    def count(self, seconds: float) -> int:
        """Whole rows sent from the start to `seconds` later, both included: never falls, 0 at the start."""
        return _curve_of(self).count(seconds)

    def times(self, offsets: NDArray[Any]) -> NDArray[np.float64]:
        """When each row is sent, in seconds: row 0 when `count` becomes 1, and so on. Never falls.

        Infinity for a row that is never sent, because the rate goes down to 0 for good before.
        """
        return _curve_of(self).times(offsets)


@lru_cache(maxsize=64)
def _curve_of(rate: Rate) -> Curve:
    return rate._curve()


@dataclass(frozen=True, slots=True)
class Constant(Rate):
    """The same rate forever.

    >>> Constant(100).count(0.29)
    29
    """

    per_second: float

    def __post_init__(self) -> None:
        _check_rate(self, "per_second", self.per_second)
        _check_sends(self)

    def _curve(self) -> Curve:
        return Curve([(1.0, self.per_second, self.per_second)])

    def __str__(self) -> str:
        return _text(self.per_second)


@dataclass(frozen=True, slots=True)
class Ramp(Rate):
    """From rate `start` to rate `end` in a straight line over `seconds`; then it stays at `end`.

    >>> Ramp(0, 100, seconds=10).count(10)
    500
    """

    start: float
    end: float
    seconds: float | str

    def __post_init__(self) -> None:
        _check_rate(self, "start", self.start)
        _check_rate(self, "end", self.end)
        object.__setattr__(self, "seconds", _length(self, "seconds", self.seconds))
        _check_sends(self)

    def _curve(self) -> Curve:
        return Curve([(float(self.seconds), self.start, self.end)])

    def __str__(self) -> str:
        return f"{_text(self.start)} to {_text(self.end)} in {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Sine(Rate):
    """`mean + amplitude * sin(2 pi t / period)`, drawn in 256 straight pieces per period.

    >>> Sine(mean=100, amplitude=50, period="1 minute").count(60)
    6000
    """

    mean: float
    amplitude: float
    period: float | str

    def __post_init__(self) -> None:
        _check_rate(self, "mean", self.mean)
        if not 0 <= self.amplitude <= self.mean:
            raise refused(f"amplitude must be from 0 to the mean, not {self.amplitude}", step="Sine")
        object.__setattr__(self, "period", _length(self, "period", self.period))
        _check_sends(self)

    def _curve(self) -> Curve:
        turn = 2 * math.pi / _SINE_PIECES
        # Rounding may take a trough a hair below zero.
        rates = [max(0.0, self.mean + self.amplitude * math.sin(turn * i)) for i in range(_SINE_PIECES)]
        rates.append(rates[0])
        length = float(self.period) / _SINE_PIECES
        return Curve([(length, a, b) for a, b in pairwise(rates)], repeats=True)

    def __str__(self) -> str:
        return f"{_text(self.mean)} ± {_text(self.amplitude)} each {self.period:g} s"


@dataclass(frozen=True, slots=True)
class Step(Rate):
    """Rates that hold from a second on: `Step([(0, 1000), (60, 5000)])`. Before the first it is 0.

    >>> Step([(0, 10), (60, 100)]).count(61)
    700
    """

    steps: tuple[tuple[float, float], ...]

    def __init__(self, steps: Iterable[tuple[float, float]]) -> None:
        object.__setattr__(self, "steps", _points(self, steps))
        _check_sends(self)

    def _curve(self) -> Curve:
        return Curve(_held(self.steps))

    def __str__(self) -> str:
        return ", ".join(f"{_text(rate)} from {at:g} s" for at, rate in self.steps)


@dataclass(frozen=True, slots=True)
class Trace(Rate):
    """A recorded rate: each one holds until the second of the next.

    With `repeat` the trace starts again at its last point, which then only marks the end; otherwise the
    last rate holds forever.
    """

    points: tuple[tuple[float, float], ...]
    repeat: bool = False

    def __init__(self, points: Iterable[tuple[float, float]] | str | Path, *, repeat: bool = False) -> None:
        if isinstance(points, str | Path):
            points = _read(Path(points))
        object.__setattr__(self, "points", _points(self, points))
        object.__setattr__(self, "repeat", repeat)
        if repeat and len(self.points) < 2:
            raise refused("a trace that repeats needs at least two points", step="Trace")
        _check_sends(self)

    @classmethod
    def from_csv(cls, path: str | Path, *, repeat: bool = False) -> Trace:
        """Read columns `seconds` and `rate`: by these names in the first line, else the first two."""
        return cls(path, repeat=repeat)

    def _curve(self) -> Curve:
        return Curve(_held(self.points, repeats=self.repeat), repeats=self.repeat)

    def __str__(self) -> str:
        return f"trace of {len(self.points):,} rates" + (", repeated" if self.repeat else "")


def _held(
    points: tuple[tuple[float, float], ...], *, repeats: bool = False
) -> list[tuple[float, float, float]]:
    """Level pieces from point to point, after silence up to the first; the last rate continues."""
    pieces = [(b[0] - a[0], a[1], a[1]) for a, b in pairwise(points)]
    if points[0][0] > 0:
        pieces.insert(0, (points[0][0], 0.0, 0.0))
    if not repeats:
        pieces.append((1.0, points[-1][1], points[-1][1]))
    return pieces


def _points(rate: Rate, points: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Checked points in order of time."""
    name = type(rate).__name__
    checked: list[tuple[float, float]] = []
    for point in points:
        at, per_second = (float(number) for number in point)
        _check_rate(rate, "rate", per_second)
        if not (math.isfinite(at) and at >= 0) or (checked and at <= checked[-1][0]):
            raise refused(f"seconds must be 0 or more and increase, but {at:g} came next", step=name)
        checked.append((at, per_second))
    if not checked:
        raise refused("at least one pair of seconds and rate is needed", step=name)
    return tuple(checked)


def _read(path: Path) -> list[tuple[float, float]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except OSError as error:
        raise refused(f"cannot read {path}: {error.strerror}", step="Trace") from error
    at, rate = 0, 1
    names = [name.strip().lower() for name in lines[0]] if lines else []
    if "seconds" in names and "rate" in names:
        at, rate = names.index("seconds"), names.index("rate")
        lines = lines[1:]
    try:
        return [(float(line[at]), float(line[rate])) for line in lines]
    except (ValueError, IndexError) as error:
        raise refused(
            f"{path} needs two columns of numbers, seconds and rate: {error}", step="Trace"
        ) from error


def _text(per_second: float) -> str:
    return f"{per_second:,.0f}/s" if per_second == int(per_second) else f"{per_second:,g}/s"


def _check_rate(rate: Rate, field: str, per_second: float) -> None:
    if not 0 <= per_second <= FASTEST:
        name = type(rate).__name__
        raise refused(f"{field} must be from 0 to {FASTEST:.0e} rows per second, not {per_second}", step=name)


def _check_sends(rate: Rate) -> None:
    curve = rate._curve()
    if curve.total == 0 and (curve.repeats or curve.ends):
        raise refused("this rate never sends a row", step=type(rate).__name__)


def _length(rate: Rate, field: str, length: float | str) -> float:
    try:
        number = duration(length) if isinstance(length, str) else float(length)
    except DurationError as error:
        raise refused(f"{field}: {error}", step=type(rate).__name__) from None
    if not (math.isfinite(number) and number > 0):
        raise refused(f"{field} must be longer than 0 seconds, not {length}", step=type(rate).__name__)
    return number
