"""Key groups that come from other nodes: what of them is here, and what is still to be asked for.

A group is *open* as long as some of its rows are only at the node it comes from, its origin. They are
fetched key by key when a batch needs them, and whole groups at a time in the background; the origin keeps
them as they were after one batch, so nothing that was fetched has to be asked for again. Once all of a group
has arrived it is *settled*: what has arrived is read in place of the runs it was in or, if those are at hand
as well, the runs are read from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import is_
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.log.pieces import Pieces
from tidegate.state.node.received import Loading, Received
from tidegate.state.table.keys import Groups
from tidegate.state.table.table import StateTable

CHUNK_BYTES = 4 << 20
"""Bytes that come at once in the background."""


class Transfer:
    """What has come of some key groups as of one batch. Safe to use from several threads."""

    def __init__(
        self, base: StateManifest, origins: Mapping[str, Groups], *, keep: bool, scratch: Path
    ) -> None:
        """`keep`: what has come is read in place of runs that are not at hand."""
        self.batch_id = base.batch_id
        self.tables = base.tables
        nothing = Pieces(frozenset(), base.groups, {})
        self.received = Received(base.groups, frozenset().union(*origins.values()), nothing)
        self._addresses = {group: address for address, groups in origins.items() for group in groups}
        self._keep = keep
        self._scratch = scratch
        self._heat = np.zeros(base.groups, np.int64)
        self._width = 1
        self._failed: dict[str, int] = {}
        self._resting: set[str] = set()
        self._lock = threading.Lock()  # of what is changed

    def place(self, table: StateTable) -> int:
        return [each.name for each in self.tables].index(table.name)

    def origins(self, groups: Groups) -> dict[str, Groups]:
        """Where to ask for these groups."""
        found: dict[str, set[int]] = {}
        for group in groups:
            found.setdefault(self._addresses[group], set()).add(group)
        return {address: frozenset(mine) for address, mine in sorted(found.items())}

    def moved(self, origins: Mapping[str, Groups]) -> Groups:
        """Note where the groups can be fetched now. Returns the open ones that no node has any longer."""
        with self._lock:
            for address, groups in origins.items():
                changed = {group for group in groups if self._addresses.get(group, address) != address}
                self._addresses.update(dict.fromkeys(changed, address))
                if changed and self.received.loading is not None:
                    self.received = replace(self.received, loading=None)
        return self.received.open - frozenset().union(*origins.values())

    def warm(self, groups: NDArray[np.int64]) -> None:
        """Keys of these groups are asked for."""
        with self._lock:
            self._heat += np.bincount(groups, minlength=len(self._heat))

    def learn(self, table: StateTable, keys: pa.Table, rows: pa.Table) -> None:
        with self._lock:
            self.received = self.received.learned(self.place(table), table, keys, rows)

    def tidy(self) -> None:
        """Between batches: bring what came key by key into a form that is small and quick to look into."""
        for table in self.tables:
            received = self.received
            before, after = received.fetched.get(table.name, ()), received.tidied(table, self._scratch)
            if len(after) == len(before):
                continue
            with self._lock:
                now = self.received.fetched.get(table.name, ())
                if len(now) >= len(before) and all(map(is_, now, before)):  # Else the next time.
                    parts = (*after, *now[len(before) :])
                    self.received = replace(
                        self.received, fetched={**self.received.fetched, table.name: parts}
                    )

    def drop(self, groups: Groups) -> None:
        """The runs are read for these groups, whatever has come of them."""
        with self._lock:
            self.received = self.received.without(groups)

    def step(self, wanted: Groups) -> Loading | None:
        """What to get next in the background: some of these groups, those first whose keys are asked for
        most."""
        with self._lock:
            loading = self.received.loading
            left = wanted & self.received.open
            if loading is None or not loading.groups & left or loading.address in self._resting:
                loading = self._next(left)
            elif not loading.groups <= left:
                loading = replace(loading, groups=loading.groups & left)
            if loading is not None:
                self.received = replace(self.received, loading=loading)
            return loading

    def _next(self, groups: Groups) -> Loading | None:
        order = sorted(groups, key=lambda group: (-self._heat[group], group))
        order = [group for group in order if self._addresses[group] not in self._resting]
        if not order:
            return None
        address = self._addresses[order[0]]
        chosen = [group for group in order if self._addresses[group] == address][: self._width]
        return Loading(frozenset(chosen), address, Pieces(frozenset(), self.received.count, {}))

    def heat(self, groups: Groups) -> int:
        return max((int(self._heat[group]) for group in groups), default=-1)

    def load(self, step: Loading, rows: pa.Table, further: int | None) -> None:
        """The answer to a step; of no use when the groups took another way meanwhile."""
        with self._lock:
            self._failed.pop(step.address, None)
            if self.received.loading is not step:
                return
            after = self.received.loaded(self.tables, rows, further, self._scratch, keep=self._keep)
            if after.loading is None:
                # Small groups come several at a time, so that the way there and back does not add up.
                small = step.bytes + rows.nbytes < CHUNK_BYTES // 2
                self._width = self._width * 2 if small else max(1, self._width // 2)
            self.received = after

    def failed(self, address: str) -> bool:
        """An origin did not answer a step: leave it alone until `wake`. Whether it did so before."""
        with self._lock:
            self._resting.add(address)
            self._failed[address] = self._failed.get(address, 0) + 1
            return self._failed[address] > 1

    def wake(self) -> None:
        with self._lock:
            self._resting.clear()


@dataclass(frozen=True)
class Arrival:
    """The groups of a transfer that are of the state of one snapshot."""

    transfer: Transfer
    groups: Groups

    @property
    def batch_id(self) -> int:
        return self.transfer.batch_id

    @property
    def open(self) -> Groups:
        return self.groups & self.transfer.received.open

    def restricted(self, groups: Groups) -> Arrival:
        return Arrival(self.transfer, self.groups & groups)

    def seen(self) -> tuple[Groups, tuple[RunRef, Pieces] | None]:
        """The groups for which older runs are not read, and what is read instead; nothing for open ones."""
        received = self.transfer.received
        settled = self.groups & received.settled.groups
        stands_in = (RunRef("", self.batch_id, settled, 0, 0), received.settled) if settled else None
        return settled | (self.groups & received.open), stands_in


def restricted(arrivals: Iterable[Arrival], groups: Groups) -> tuple[Arrival, ...]:
    """What is left of arrivals for these groups."""
    found = (arrival.restricted(groups) for arrival in arrivals)
    return tuple(arrival for arrival in found if arrival.seen()[0])


def continued(
    under_way: tuple[Arrival, ...],
    base: StateManifest,
    origins: Mapping[str, Groups],
    held: Groups,
    *,
    durable: bool,
    keep: bool,
    scratch: Path,
) -> tuple[Arrival, ...]:
    """What is under way, and what is to come from now on: groups that are not `held`, and have state.

    `durable`: a log has what no origin has any more.
    """
    for arrival in under_way:
        if arrival.batch_id == base.batch_id:  # Another attempt at the batch that it began with.
            lost = arrival.transfer.moved(origins)
            if durable:
                arrival.transfer.drop(lost & arrival.groups)
    filled = frozenset().union(*(run.groups for run in base.runs))
    fresh = {address: (groups & filled) - held for address, groups in origins.items()}
    fresh = {address: groups for address, groups in fresh.items() if groups}
    if not fresh:
        return under_way
    transfer = Transfer(base, fresh, keep=keep, scratch=scratch)
    return (*under_way, Arrival(transfer, transfer.received.open))
