"""Admission control: how many rows the next batch may take, so that it takes about the interval.

The time of a batch is modelled as `fixed + rows * per_row`. The cost of a row follows from how the time
changes between consecutive batches of different size. Limits are therefore dithered around the target, since
batches of equal size would never show which part of their time is fixed. The model decides how fast the limit
changes; the measured time of batches decides where it settles.
Overload then grows the lag in the source, never the batch or the memory.

Where the fixed part would fill the interval, there would be hardly any time left for rows. Then a batch may
take longer, up to a bound, so that its fixed part becomes a small share of it. This only shows while there is
a backlog: without one a batch ends with the last waiting row, whatever its limit.

The first batches run on a machine that is still warming up: they are slow however few rows they take, and a
limit lowered because of them would stay low long after. So the limit does not fall below the first one until
the machine is warm, unless a batch is so slow that warming up cannot be the reason. What has piled up in the
meantime is worked off in a few batches that may take longer than the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

_DECAY = 0.7
"""The weight of a batch in the mean falls by this factor with each later one: about three count."""
_RECENT = 17
"""Batches whose consecutive pairs give the cost of a row: one odd batch does not move it."""
_DITHER = 0.15
"""Limits alternate between this share above and below the target."""
_GROWTH = 2.0
"""A batch may be this many times as large as the largest recent one, or as large as would take this many
times the target if none of the latest batch's time were fixed: beyond that the model is not trusted. Until
the machine is warm it may be as large as would take half of `longest`: rows have piled up meanwhile."""
_MOST_GROWTH = 20.0
"""No batch is ever larger than the largest recent one by more than this factor."""
_MOST_FIXED = 0.7
"""At most this share of a batch counts as fixed when the limit is changed: more would chase noise."""
_MOST_FIXED_COLD = 0.95
"""The same until the machine is warm: the time of small first batches has little to do with their rows."""
_SMALL = 0.2
"""A fixed part up to this share of the target leaves batches at the target."""
_BACKLOG = 8.0
"""With a backlog, a batch may exceed the target by this many times what its fixed part has beyond that."""
_CONFIDENCE = 0.75
"""The share of the evidence that must agree on that fixed part."""
_LEAST = 1.25
"""A batch always gets this many times its fixed part, so that it makes progress."""
_WARM_UP = 12
"""Batches after which the machine counts as warm."""
_SLOWEST = 5.0
"""A batch that takes more than this many times the target is not slow from warming up alone."""
_COLD = 10
"""The first batch of a run takes so many times fewer rows than the last one of the run before: it is several
times slower, and whoever reads the output has waited long enough."""
_PILED_UP = 5
"""Up to this many batches after the first work off what has piled up while the run started."""
_STRETCH = 3.0
"""Such a batch may take this many times the target."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The limit for the next batch, and what it was derived from."""

    target: float
    """Seconds that a batch should take."""
    least: int
    most: int
    limit: int
    longest: float = 0.0
    """Seconds that a batch may take where its fixed part fills the target."""
    seconds: float = 0.0
    """Seconds that a batch of `limit` rows should take: more than `target` if the fixed part fills that, or
    right after the start."""
    largest: float = 0.0
    """The largest recent batch, in rows."""
    up: bool = False
    recent: tuple[tuple[int, float], ...] = ()
    """Rows and seconds of the latest batches."""
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Weight, rows and seconds of recent batches."""
    batches: int = 0
    first: int = 0
    """The first limit, once a batch was observed; less once it was too much."""
    before: int = 0
    """The limit that an earlier run ended with: the first batch of this one takes fewer rows."""

    def resumed(self, before: int) -> Admission:
        """To begin with, where an earlier run ended with this limit."""
        before = min(max(before, self.least), self.most)
        return replace(self, before=before, limit=min(max(before // _COLD, self.limit), before))

    def observe(self, rows: int, seconds: float) -> Admission:
        """After a batch of `rows` rows that took `seconds`."""
        if rows <= 0 or seconds <= 0:
            return self
        if not self.first:
            # It compiles code and starts workers: that only tells how long the next one takes at most.
            larger = int(rows * min(_GROWTH, self.longest / 2 / seconds))
            usual = max(self.limit, self.before)
            limit = min(max(usual, larger), self.most)
            return replace(self, first=usual, largest=float(rows), limit=limit)
        weight, mean_rows, mean_seconds = (part * _DECAY for part in self.mean)
        return replace(
            self,
            largest=max(float(rows), self.largest * 0.95),
            up=not self.up,
            recent=(*self.recent, (rows, seconds))[-_RECENT:],
            mean=(weight + 1, mean_rows + rows, mean_seconds + seconds),
            batches=self.batches + 1,
        )._decide()

    def catching_up(self, waiting: float) -> float | None:
        """Seconds that a batch of `limit` rows takes, if enough of them wait and that exceeds the target."""
        return self.seconds if self.seconds > self.target and waiting > self.limit / 2 else None

    def _decide(self) -> Admission:
        rows, seconds = self.mean[1] / self.mean[0], self.mean[2] / self.mean[0]
        (taken, latest), costs = self.recent[-1], self._costs()
        fixed, sure = (self._fixed(rows, seconds, costs, share) for share in (0.5, _CONFIDENCE))
        stretched = self.target + _BACKLOG * (sure - _SMALL * self.target)
        target = max(self.target, min(stretched, self.longest), _LEAST * fixed)
        most = max(_GROWTH * self.target, min(_GROWTH * target, self.longest))
        slowest = latest > _SLOWEST * self.target
        warming_up = self.batches < _WARM_UP and not slowest
        if warming_up:
            most = max(most, self.longest / 2)
            if self.batches < _PILED_UP:
                target = max(target, min(_STRETCH * self.target, self.longest))
            if taken >= self.largest:
                # The smaller ones before it were slower than the machine is by now.
                rows, seconds = taken, latest
        # Until two batches have shown which part of their time is fixed, any part may be.
        fixed = min(fixed if costs else seconds, (_MOST_FIXED_COLD if warming_up else _MOST_FIXED) * seconds)
        if costs or latest < target:
            wanted = rows * (target - fixed) / (seconds - fixed)
        elif latest <= max(self.longest, _SLOWEST * self.target):
            # Batches of equal size, as whole files make them: only a larger one shows what is fixed.
            wanted = _GROWTH * self.largest
        else:
            wanted = rows * target / latest
        wanted *= 1 + _DITHER if self.up else 1 - _DITHER
        growth = min(max(_GROWTH, most / latest), _MOST_GROWTH)
        allowed = min(wanted, growth * self.largest, self.most)
        least = max(self.least, self.first) if warming_up else self.least
        limit = max(least, int(allowed))
        # A limit that turned out to be far too high is no longer one to fall back to.
        first = min(self.first, limit) if slowest else self.first
        return replace(self, limit=limit, seconds=target, first=first)

    def _costs(self) -> list[tuple[float, int]]:
        """Seconds per row by each two consecutive batches of different size, and their difference in rows."""
        return [
            ((after - before) / (more - less), abs(more - less))
            for (less, before), (more, after) in pairwise(self.recent)
            if abs(more - less) >= _DITHER / 2 * more
        ]

    def _fixed(self, rows: float, seconds: float, costs: list[tuple[float, int]], share: float) -> float:
        """Seconds of a batch that are not due to its rows, on which this share of the evidence agrees."""
        if not costs:
            return 0.0
        rest = seconds - max(0.0, _quantile(costs, share)) * rows
        return max(0.0, min(rest, *(each for _, each in self.recent)))


def _quantile(weighted: list[tuple[float, int]], share: float) -> float:
    """The smallest value below or at which this share of the weight lies."""
    ordered = sorted(weighted)
    left = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0]
