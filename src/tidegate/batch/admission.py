"""Admission control: how many rows the next batch may take, so that it takes about the interval.

The time of a batch is modelled as `fixed + rows * per_row`. What a row costs is told by how the time changes
from a batch to the next one of another size; limits therefore sway a little around what is wanted, since
batches of one size would never show which part of their time is fixed. The model sets how boldly the limit
moves; where it settles is only a matter of the time that batches really take.
Overload then grows the lag in the source, never the batch or the memory.

Where the fixed part would fill the interval, rows that wait would leave it hardly any room. So a batch may
then take longer, up to a bound, until its fixed part is a small share of it. That only shows while there is a
backlog: without one a batch ends with the last row that waits, whatever its limit.

The first batches run on a machine that is still warming up: they are slow however few rows they take, and a
limit that shrank on their word would stay small long after. So it does not fall below the first one until
the machine is warm, unless rows cost so much that warming up cannot be the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

_KEEP = 0.7
"""The weight of a batch in the mean falls by this factor with each later one: about three count."""
_RECENT = 17
"""Batches that tell, two and two, what a row costs: one odd batch does not move it."""
_SWAY = 0.15
"""Limits lie this share above and below what is wanted, in turns."""
_GROWTH = 2.0
"""A batch may be this much larger than the largest of late, or as large as takes this many times of what it
should if nothing of the latest one's time was fixed: the model is not trusted further."""
_LEAP = 10.0
"""Nor is a batch ever larger by more than this."""
_BOLDEST = 0.7
"""At most this share of a batch is taken to be fixed when the limit is moved: more would chase noise."""
_ROOM = 8.0
"""A batch may take this many times of what is surely fixed of it, where that is more than the target."""
_SURE = 0.75
"""The share of the evidence that has to agree that so much is fixed."""
_LEAST_ROOM = 1.25
"""A batch gets this many times of its fixed part in any case, so that work is done."""
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
    longest: float = 0.0
    """Seconds that a batch may take where its fixed part fills the target."""
    seconds: float = 0.0
    """What the limit was made for: seconds that a batch of so many rows takes, more than `target` where that
    is filled by the fixed part."""
    largest: float = 0.0
    """The largest batch of late."""
    up: bool = False
    recent: tuple[tuple[int, float], ...] = ()
    """Rows and seconds of the latest batches."""
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
            recent=(*self.recent, (rows, seconds))[-_RECENT:],
            mean=(weight + 1, mean_rows + rows, mean_seconds + seconds),
            batches=self.batches + 1,
            first=self.first or self.limit,
        )._decide()

    def _decide(self) -> Admission:
        rows, seconds = self.mean[1] / self.mean[0], self.mean[2] / self.mean[0]
        latest, costs = self.recent[-1][1], self._costs()
        fixed, sure = (self._fixed(rows, seconds, costs, share) for share in (0.5, _SURE))
        target = max(self.target, min(_ROOM * sure, self.longest), _LEAST_ROOM * fixed)
        # Before two batches have told the parts of their time apart, any part may be fixed.
        fixed = min(fixed if costs else seconds, _BOLDEST * seconds)
        slowest = latest > _SLOWEST * self.target
        if costs or latest < target:
            wanted = rows * (target - fixed) / (seconds - fixed)
        elif self.batches == 1:
            wanted = float(self.limit)
        elif latest <= max(self.longest, _SLOWEST * self.target):
            # Batches of one size, as whole files make them: only a larger one tells what is fixed.
            wanted = _GROWTH * self.largest
        else:
            wanted = rows * target / latest
        wanted *= 1 + _SWAY if self.up else 1 - _SWAY
        growth = min(max(_GROWTH, _GROWTH * target / latest), _LEAP)
        allowed = min(wanted, growth * self.largest, self.most)
        warming_up = self.batches < _WARM and (self.batches == 1 or not slowest)
        least = max(self.least, self.first) if warming_up else self.least
        return replace(self, limit=max(least, int(allowed)), seconds=target)

    def _costs(self) -> list[tuple[float, int]]:
        """Seconds per row, each by two batches of different size in a row, and their difference in rows."""
        return [
            ((after - before) / (more - less), abs(more - less))
            for (less, before), (more, after) in pairwise(self.recent)
            if abs(more - less) >= _SWAY / 2 * more
        ]

    def _fixed(self, rows: float, seconds: float, costs: list[tuple[float, int]], share: float) -> float:
        """Seconds of a batch that are not due to its rows, as far as this share of the evidence agrees."""
        if not costs:
            return 0.0
        rest = seconds - max(0.0, _quantile(costs, share)) * rows
        return max(0.0, min(rest, *(each for _, each in self.recent)))


def _quantile(weighted: list[tuple[float, int]], share: float) -> float:
    """The least of the values that this share of all weight does not exceed."""
    ordered = sorted(weighted)
    left = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0]
