"""State that is partly with other nodes: what a backend has, and what arrives."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidegate.errors import StateError, TidegateError
from tidegate.state.log.compaction import inside, live, merged, reached, rows_within, sorted_by_hash
from tidegate.state.log.log import Snapshot
from tidegate.state.log.pieces import as_written
from tidegate.state.node.arrival import CHUNK_BYTES, Arrival
from tidegate.state.node.backends.backend import Backend
from tidegate.state.node.backends.columnar import Columnar, looked_up
from tidegate.state.node.peers import Origin, Peers
from tidegate.state.node.received import Received
from tidegate.state.table.keys import (
    Groups,
    bounds,
    distinct,
    group_of,
    hash_column,
    position,
    ranges,
    show_groups,
)
from tidegate.state.table.table import HASH, PROBE, Places, StateTable, by_probe, with_probes

_log = logging.getLogger(__name__)
_END = 2**64
_ROUNDS = 100
"""Times that origins are asked again because some did not answer; each is left out from then on."""

T = TypeVar("T")


@dataclass
class _Share:
    """The keys of a `get` that are of open groups of one arrival."""

    arrival: Arrival
    places: Places
    """Among all keys."""
    keys: pa.Table
    new: pa.Table
    """Rows written since the arrival's batch; `_probe` counts in `keys`."""
    left: Places
    """Keys that may have rows from before, by place in `keys`."""
    received: Received
    old: pa.Table
    """Rows from before that are here, by `received`."""

    @property
    def here(self) -> NDArray[np.bool_]:
        """For each key whether its group is open still."""
        groups = group_of(hash_column(self.keys[HASH]), self.received.count)
        return inside(self.received.open, self.received.count)[groups]


class _Request:
    """Keys to ask one origin for, as of one batch."""

    def __init__(self, table: StateTable) -> None:
        self.table = table
        self.arrivals: list[Arrival] = []
        self.groups: Groups = frozenset()
        self.keys = table.probes.empty_table()

    def add(self, arrival: Arrival, groups: Groups, keys: pa.Table) -> None:
        self.arrivals.append(arrival)
        self.groups |= groups
        self.keys = pa.concat_tables([self.keys, keys]).combine_chunks()

    def send(self, origin: Origin) -> pa.Table:
        return origin.fetch_keys(self.table.name, self.groups, self.arrivals[0].batch_id, self.keys)


