"""Event time, and windows of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidegate.errors import DurationError
from tidegate.pipeline.where import refused
from tidegate.units import seconds

if TYPE_CHECKING:
    from pyspark.sql import Column

START, END = "window_start", "window_end"
"""The columns that a step with windows adds."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where the rows of a stream carry their event time: a timestamp column, and what to add to it."""

    column: str
    shift: int = 0
    """Microseconds: a window happened just before its end."""
    partner: EventTime | None = None
    """That of the other row of a pair. A pair happened at the later of both."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it takes."""
        return (self.column, *(self.partner.columns if self.partner else ()))

    def renamed(self, name: Callable[[str], str]) -> EventTime:
        """The same where each column has another name."""
        return EventTime(name(self.column), self.shift, self.partner and self.partner.renamed(name))

    def paired(self, partner: EventTime) -> EventTime:
        """That of pairs of such rows with others."""
        return replace(self, partner=self.partner.paired(partner) if self.partner else partner)

    def micros(self, prefix: str = "") -> Column:
        """The event time in microseconds since 1970, as bigint. `prefix` is put before the columns' names."""
        from pyspark.sql import functions as F

        micros = F.unix_micros(F.col(f"{prefix}`{self.column}`"))
        micros = micros + self.shift if self.shift else micros
        # A row without partner has a null there, which does not count.
        return F.greatest(micros, self.partner.micros(prefix)) if self.partner else micros


class Window(ABC):
    """How event time is cut into the pieces that a keyed step works on. Lengths are in seconds."""

    @abstractmethod
    def describe(self) -> str:
        """One short phrase, e.g. `tumbling 4 s`."""

    @abstractmethod
    def last_moment(self, micros: int) -> int:
        """The last moment, in microseconds, of the last window that an event of that moment makes."""

    @property
    def event_time(self) -> EventTime:
        """The event time of what is computed per window: the last moment that the window holds."""
        return EventTime(END, -1)


@dataclass(frozen=True, slots=True)
class Tumbling(Window):
    """Windows of one size, back to back: each event is in exactly one."""

    size: float

    @property
    def every(self) -> float:
        return self.size

    def last_moment(self, micros: int) -> int:
        return _last_moment(self, micros)

    def describe(self) -> str:
        return f"tumbling {self.size:g} s"


@dataclass(frozen=True, slots=True)
class Sliding(Window):
    """Windows of one size that start `every` so often: an event is in size / every of them."""

    size: float
    every: float

    def last_moment(self, micros: int) -> int:
        return _last_moment(self, micros)

    def describe(self) -> str:
        return f"sliding {self.size:g} s every {self.every:g} s"


@dataclass(frozen=True, slots=True)
class Session(Window):
    """Windows per key that end when nothing came for `gap`."""

    gap: float

    def last_moment(self, micros: int) -> int:
        return micros + in_micros(self.gap)  # An event at the end still joins the session.

    @property
    def event_time(self) -> EventTime:
        return EventTime(END)

    def describe(self) -> str:
        return f"session gap {self.gap:g} s"


def in_micros(seconds: float) -> int:
    """A length in microseconds, at least one."""
    return max(1, round(seconds * 1e6))


def lengths(window: Tumbling | Sliding) -> tuple[int, int]:
    """(size, every) in microseconds; `every` divides `size`.

    >>> lengths(Sliding(10, 2))
    (10000000, 2000000)
    """
    every = in_micros(window.every)
    return every * round(window.size / window.every), every


def _last_moment(window: Tumbling | Sliding, micros: int) -> int:
    size, every = lengths(window)
    return micros - micros % every + size - 1


def tumbling(size: str) -> Tumbling:
    """Back-to-back windows.

    >>> tumbling("4 seconds")
    Tumbling(size=4.0)
    """
    return Tumbling(_length(size, "tumbling window"))


def sliding(size: str, *, every: str) -> Sliding:
    """Overlapping windows; `every` must divide `size`, so that each event is in equally many.

    >>> sliding("10 seconds", every="2 seconds")
    Sliding(size=10.0, every=2.0)
    """
    window = Sliding(_length(size, "sliding window"), _length(every, "sliding window"))
    parts = window.size / window.every
    if parts < 1 or abs(parts - round(parts)) > 1e-9:
        raise refused(f"every={every!r} must divide the size {size!r}", step="sliding window")
    return window


def session(gap: str) -> Session:
    """Windows that a pause of `gap` closes.

    >>> session("30 s")
    Session(gap=30.0)
    """
    return Session(_length(gap, "session window"))


def length(text: str, step: str) -> float:
    """Seconds; raises a PipelineError where the text is no duration."""
    try:
        return seconds(text)
    except DurationError as error:
        raise refused(str(error), step=step) from None


def _length(text: str, step: str) -> float:
    found = length(text, step)
    if found <= 0:
        raise refused(f"{text!r} is not a length: it must exceed zero", step=step)
    return found
