"""Key groups on their way between simulated nodes: what of them is here, and what is to be asked for.

The same in small as `tidegate.state.node.arrival` and `tidegate.state.node.departure`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidegate.sim.workload import State
from tidegate.state.log.manifest import RunRef

if TYPE_CHECKING:
    from tidegate.sim.mover import Mover

Groups = frozenset[int]
Place = tuple[str, int]
"""Table and key."""


@dataclass(eq=False, slots=True)
class Loading:
    """A group that is being got whole, in the order of places."""

    group: int
    rows: State = field(default_factory=dict)
    first: Place | None = None
    """From which on nothing is here; None before the first answer."""


class Transfer:
    """What has come of some key groups as of one batch. Groups are open while some of it is elsewhere."""

    def __init__(self, batch_id: int, origins: Mapping[int, Mover]) -> None:
        self.batch_id = batch_id
        self.origins = dict(origins)
        self.open = set(origins)
        self.settled: dict[int, State] = {}
        """Groups that came whole; they stand in for the runs up to the batch."""
        self.loading: Loading | None = None
        self._asked: dict[Place, int | None] = {}
        self._failed: Counter[Mover] = Counter()
        self._resting: set[Mover] = set()

    def knows(self, group: int, place: Place) -> bool:
        """Whether it is clear what a key of an open group was."""
        return place in self._asked or self._loaded(group, place)

    def known(self, group: int, table: str) -> State:
        """What is here of an open group."""
        found = {place: value for place, value in self._asked.items() if value is not None}
        if self.loading is not None:
            rows = self.loading.rows
            found |= {place: value for place, value in rows.items() if self._loaded(group, place)}
        return {place: value for place, value in found.items() if place[0] == table}

    def learn(self, table: str, keys: Iterable[int], rows: Mapping[int, int]) -> None:
        """The answer for some keys; what was known before stays."""
        for key in keys:
            self._asked.setdefault((table, key), rows.get(key))

    def next(self, groups: Iterable[int]) -> Loading | None:
        """What to get next in the background, of these groups."""
        left = [group for group in sorted(groups) if group in self.open and not self.rests(group)]
        if self.loading is None or self.loading.group not in left:
            self.loading = Loading(left[0]) if left else None
        return self.loading

    def load(self, step: Loading, rows: State, further: Place | None) -> None:
        """The answer to a step; of no use when the group took another way meanwhile."""
        self._failed.pop(self.origins[step.group], None)
        if self.loading is not step:
            return
        step.rows |= rows
        step.first = further
        if further is None:
            self.loading = None
            self.open.discard(step.group)
            self.settled[step.group] = step.rows

    def drop(self, origin: Mover) -> None:
        """The log is read for all that was to come from there."""
        lost = {group for group in self.open if self.origins[group] is origin}
        self.open -= lost
        if self.loading is not None and self.loading.group in lost:
            self.loading = None

    def failed(self, origin: Mover) -> bool:
        """It did not answer a step: leave it alone until `wake`. Whether it did so before."""
        self._resting.add(origin)
        self._failed[origin] += 1
        return self._failed[origin] > 1

    def rests(self, group: int) -> bool:
        return self.origins[group] in self._resting

    def wake(self) -> None:
        self._resting.clear()

    def _loaded(self, group: int, place: Place) -> bool:
        loading = self.loading
        return (
            loading is not None
            and loading.group == group
            and loading.first is not None
            and place < loading.first
        )


@dataclass(frozen=True, slots=True)
class Arrival:
    """The groups of a hold that one snapshot has."""

    hold: Transfer
    groups: Groups

    @property
    def open(self) -> Groups:
        return self.groups & self.hold.open


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of some key groups after a batch. It never changes; what has come of it may."""

    batch_id: int = -1
    groups: Groups = frozenset()
    base: tuple[RunRef, ...] = ()
    """The runs as the ledger names them."""
    runs: tuple[RunRef, ...] = ()
    """Those, or merged ones in their place."""
    arrivals: tuple[Arrival, ...] = ()

    @property
    def open(self) -> Groups:
        return frozenset().union(*(arrival.open for arrival in self.arrivals))

    def restricted(self, groups: Groups) -> Snapshot:
        kept = groups & self.groups
        arrivals = (Arrival(arrival.hold, arrival.groups & kept) for arrival in self.arrivals)
        return Snapshot(
            self.batch_id,
            kept,
            runs_of(self.base, kept),
            runs_of(self.runs, kept),
            tuple(arrival for arrival in arrivals if arrival.groups),
        )

    def arrival(self, group: int) -> Transfer | None:
        """What has come of a group, when that is read in place of runs."""
        for arrival in self.arrivals:
            if group in arrival.groups and (group in arrival.hold.open or group in arrival.hold.settled):
                return arrival.hold
        return None

    def alike(self, batch_id: int, runs: tuple[RunRef, ...], groups: Groups) -> bool:
        """Whether these runs are the same state of some groups."""
        same = set(runs_of(self.base, groups)) == set(runs_of(runs, groups))
        return same and (self.batch_id == batch_id or not groups)


def runs_of(runs: Iterable[RunRef], groups: Groups) -> tuple[RunRef, ...]:
    """The runs as far as they count for some groups."""
    kept = (replace(run, groups=run.groups & groups) for run in runs)
    return tuple(run for run in kept if run.groups)