class Migrating:
    """Reads of a backend, and in front of it what is still with other nodes.

    Rows of a key in an open group are the newest of: what was written since the arrival's batch, what has
    come of it, and what its origin has. An origin that does not answer is replaced by the log, for good;
    where the runs are in no log, that is an error.
    """

    def __init__(self, inner: Backend, peers: Peers) -> None:
        self._inner = inner
        self._peers = peers
        self._runs = Columnar()
        self._figures: Counter[str] = Counter()
        self.received = 0
        """Bytes that have come, in all."""
        self._lock = threading.Lock()  # of the figures

    def figures(self) -> dict[str, int]:
        """What was counted since this was last asked for; see `wire.PrepareAnswer.arrived`."""
        with self._lock:
            found, self._figures = self._figures, Counter()
        return dict(found)

    def get(self, snapshot: Snapshot, table: StateTable, keys: pa.Table) -> pa.Table:
        if not snapshot.open:
            self._count(local=keys.num_rows)
            return self._inner.get(snapshot, table, keys)
        keys = keys.combine_chunks()
        shares = self._shares(snapshot, table, keys)
        remote = self._complete(snapshot, table, shares)
        self._count(local=keys.num_rows - remote, remote=remote)
        rest = np.ones(keys.num_rows, np.bool_)
        found: list[pa.Table] = []
        for share in shares:
            # What is no longer open was settled or given up while this was under way.
            here = share.here
            rest[share.places[here]] = False
            new = share.new.filter(pa.array(here[share.new[PROBE].to_numpy()]))
            found += [with_probes(share.old, share.places), with_probes(new, share.places)]
        others = np.flatnonzero(rest)
        if len(others):
            rows = self._inner.get(snapshot, table, keys.take(pa.array(others)))
            found.append(with_probes(rows, others))
        return by_probe(table, found)

    def due(self, snapshot: Snapshot, table: StateTable, groups: Groups, upto: int) -> pa.Table:
        closed = snapshot.closed

        def asking(arrival: Arrival) -> Callable[[Origin], pa.Table]:
            return lambda origin: origin.fetch_due(table.name, arrival.groups, arrival.batch_id, closed, upto)

        found = []
        rest = groups
        for arrival, address, answer in self._asked(snapshot, groups, asking):
            old = _checked(answer, table.schema, address)
            self._count(demand_keys=len(pc.unique(old[HASH])), demand_bytes=old.nbytes)
            since = snapshot.since(arrival)
            if table.kind == "value":  # What was written again since is due at another time.
                keys = old.select(table.probes.names)
                old = old.take(pa.array(looked_up(since.opened(table), table, keys, None)[1]))
            found += [old, self._runs.due(since, table, arrival.groups, upto)]
            rest -= arrival.groups
        if rest or not found:
            found.append(self._inner.due(snapshot, table, rest, upto))
        return sorted_by_hash(pa.concat_tables(found)) if len(found) > 1 else found[0]

    def scan(self, snapshot: Snapshot, table: StateTable, groups: Groups) -> pa.Table:
        away = groups & snapshot.open
        if not away:
            return self._inner.scan(snapshot, table, groups)
        found = [self._inner.scan(snapshot, table, groups - away)]
        first: int | None = 0
        while first is not None:
            rows, first = self.fetch_range(snapshot, table, away, first, CHUNK_BYTES)
            found.append(rows)
        return sorted_by_hash(pa.concat_tables(found))

    def fetch_range(
        self, snapshot: Snapshot, table: StateTable, groups: Groups, first: int, size: int
    ) -> tuple[pa.Table, int | None]:
        """Rows of groups from a hash on, about `size` bytes, straight from the runs; and the hash to go on
        from, None when that was all."""

        def asking(arrival: Arrival) -> Callable[[Origin], tuple[pa.Table, int | None]]:
            return lambda origin: origin.fetch_range(
                table.name, arrival.groups, arrival.batch_id, first, size
            )

        asked = self._asked(snapshot, groups, asking)
        rest = groups.difference(*(arrival.groups for arrival, _, _ in asked))
        ends = [_END if further is None else further for _, _, (_, further) in asked]
        spans = _left(rest, snapshot.count, first)
        if spans:
            runs = [run for _, run in snapshot.opened(table)]
            end = reached(runs, table, spans, rows=_END, size=size)
            ends.append(_END if end == spans[-1][1] else end)
        stop = min(ends, default=_END)
        span = (first, stop)
        found = [self._runs.scan(snapshot, table, rest, span) if spans else table.schema.empty_table()]
        for arrival, address, (answer, _) in asked:
            old = as_written(table, _checked(answer, table.schema, address))
            opened = snapshot.since(arrival).opened(table)
            newer = [rows_within(ref, run, table, arrival.groups, span) for ref, run in opened]
            before = old.slice(0, position(hash_column(old[HASH]), stop))
            rows = merged(table, [before, *newer])
            found.append(live(rows, snapshot.closed).select(table.schema.names))
        further = None if not _left(groups, snapshot.count, stop) else stop
        return sorted_by_hash(pa.concat_tables(found)), further

    def pull(self, snapshot: Snapshot, size: int) -> int | None:
        """Get the next part of what is away, about `size` bytes; how many it had, None when nothing is left
        to be got."""
        for arrival in sorted(snapshot.arriving, key=lambda each: -each.transfer.heat(each.open)):
            step = arrival.transfer.step(arrival.groups)
            if step is None:
                continue
            transfer, table = arrival.transfer, arrival.transfer.tables[step.place]
            asked = (table.name, step.groups, transfer.batch_id, step.first, size)
            (answer,) = self._peers.ask([(step.address, lambda origin: origin.fetch_range(*asked))])  # noqa: B023
            if isinstance(answer, TidegateError):
                # The first time it may not have heard of the batch yet.
                again = transfer.failed(step.address)
                if again and snapshot.log.durable:
                    self._give_up(snapshot, arrival, step.address, answer)
                continue
            rows, further = answer
            rows = _checked(rows, table.schema, step.address)
            transfer.load(step, rows, further)
            self._count(background_keys=len(pc.unique(rows[HASH])), background_bytes=rows.nbytes)
            return int(rows.nbytes)
        return None

    def _shares(self, snapshot: Snapshot, table: StateTable, keys: pa.Table) -> list[_Share]:
        groups = group_of(hash_column(keys[HASH]), snapshot.count)
        found = []
        for arrival in snapshot.arriving:
            places = np.flatnonzero(inside(arrival.open, snapshot.count)[groups])
            if len(places):
                arrival.transfer.warm(groups[places])
                mine = keys.take(pa.array(places))
                opened = snapshot.since(arrival).opened(table)
                new, left = looked_up(opened, table, mine, snapshot.closed)
                found.append(
                    _Share(arrival, places, mine, new, left, arrival.transfer.received, new.slice(0, 0))
                )
        return found

    def _complete(self, snapshot: Snapshot, table: StateTable, shares: Sequence[_Share]) -> int:
        """Ask for the keys of open groups that are not known here; how many there were. One request to each
        origin, unless one fails."""
        remote = 0
        for _ in range(_ROUNDS):
            requests: dict[tuple[str, int], _Request] = {}
            for share in shares:
                for address, groups, keys in _missing(snapshot, table, share):
                    request = requests.setdefault((address, share.arrival.batch_id), _Request(table))
                    request.add(share.arrival, groups, keys)
            if not requests:
                return remote
            answers = self._peers.ask([(address, each.send) for (address, _), each in requests.items()])
            for ((address, _), request), answer in zip(requests.items(), answers, strict=True):
                remote += request.keys.num_rows
                if isinstance(answer, TidegateError):
                    for arrival in request.arrivals:
                        self._give_up(snapshot, arrival, address, answer)
                    continue
                rows = _checked(answer, table.answered, address)
                for arrival in request.arrivals:  # Each takes note of what is of its own groups.
                    arrival.transfer.learn(table, request.keys, rows)
                self._count(demand_keys=len(pc.unique(rows[PROBE])), demand_bytes=rows.nbytes)
        raise StateError(f"{table.name}: none of the owners of its state answers")

    def _asked(
        self, snapshot: Snapshot, groups: Groups, asking: Callable[[Arrival], Callable[[Origin], T]]
    ) -> list[tuple[Arrival, str, T]]:
        """The answers of all origins of open groups, as of the arrival's batch, each with what it was asked
        for. Groups whose origin does not answer are no longer open then."""
        for _ in range(_ROUNDS):
            wanted = [
                (Arrival(arrival.transfer, mine), address)
                for arrival in snapshot.arriving
                for address, mine in arrival.transfer.origins(arrival.open & groups).items()
            ]
            requests = [(address, asking(arrival)) for arrival, address in wanted]
            found, failed = [], False
            for (arrival, address), answer in zip(wanted, self._peers.ask(requests), strict=True):
                if isinstance(answer, TidegateError):
                    self._give_up(snapshot, arrival, address, answer)
                    failed = True
                else:
                    found.append((arrival, address, answer))
            if not failed:
                return found
        raise StateError(f"none of the owners of key groups {show_groups(groups)} answers")

    def _give_up(self, snapshot: Snapshot, arrival: Arrival, address: str, error: TidegateError) -> None:
        """Do without an origin, for everything that was to come from it."""
        transfer = arrival.transfer
        lost = transfer.origins(transfer.received.open).get(address, frozenset())
        if not lost:
            return
        what = f"key groups {show_groups(lost)} as of batch {transfer.batch_id}"
        if not snapshot.log.durable:
            raise StateError(
                f"{what} were only in the memory of the node at {address}, which does not answer: {error}. "
                "They are lost with it; start over, and set state.durable if that must not happen"
            ) from error
        transfer.drop(lost)
        _log.warning("cannot fetch %s from the node at %s; reading the log: %s", what, address, error)

    def _count(self, **figures: int) -> None:
        with self._lock:
            self._figures.update(figures)
            self.received += figures.get("demand_bytes", 0) + figures.get("background_bytes", 0)


