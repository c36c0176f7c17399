"""The watermark: how far event time is taken to be complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Watermark:
    """What has been seen of event time, in microseconds since the epoch, and how far it is complete by that.

    The watermark of batch k+1 follows from what was seen up to batch k, so a replay sees the same one.
    """

    graces: Mapping[str, float]
    """Source -> grace in seconds, for the sources that have an event time."""
    seen: Mapping[str, int]
    """Source -> largest event time."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Source -> seconds between batches since one last had rows of it."""
    furthest: int | None = None
    """The latest moment for which a window or timer has waited."""
    idle: float | None = None
    """Seconds of silence after which a source is not waited for; None to wait for ever."""
    closing: Callable[[Mapping[str, int]], int | None] = lambda _: None
    """See `Plan.closing_watermark`."""

    @property
    def micros(self) -> int | None:
        """Least over the sources of (largest event time - grace); None until each has been heard.

        Silent sources do not count. When all are silent, everything that is open is closed, but for timers:
        one that sets another one would move the watermark with each batch.
        """
        waited_for = self.graces.keys() - set(self.idle_sources)
        if self.graces and not waited_for:
            return self._past_all
        if not waited_for <= self.seen.keys() or not waited_for:
            return None
        return min(self.seen[source] - round(self.graces[source] * 1e6) for source in waited_for)

    @property
    def idle_sources(self) -> tuple[str, ...]:
        """The sources that have been silent for too long to be waited for."""
        if self.idle is None:
            return ()
        return tuple(source for source in self.graces if self.silent.get(source, 0.0) >= self.idle)

    @property
    def end(self) -> int | None:
        """The watermark that closes all that is open; None if nothing has been seen, or nothing waits."""
        past_all, furthest = self._past_all, self.furthest
        return past_all if past_all is None or furthest is None else max(past_all, furthest)

    @property
    def _past_all(self) -> int | None:
        """That which closes all but timers."""
        seen = {source: micros for source, micros in self.seen.items() if source in self.graces}
        return self.closing(seen)

    def advance(
        self, newest: Mapping[str, int], *, passed: float = 0.0, furthest: int | None = None
    ) -> Watermark:
        """After a batch whose largest event times were `newest`, planned `passed` seconds after the one
        before; `furthest` is what its windows and timers wait for. It never goes back.

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
        silent = {
            source: 0.0 if source in newest else self.silent.get(source, 0.0) + passed
            for source in self.graces
        }
        known = [moment for moment in (furthest, self.furthest) if moment is not None]
        return replace(self, seen=seen, silent=silent, furthest=max(known, default=None))
