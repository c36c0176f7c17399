"""A rate over time as straight pieces, with its exact integral and the inverse of that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Integrals that miss a whole number by less than this (relatively) count as it: 100/s for
# 0.29 s are 29 rows, although the product of the two doubles is a hair less.
_NEARLY = 1e-14


class Curve:
    """Pieces `(seconds, rate at the start, rate at the end)`, one after the other from second 0.

    After the last piece the curve starts again (`repeats`), or stays at its last rate. What `count` and
    `times` tell is said in `Rate`.
    """

    def __init__(self, pieces: Sequence[tuple[float, float, float]], *, repeats: bool = False) -> None:
        self.repeats = repeats
        self._starts = [0.0, *accumulate(seconds for seconds, _, _ in pieces)]
        self._sums = [0.0, *accumulate(seconds * (a + b) / 2 for seconds, a, b in pieces)]
        # The last piece continues forever; a repeating curve never gets there.
        self._rates = [a for _, a, _ in pieces] + [pieces[-1][2]]
        self._slopes = [(b - a) / seconds for seconds, a, b in pieces] + [0.0]
        self.ends = not repeats and self._rates[-1] == 0

    @property
    def total(self) -> float:
        return self._sums[-1]

    def count(self, seconds: float) -> int:
        if seconds <= 0:
            return 0
        before = 0.0
        if self.repeats:
            laps, seconds = divmod(seconds, self._starts[-1])
            before = laps * self.total
        piece = bisect_right(self._starts, seconds) - 1
        passed = seconds - self._starts[piece]
        rows = before + self._sums[piece] + passed * (self._rates[piece] + self._slopes[piece] * passed / 2)
        nearest = round(rows)
        return nearest if abs(rows - nearest) <= _NEARLY * nearest else int(rows)

    def times(self, offsets: NDArray[Any]) -> NDArray[np.float64]:
        import numpy as np

        rows = offsets.astype(np.float64) + 1.0
        before: NDArray[np.float64] | float = 0.0
        if self.repeats:
            laps = np.ceil(rows / self.total) - 1.0
            rows = rows - laps * self.total
            before = laps * self._starts[-1]
        sums = np.asarray(self._sums)
        # The first piece that ends with at least that many rows; silent pieces are skipped.
        piece = np.searchsorted(sums[1:], rows, side="left")
        if self.repeats:
            piece = np.minimum(piece, len(self._starts) - 2)
        rate = np.asarray(self._rates)[piece]
        rows = rows - sums[piece]
        root = np.sqrt(np.maximum(rate * rate + 2.0 * np.asarray(self._slopes)[piece] * rows, 0.0))
        with np.errstate(divide="ignore"):
            passed = 2.0 * rows / (rate + root)
        return np.asarray(before + np.asarray(self._starts)[piece] + passed, dtype=np.float64)
