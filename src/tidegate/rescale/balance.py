"""Balance: less load for the busiest node, by moving key groups or having them change places."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop
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
_PAIRS = 10_000
"""Up to so many swaps are all looked at; where there are more, only the likeliest."""


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
        """`home` is where the groups are now, `owners` the plan to begin with."""
        self.owners = owners.copy()
        self._home = home
        self._weights = weights
        self._sizes = sizes
        self._left = float("inf") if limit is None else float(limit)
        self._loads = summed(owners, weights)
        self._even = float(self._loads.mean())
        self._queues: dict[int, list[tuple[float, int]]] = {}
        """Groups of a node when it first was the busiest, those with the most load per byte first."""
        self._members: dict[int, Integers] = {}
        """Groups of a node, once someone asked."""

    def move(self, *, boldly: bool = False) -> None:
        """By moves, and by swaps where no move helps. Boldly: the move that gains the most goes first."""
        step = self._part(self._busiest_node, per_byte=False) if boldly and self.uneven else []
        self._take(step)
        while self.uneven and (step := self._step(self._busiest_node)):
            self._take(step)
        self.undo()

    def trade(self) -> None:
        """By swaps that make no more groups move than the plan had moving."""
        while self.uneven and (step := self._trade(self._busiest_node)):
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

    @property
    def _busiest_node(self) -> int:
        return int(self._loads.argmax())

    def _step(self, busiest: int) -> list[tuple[int, int]]:
        return self._whole(busiest) or self._part(busiest) or self._swap(busiest)

    def _take(self, step: list[tuple[int, int]]) -> None:
        for group, target in step:
            source, weight = int(self.owners[group]), self._weights[group]
            self._left -= self._cost(group, target)
            self.owners[group] = target
            self._members.pop(source, None)
            self._members.pop(target, None)
            self._loads[source] -= weight
            self._loads[target] += weight

    def _groups_of(self, node: int) -> Integers:
        if node not in self._members:
            self._members[node] = np.flatnonzero(self.owners == node)
        return self._members[node]

    def _entry(self, group: int) -> tuple[float, int]:
        moved = self.owners[group] != self._home[group]
        return -float(self._weights[group]) / (1 if moved else max(1, int(self._sizes[group]))), group

    def _whole(self, busiest: int) -> list[tuple[int, int]]:
        """A group all of whose load is gained: the idlest node stays below the busiest."""
        target = int(self._loads.argmin())
        gap = self._loads[busiest] - self._loads[target]
        if busiest not in self._queues:
            groups = self._groups_of(busiest)
            self._queues[busiest] = [
                self._entry(group) for group in groups[self._weights[groups] > 0].tolist()
            ]
            heapify(self._queues[busiest])
        queue = self._queues[busiest]
        while queue:
            _, group = heappop(queue)
            fits = 2 * self._weights[group] <= gap and self._cost(group, target) <= self._left
            if fits and self.owners[group] == busiest:
                return [(group, target)]
        return []

    def _part(self, busiest: int, *, per_byte: bool = True) -> list[tuple[int, int]]:
        """A group that makes the idlest node the busier of the two, but less busy than the busiest was."""
        target = int(self._loads.argmin())
        groups = self._groups_of(busiest)
        weights, costs = self._weights[groups], self._costs(groups, target)
        gains = np.minimum(weights, self._loads[busiest] - self._loads[target] - weights)
        best = self._best(gains, costs, _ROUNDING, per_byte=per_byte)
        return [] if best is None else [(int(groups[best]), target)]

    def _swap(self, busiest: int) -> list[tuple[int, int]]:
        """Two groups that change places, with the idlest node that has one to offer."""
        mine = self._groups_of(busiest)
        if len(mine) * len(self.owners) <= _PAIRS:
            theirs = np.flatnonzero(self.owners != busiest)
            return self._exchange(busiest, np.repeat(mine, len(theirs)), np.tile(theirs, len(mine)))
        for other in self._others(busiest):
            step = self._nearest(busiest, mine, self._groups_of(other))
            if step:
                return step
        return []

    def _trade(self, busiest: int) -> list[tuple[int, int]]:
        """A swap of groups that both move anyway, or of one that moves with one that does not."""
        mine = self._groups_of(busiest)
        origins = self._home[mine]
        for other in self._others(busiest):
            theirs = self._groups_of(other)
            sources = self._home[theirs]
            step = (
                self._nearest(busiest, mine[origins == busiest], theirs[sources == busiest])
                or self._nearest(busiest, mine[origins == other], theirs[sources == other])
                or self._nearest(busiest, mine[origins != busiest], theirs[sources != other])
            )
            if step:
                return step
        return []

    def _others(self, busiest: int) -> Iterator[int]:
        """The nodes that a swap with the busiest could be worth it with, the idlest first."""
        for other in np.argsort(self._loads, kind="stable").tolist():
            if (self._loads[busiest] - self._loads[other]) / 2 <= _WORTH * self._even:
                return
            yield other

    def _nearest(self, busiest: int, mine: Integers, theirs: Integers) -> list[tuple[int, int]]:
        """The best swap with one other node, if any is worth it."""
        if not len(mine) or not len(theirs):
            return []
        # The best partner evens the two nodes out; it is next to where such a weight would lie.
        gap = self._loads[busiest] - self._loads[self.owners[theirs[0]]]
        theirs = theirs[np.argsort(self._weights[theirs], kind="stable")]
        beyond = np.searchsorted(self._weights[theirs], self._weights[mine] - gap / 2)
        partners = theirs[np.clip(np.concatenate((beyond - 1, beyond)), 0, len(theirs) - 1)]
        return self._exchange(busiest, np.tile(mine, 2), partners)

    def _exchange(self, busiest: int, groups: Integers, partners: Integers) -> list[tuple[int, int]]:
        """The best of these swaps, if any is worth it."""
        others = self.owners[partners]
        lost = self._weights[groups] - self._weights[partners]
        gains = np.minimum(lost, self._loads[busiest] - self._loads[others] - lost)
        costs = self._costs(groups, others) + self._costs(partners, busiest)
        best = self._best(gains, costs, _WORTH)
        if best is None:
            return []
        return [(int(groups[best]), int(others[best])), (int(partners[best]), busiest)]

    def _cost(self, group: int, target: int) -> int:
        home, size = self._home[group], int(self._sizes[group])
        return size * (int(home != target) - int(home != self.owners[group]))

    def _costs(self, groups: Integers, target: Integers | int) -> Integers:
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
