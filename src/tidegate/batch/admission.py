"""Admission control: how many rows the next batch may take, so that it takes about the interval.

The time of a batch is modelled as `fixed + rows * per_row`. What a row costs is told by how the time changes
from a batch to the next one of another size; limits therefore sway a little around what is wanted, since
batches of one size would never show which part of their time is fixed. The model sets how boldly the limit
moves; where it settles is only a matter of the time that batches really take.
Overload then grows the lag in the source, never the batch or the memory.

The first batches run on a machine that is still warming up: they are slow however few rows they take, and a
limit that shrank on their word would stay small long after. So it does not fall below the first one until
the machine is warm, unless rows cost so much that warming up cannot be the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

_KEEP = 0.7
"""The weight of a batch in the mean falls by this factor with each later one: about three count."""
_PAIRS = 12
"""Pairs of batches that the cost of a row is the median of: one odd batch does not move it."""
_SWAY = 0.1
"""Limits lie this share above and below what is wanted, in turns."""
_GROWTH = 2.0
"""A batch is at most this much larger than the largest of late: the model is not trusted further."""
_BOLDEST = 0.7
"""At most this share of a batch is taken to be fixed when the limit is moved: more would chase noise."""
_ROOM = 1.25
"""Where the fixed part fills the interval, a batch gets this many times of it, so that work is done."""
_WARM = 12
"""Batches after which the machine is taken to be warm."""
_SLOWEST = 5.0
"""A batch that takes more than this many times of what it should is not slow from warming up alone."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The limit for the next batch and what it was learnt from."""

    target: float
    """Seconds that a batch should take."""
    least: int
    most: int
    limit: int
    largest: float = 0.0
    """The largest batch of late."""
    up: bool = True
    latest: tuple[int, float] | None = None
    """Rows and seconds of the latest batch."""
    costs: tuple[float, ...] = ()
    """Seconds per row, each from two batches in a row."""
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Weight, rows and seconds of the batches of late."""
    batches: int = 0
    first: int = 0
    """The first limit, once a batch was observed."""

    def observe(self, rows: int, seconds: float) -> Admission:
        """After a batch of so many rows that took so long."""
        if rows <= 0 or seconds <= 0:
            return self
        weight, mean_rows, mean_seconds = (part * _KEEP for part in self.mean)
        return replace(
            self,
            largest=max(float(rows), self.largest * 0.95),
            up=not self.up,
            latest=(rows, seconds),
            costs=(*self.costs, *self._cost(rows, seconds))[-_PAIRS:],
            mean=(weight + 1, mean_rows + rows, mean_seconds + seconds),
            batches=self.batches + 1,
            first=self.first or self.limit,
        )._decide(seconds)

    def _cost(self, rows: int, seconds: float) -> tuple[float, ...]:
        """What a row costs by the latest two batches; nothing when they were of one size."""
        if self.latest is None or abs(rows - self.latest[0]) < _SWAY / 2 * rows:
            return ()
        return ((seconds - self.latest[1]) / (rows - self.latest[0]),)

    def _decide(self, latest: float) -> Admission:
        rows, seconds = self.mean[1] / self.mean[0], self.mean[2] / self.mean[0]
        cost = max(0.0, median(self.costs)) if self.costs else seconds / rows
        fixed = max(0.0, seconds - cost * rows)
        target = max(self.target, _ROOM * fixed)
        fixed = min(fixed, _BOLDEST * seconds)
        wanted = rows * (target - fixed) / (seconds - fixed)
        wanted *= 1 + _SWAY if self.up else 1 - _SWAY
        allowed = min(wanted, _GROWTH * self.largest, self.most)
        warming_up = self.batches < _WARM and latest <= _SLOWEST * self.target
        least = max(self.least, self.first) if warming_up else self.least
        return replace(self, limit=max(least, int(allowed)))
