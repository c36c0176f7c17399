"""Admission control: how many rows the next batch may take, so that it takes about the interval.

The cost of a batch is modelled as `fixed + rows * per_row`, fitted to the latest batches by least squares
with forgetting. Overload then grows the lag in the source, never the batch or the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_FORGET = 0.8
"""Weight of a batch falls by this factor with each later one: about five batches count."""
_GROWTH = 2.0
"""A batch may be at most this much larger than the largest of late: the model is not trusted further."""
_SPREAD = 0.1
"""Rows must vary by this share of their mean before the fixed cost is fitted anew."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The limit for the next batch and what it was learnt from."""

    target: float
    """Seconds that a batch should take."""
    least: int
    most: int
    limit: int
    fixed: float = 0.0
    """Seconds that a batch takes however few its rows."""
    largest: float = 0.0
    weight: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    rows_rows: float = 0.0
    rows_seconds: float = 0.0

    def observe(self, rows: int, seconds: float) -> Admission:
        """After a batch of so many rows that took so long."""
        if rows <= 0 or seconds <= 0:
            return self
        fed = replace(
            self,
            weight=self.weight * _FORGET + 1,
            rows=self.rows * _FORGET + rows,
            seconds=self.seconds * _FORGET + seconds,
            rows_rows=self.rows_rows * _FORGET + rows * rows,
            rows_seconds=self.rows_seconds * _FORGET + rows * seconds,
            largest=max(float(rows), self.largest * 0.95),
        )
        return fed._decide()

    def _decide(self) -> Admission:
        mean_rows, mean_seconds = self.rows / self.weight, self.seconds / self.weight
        fixed = min(max(self._fixed(mean_rows, mean_seconds), 0.0), 0.9 * mean_seconds)
        per_row = (mean_seconds - fixed) / mean_rows
        # Where the fixed cost alone fills the interval, a batch gets twice that cost, so that work is done.
        target = max(self.target, 2 * fixed)
        wanted = (target - fixed) / per_row
        allowed = min(wanted, _GROWTH * self.largest, self.most)
        return replace(self, fixed=fixed, limit=max(self.least, int(allowed)))

    def _fixed(self, mean_rows: float, mean_seconds: float) -> float:
        variance = self.rows_rows / self.weight - mean_rows**2
        if variance <= (_SPREAD * mean_rows) ** 2:
            return self.fixed
        slope = (self.rows_seconds / self.weight - mean_rows * mean_seconds) / variance
        return mean_seconds - max(slope, 0.0) * mean_rows
