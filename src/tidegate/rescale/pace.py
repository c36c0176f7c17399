"""The pace of a migration: how many bytes may move in the background during the next batch.

A batch takes some time by itself and some more for the bytes that move meanwhile; which part is which is not
known, and changes. So the budget follows the time that batches take: up while there is room, down when there
is none. A rise never makes more of the budget than a batch that keeps to the aim may grow by, even if all of
its time were due to the bytes: so no rise takes a batch beyond the limit by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_AIM = 0.8
"""Of the limit: what a batch should take. The rest is for what cannot be foreseen."""
_MOST_RISE = 2.0
_RISE = 0.05
"""With each calm batch after another the budget rises by this much more, to find room that is far away."""
_EASE = 0.85
"""The budget falls to this part after a batch that took more than it should, but kept to the limit."""
_BRAKE = 0.5
"""And to this one after a batch that did not."""


@dataclass(slots=True)
class Pace:
    """Bytes for each batch, never below `floor`, so that every migration ends, nor above `ceiling`."""

    start: int
    floor: int
    ceiling: int
    budget: int = field(init=False)
    """For the batch that comes."""
    _calm: int = field(init=False, default=0)
    """Batches in a row after which the budget rose."""

    def __post_init__(self) -> None:
        if not 1 <= self.floor <= self.ceiling:
            raise ValueError(f"a pace needs 1 <= floor <= ceiling, not {self.floor} and {self.ceiling}")
        self.budget = self._bounded(self.start)

    def next(self, batch_seconds: float, limit_seconds: float, used: bool) -> int:
        """The budget after a batch that took so long, where `limit_seconds` are allowed.

        `used`: whether it moved all that it might have; if not, nothing is known about moving more.
        """
        aim = _AIM * limit_seconds
        if batch_seconds > aim:
            self._calm = 0
            self.budget = self._bounded(
                int(self.budget * (_EASE if batch_seconds <= limit_seconds else _BRAKE))
            )
        elif used:
            self._calm += 1
            room = aim / batch_seconds if batch_seconds > 0 else _MOST_RISE
            rise = max(min(room, _MOST_RISE), min(1 + _RISE * self._calm, 1 / _AIM))
            self.budget = self._bounded(max(int(self.budget * rise), self.budget + 1))
        return self.budget

    def _bounded(self, budget: int) -> int:
        return min(max(budget, self.floor), self.ceiling)
