"""Windows of event time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tidegate.errors import DurationError, PipelineError
from tidegate.pipeline.where import caller
from tidegate.units import seconds


class Window(ABC):
    """How event time is cut into the pieces that a keyed step works on. Lengths are in seconds."""

    @abstractmethod
    def describe(self) -> str:
        """One short phrase, e.g. `tumbling 4 s`."""


@dataclass(frozen=True, slots=True)
class Tumbling(Window):
    """Windows of one size, back to back: each event is in exactly one."""

    size: float

    def describe(self) -> str:
        return f"tumbling {self.size:g} s"


@dataclass(frozen=True, slots=True)
class Sliding(Window):
    """Windows of one size that start `every` so often: an event is in size / every of them."""

    size: float
    every: float

    def describe(self) -> str:
        return f"sliding {self.size:g} s every {self.every:g} s"


@dataclass(frozen=True, slots=True)
class Session(Window):
    """Windows per key that end when nothing came for `gap`."""

    gap: float

    def describe(self) -> str:
        return f"session gap {self.gap:g} s"


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
        raise PipelineError(
            f"every={every!r} must divide the size {size!r}", step="sliding window", where=caller()
        )
    return window


def session(gap: str) -> Session:
    """Windows that a pause of `gap` closes.

    >>> session("30 s")
    Session(gap=30.0)
    """
    return Session(_length(gap, "session window"))


def _length(text: str, step: str) -> float:
    try:
        length = seconds(text)
    except DurationError as error:
        raise PipelineError(str(error), step=step, where=caller()) from None
    if length <= 0:
        raise PipelineError(f"{text!r} is no length: it must be more than zero", step=step, where=caller())
    return length