def _missing(snapshot: Snapshot, table: StateTable, share: _Share) -> Iterator[tuple[str, Groups, pa.Table]]:
    """What to ask which origin for, by what is here now: keys, each once."""
    transfer = share.arrival.transfer
    share.received = transfer.received
    left = share.left[share.here[share.left]]
    keys = share.keys.take(pa.array(left))
    rows, missing = share.received.lookup(transfer.place(table), table, keys, snapshot.closed)
    share.old = with_probes(rows, left)
    if not len(missing):
        return
    keys = keys.take(pa.array(missing))
    first, _ = distinct(hash_column(keys[HASH]), [keys[name] for name in table.keys.names])
    keys = keys.take(pa.array(first))
    groups = group_of(hash_column(keys[HASH]), snapshot.count)
    for address, mine in transfer.origins(frozenset(np.unique(groups).tolist())).items():
        yield address, mine, keys.filter(pa.array(inside(mine, snapshot.count)[groups]))


def _checked(rows: pa.Table, wanted: pa.Schema, address: str) -> pa.Table:
    if rows.schema.names != wanted.names or rows.schema.types != wanted.types:
        raise StateError(f"the node at {address} sent columns {rows.schema.names} for {wanted.names}")
    return pa.Table.from_arrays(rows.columns, schema=wanted)


def _left(groups: Groups, count: int, first: int) -> list[tuple[int, int]]:
    """Spans of hashes that groups have from a hash on."""
    spans = [(bounds(low, count)[0], bounds(high, count)[1]) for low, high in ranges(groups)]
    return [(max(low, first), high) for low, high in spans if high > first]
