"""Key skew: which of n keys the next row belongs to."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from tidegate.pipeline.where import refused
from tidegate.sources._words import below, fractions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Zipf keeps a table of this many of the hottest keys; the weights of colder ones are so nearly
# smooth that their integral stands in for their sum.
_HEAD = 1 << 16


class Keys(ABC):
    """A pure map from uniform random words to keys: the same word always gives the same key."""

    @abstractmethod
    def ids(self, words: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
        """A key in [0, n) for each word; `n` is from 1 to 2**31."""


@dataclass(frozen=True, slots=True)
class Uniform(Keys):
    """Every key is as likely as every other."""

    def ids(self, words: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
        return below(words, n)


@dataclass(frozen=True, slots=True)
class Zipf(Keys):
    """Key k has a weight of `1 / (k + 1) ** exponent`, so key 0 is the hottest.

    Exponent 0 is uniform; about 1 is what word and link counts show.
    """

    exponent: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.exponent <= 10:
            raise refused(f"exponent must be from 0 to 10, not {self.exponent}", step="Zipf")

    def ids(self, words: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
        import numpy as np

        cumulative, tail = _zipf_weights(self.exponent, n)
        mass = fractions(words) * (cumulative[-1] + tail)
        ids = np.searchsorted(cumulative, mass, side="right").astype(np.int64)
        if tail:
            cold = ids >= len(cumulative)
            ids[cold] = _tail_ids(mass[cold] - cumulative[-1], self.exponent, n)
        return np.asarray(np.minimum(ids, n - 1), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class HotSet(Keys):
    """A few hot keys get most of the rows; both halves are uniform within.

    `keys` is the hot share of the keys (at least one key is hot, and they are the lowest), `rows` the
    share of the rows that goes to them, both from 0 to 1.
    """

    keys: float = 0.01
    rows: float = 0.9

    def __post_init__(self) -> None:
        for name, share in (("keys", self.keys), ("rows", self.rows)):
            if not 0 <= share <= 1:
                raise refused(f"{name} is a share from 0 to 1, not {share}", step="HotSet")

    def ids(self, words: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
        import numpy as np

        hot = min(n, max(1, round(self.keys * n)))
        share = self.rows if hot < n else 1.0
        drawn = fractions(words)
        is_hot = drawn < share
        # The place of the draw within its half is again uniform: no second word is needed.
        as_hot = np.minimum(drawn, share) / (share or 1.0) * hot
        as_cold = hot + np.maximum(drawn - share, 0.0) / ((1.0 - share) or 1.0) * (n - hot)
        ids = np.where(is_hot, as_hot, as_cold).astype(np.int64)
        return np.asarray(np.minimum(ids, np.where(is_hot, hot, n) - 1), dtype=np.int64)


@lru_cache(maxsize=8)
def _zipf_weights(exponent: float, n: int) -> tuple[NDArray[np.float64], float]:
    """Cumulative weights of the hottest keys, and the weight of all the others together."""
    import numpy as np

    head = min(n, _HEAD)
    cumulative = np.cumsum(np.arange(1, head + 1, dtype=np.float64) ** -exponent)
    return cumulative, _area(head + 0.5, n + 0.5, exponent)


def _area(low: float, high: float, exponent: float) -> float:
    """The integral of `x ** -exponent`, also where the exponent is close to 1."""
    power = 1 - exponent
    log = math.log(high / low)
    return float(low**power * math.expm1(power * log) / power) if power else log


def _tail_ids(mass: NDArray[np.float64], exponent: float, n: int) -> NDArray[np.int64]:
    """Keys beyond the head, by the inverse of `_area`."""
    import numpy as np

    low, power = _HEAD + 0.5, 1 - exponent
    log = np.log1p(power * mass / low**power) / power if power else mass
    # Rank k covers [k - 1/2, k + 1/2) and key k - 1 has rank k.
    ranks = np.floor(low * np.exp(log) + 0.5)
    return np.clip(ranks, _HEAD + 1, n).astype(np.int64) - 1
