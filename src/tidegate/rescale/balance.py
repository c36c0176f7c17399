"""Balance: less load for the busiest node, by moving key groups or having them change places."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

ENOUGH = 5e-3
"""A node this close above an even share is left alone: nobody would notice the gain."""
_WORTH = 5e-4
"""A swap that lowers the busiest node by less than this share of an even one is not worth its bytes."""
_ROUNDING = 1e-9
_OFFERED = 256
"""So many groups of a node are looked at for a swap; where it has more, these are light and heavy alike."""


def summed(places: Integers, weights: Floats, length: int = 0) -> Floats:
    """The load at each place."""
    return np.bincount(places, weights, minlength=length).astype(np.float64)


class Balance:
    """Takes load from the busiest node, step by step, as long as that lowers it.

    From step to step the busiest node bears no more than before and the idlest no less, so a group that is
    once too heavy to be moved as a whole stays so.
    """

    def __init__(
        self, home: Integers, owners: Integers, weights: Floats, sizes: Integers, limit: int | None
    ) -> None:
        """`home` is where the groups are now, `owners` the plan to begin with, which may move `limit` more
        bytes than it does."""
        self.owners = owners.copy()
        self._home = home
        self._weights = weights
        self._sizes = sizes
        self._left = float("inf") if limit is None else float(limit)
        self._loads = summed(owners, weights)
        self._even = float(self._loads.mean())
        self._queues: dict[int, list[int]] = {}
        """Groups of a node when it first was the busiest, those with the most load per byte last."""

    def move(self, *, largest_first: bool = False) -> None:
        """By moves, and by swaps where no move helps. `largest_first`: the largest gain goes first."""
        if largest_first and self.uneven:
            self._take(self._part(per_byte=False))
        while self.uneven and (step := self._whole() or self._part() or self._swap()):
            self._take(step)
        self.undo()

    def trade(self) -> None:
        """By swaps alone: each node keeps its number of groups."""
        while self.uneven and (step := self._swap()):
            self._take(step)

    @property
    def busiest(self) -> float:
        """The load of the busiest node."""
        return float(self._loads.max())

    @property
    def uneven(self) -> bool:
        """Whether the busiest node bears noticeably more than an even share."""
        return self.busiest > self._even * (1 + ENOUGH)

    @property
    def moved(self) -> int:
        """The bytes that are away from home."""
        return int(self._sizes[self.owners != self._home].sum())

    def _take(self, step: list[tuple[int, int]]) -> None:
        for group, target in step:
            self._left -= self._cost(group, target)
            self._loads[self.owners[group]] -= self._weights[group]
            self._loads[target] += self._weights[group]
            self.owners[group] = target

    def _whole(self) -> list[tuple[int, int]]:
        """A group all of whose load is gained: the idlest node stays below the busiest."""
        busiest, target = int(self._loads.argmax()), int(self._loads.argmin())
        gap = self._loads[busiest] - self._loads[target]
        if busiest not in self._queues:
            groups = np.flatnonzero((self.owners == busiest) & (self._weights > 0))
            worth = self._weights[groups] / np.maximum(self._costs(groups, target), 1)
            self._queues[busiest] = groups[np.argsort(worth, kind="stable")].tolist()
        queue = self._queues[busiest]
        while queue:
            group = queue.pop()
            fits = 2 * self._weights[group] <= gap and self._cost(group, target) <= self._left
            if fits and self.owners[group] == busiest:
                return [(group, target)]
        return []

    def _part(self, *, per_byte: bool = True) -> list[tuple[int, int]]:
        """A group that makes the idlest node the busier of the two, but less busy than the busiest was."""
        busiest, target = int(self._loads.argmax()), int(self._loads.argmin())
        groups = np.flatnonzero(self.owners == busiest)
        weights, costs = self._weights[groups], self._costs(groups, target)
        gains = np.minimum(weights, self._loads[busiest] - self._loads[target] - weights)
        best = self._best(gains, costs, _ROUNDING, per_byte=per_byte)
        return [] if best is None else [(int(groups[best]), target)]

    def _swap(self) -> list[tuple[int, int]]:
        """Two groups that change places, of the busiest node and the idlest that has one to offer."""
        busiest = int(self._loads.argmax())
        mine = self._offered(busiest)
        for other in np.argsort(self._loads, kind="stable").tolist():
            gap = self._loads[busiest] - self._loads[other]
            if gap / 2 <= _WORTH * self._even:
                break
            theirs = self._offered(other)
            groups, partners = np.repeat(mine, len(theirs)), np.tile(theirs, len(mine))
            lost = self._weights[groups] - self._weights[partners]
            costs = self._costs(groups, other) + self._costs(partners, busiest)
            best = self._best(np.minimum(lost, gap - lost), costs, _WORTH)
            if best is not None:
                return [(int(groups[best]), other), (int(partners[best]), busiest)]
        return []

    def _offered(self, node: int) -> Integers:
        groups = np.flatnonzero(self.owners == node)
        if len(groups) <= _OFFERED:
            return groups
        by_weight = groups[np.argsort(self._weights[groups], kind="stable")]
        return by_weight[np.linspace(0, len(groups) - 1, _OFFERED).astype(np.int64)]

    def _cost(self, group: int, target: int) -> int:
        return int(self._costs(np.asarray([group]), target)[0])

    def _costs(self, groups: Integers, target: int) -> Integers:
        """The bytes that moves to a node add: nothing for a group that is under way already."""
        home = self._home[groups]
        added = (home != target).astype(np.int64) - (home != self.owners[groups]).astype(np.int64)
        return np.asarray(self._sizes[groups] * added)

    def _best(self, gains: Floats, costs: Integers, worth: float, *, per_byte: bool = True) -> int | None:
        """The step that gains the most, among those that may be taken."""
        good = np.flatnonzero((gains > worth * self._even) & (costs <= self._left))
        if not len(good):
            return None
        return int(good[np.argmax(gains[good] / (np.maximum(costs[good], 1) if per_byte else 1))])

    def undo(self) -> None:
        """Bring home what has gained nothing in the end, the largest groups first.

        Such are moves that later ones made needless, or from one of two busiest nodes when the other one
        has to stay as it is.
        """
        loads, counts = summed(self.owners, self._weights), np.bincount(self.owners)
        most = loads.max()
        moved = np.flatnonzero(self.owners != self._home)
        moved = moved[np.argsort(-self._sizes[moved], kind="stable")]
        undone = True
        while undone:
            undone = False
            for group in moved[self.owners[moved] != self._home[moved]].tolist():
                at, home, weight = self.owners[group], self._home[group], self._weights[group]
                if loads[home] + weight <= most and counts[at] > 1:
                    self.owners[group] = home
                    loads[at] -= weight
                    loads[home] += weight
                    counts[at] -= 1
                    counts[home] += 1
                    undone = True
        self._loads = loads
