"""The watermark: how far event time is taken to be complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Watermark:
    """Largest event time seen per source, in microseconds since the epoch.

    The watermark of batch k+1 follows from what was seen up to batch k, so a replay sees the same one.
    """

    graces: Mapping[str, float]
    """Source -> grace in seconds, for the sources that have an event time."""
    seen: Mapping[str, int]

    @property
    def micros(self) -> int | None:
        """Least over the sources of (largest event time - grace); None until each has been heard."""
        if not self.graces or any(source not in self.seen for source in self.graces):
            return None
        return min(self.seen[source] - round(grace * 1e6) for source, grace in self.graces.items())

    def advance(self, newest: Mapping[str, int]) -> Watermark:
        """After a batch whose largest event times were `newest`. It never goes back.

        >>> mark = Watermark({"a": 2.0, "b": 0.0}, {"a": 9_000_000})
        >>> mark.micros is None
        True
        >>> mark.advance({"b": 8_000_000, "a": 1}).micros
        7000000
        """
        seen = dict(self.seen)
        for source, micros in newest.items():
            if source in self.graces:
                seen[source] = max(micros, seen.get(source, micros))
        return Watermark(self.graces, seen)
