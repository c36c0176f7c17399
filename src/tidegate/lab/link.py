"""What a link does to a packet: when it arrives, if it does."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_QUEUE_SECONDS = 0.2
"""A packet that would wait longer than this for its turn on a link with a bandwidth is dropped."""
_WHOLE_PACKETS = 50_000_000
"""Below so many bits per second, one large segment would occupy a link for too long: see `whole`."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two hosts."""

    delay: float = 0.0
    """Seconds."""
    jitter: float = 0.0
    """At most so many seconds more or less, evenly spread. Packets stay in order."""
    loss: float = 0.0
    """The share of packets that never arrive."""
    rate: int | None = None
    """Bits per second; None for no limit."""
    cut: bool = False
    """Nothing arrives."""

    @property
    def whole(self) -> bool:
        """Whether it must see packets as they are on a wire, not segments of up to 64 KB of them."""
        return self.loss > 0 or (self.rate is not None and self.rate < _WHOLE_PACKETS)

    def seconds(self, size: int) -> float:
        """How long a packet takes on average, if nothing else is on the way."""
        return self.delay + (8 * size / self.rate if self.rate else 0.0)


class Line:
    """A link with what is on its way.

    >>> line, chance = Line(Link(delay=0.5, rate=64_000)), Random(0)
    >>> line.arrival(0.0, 1000, chance), line.arrival(0.0, 1000, chance)
    (0.625, 0.75)
    """

    __slots__ = ("_free", "_last", "link")

    def __init__(self, link: Link) -> None:
        self.link = link
        self._free = 0.0
        self._last = 0.0

    def arrival(self, now: float, size: int, chance: Random) -> float | None:
        """When a packet that is sent now arrives; None if it is lost."""
        link = self.link
        if link.cut or (link.loss and chance.random() < link.loss):
            return None
        arrives = now
        if link.rate:
            begins = max(now, self._free)
            if begins - now > _QUEUE_SECONDS:
                return None
            arrives = self._free = begins + 8 * size / link.rate
        arrives += link.delay
        if link.jitter:
            arrives += chance.uniform(-link.jitter, link.jitter)
        self._last = max(arrives, now, self._last)
        return self._last
