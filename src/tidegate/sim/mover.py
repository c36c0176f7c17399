"""A simulated state node whose key groups come from other nodes and go to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random

from tidegate.batch.ticket import Ticket
from tidegate.errors import FencedError, NodeError, StaleError, StateError, TidegateError
from tidegate.sim.durable import Run
from tidegate.sim.errand import Request, Work
from tidegate.sim.hold import Arrival, Groups, Place, Snapshot, Transfer, runs_of
from tidegate.sim.network import Call
from tidegate.sim.node import Node, Receipt, neighbours
from tidegate.sim.workload import TABLES, State, group_of
from tidegate.state.log.manifest import RunRef, StateManifest

_SPAN = 2
"""Rows that come at once in the background."""


class Mover(Node):
    """A begin that takes groups away leaves them as they were, for their next owner. One that names origins
    has groups come from there: key by key as they are read, and span by span in the background."""

    logged = True
    """Whether runs outlive their node, so that the log stands in for an origin that is lost."""

    def restart(self) -> None:
        super().restart()
        self.at = -1
        self.base: tuple[RunRef, ...] = ()
        self.arrivals: tuple[Arrival, ...] = ()
        self.pending: Snapshot | None = None
        self.departures: dict[tuple[int, int], Snapshot] = {}
        """By batch and group."""
        self.memory: dict[str, Run] = {}
        self.allowance = 0
        self.pulling = False

    @property
    def now(self) -> Snapshot:
        return Snapshot(self.at, self.groups, self.base, self.runs, self.arrivals)

    def handle(self, call: Call) -> object:
        match call.action:
            case "take":
                return self.take(*call.body)
            case "span":
                return self.span(*call.body)
            case "release":
                return self.release(call.ticket)
        return super().handle(call)

    # --- batches -------------------------------------------------------------------------------------

    def begin(
        self,
        ticket: Ticket,
        groups: Groups,
        manifest: StateManifest,
        origins: Mapping[int, Mover] | None = None,
        budget: int = 0,
    ) -> object:
        """Answers how many groups have not wholly arrived."""
        fence = self.fence.begin(ticket)
        if fence is not self.fence:
            self.fence = fence
            self.receipt = None
            self.drop_staged()
            self._stand(groups, manifest, origins or {})
            self.allowance = budget
        return len(self.now.open)

    def _stand(self, groups: Groups, manifest: StateManifest, origins: Mapping[int, Mover]) -> None:
        common = self.groups & groups
        if self.pending is not None and self.pending.alike(manifest.batch_id, manifest.runs, common):
            self._become(self.pending)  # Its commit did not get here.
        self.pending = None
        before, base = self.now, runs_of(manifest.runs, groups)
        there = before.alike(manifest.batch_id, base, common)
        held = common if there else frozenset()
        filled = frozenset().union(*(run.groups for run in base))
        fresh = {group: node for group, node in origins.items() if group in (groups & filled) - held}
        arrivals = before.restricted(held).arrivals
        if fresh:
            arrivals = (*arrivals, Arrival(Transfer(manifest.batch_id, fresh), frozenset(fresh)))
        if there:
            self.freeze(before.restricted(before.groups - groups))
        self.departures = {at: kept for at, kept in self.departures.items() if at[0] <= manifest.batch_id}
        for arrival in arrivals:
            arrival.hold.wake()
        self.at, self.groups, self.base, self.arrivals = manifest.batch_id, groups, base, arrivals
        self.conform(manifest)

    def freeze(self, leaving: Snapshot) -> None:
        """Keep groups as they are, for their next owner."""
        for group in leaving.groups:
            self.departures[leaving.batch_id, group] = leaving.restricted(frozenset({group}))

    def prepare(self, ticket: Ticket) -> Receipt:
        known = self.receipt
        receipt = super().prepare(ticket)
        if known is None:
            self.receipt = receipt = replace(receipt, left=len(self.now.open))
            self.pending = Snapshot(ticket.batch_id, self.groups, receipt.runs, receipt.runs)
        return receipt

    def commit(self, ticket: Ticket) -> None:
        fence = self.fence.commit(ticket)
        if fence != self.fence and self.pending is not None:
            self._become(self.pending)
        self.fence = fence

    def _become(self, after: Snapshot) -> None:
        self.at, self.base, self.runs = after.batch_id, after.base, after.runs
        self.pending = None
        self.merges.clear()
        # An arrival counts as long as there are runs that it is read for.
        kept = [
            Arrival(arrival.hold, arrival.groups.intersection(_upto(self.base, arrival.hold.batch_id)))
            for arrival in self.arrivals
        ]
        self.arrivals = tuple(arrival for arrival in kept if arrival.groups)

    # --- reads ---------------------------------------------------------------------------------------

    def get(self, ticket: Ticket, table: str, groups: Groups, keys: frozenset[int] | None) -> object:
        self.fence.read(ticket)
        return self._read(self.now, table, groups, keys)

    def take(self, groups: Groups, batch_id: int, table: str, keys: frozenset[int] | None) -> Work[object]:
        """Groups that have left, as they were after a batch: all keys of a table, or these."""
        found: dict[int, int] = {}
        for group in sorted(groups):
            mine = frozenset({group})
            found |= yield from self._read(self.departed(batch_id, group), table, mine, keys)
        return found

    def span(self, group: int, batch_id: int, first: Place | None) -> Work[object]:
        """The next rows of such a group, and where to go on; None when that was all."""
        snapshot = self.departed(batch_id, group)
        rows: State = {}
        for table in TABLES:
            found = yield from self._read(snapshot, table, frozenset({group}), None)
            rows |= {(table, key): value for key, value in found.items()}
        places = sorted(place for place in rows if first is None or place >= first)
        part = {place: rows[place] for place in places[:_SPAN]}
        return part, places[_SPAN] if len(places) > _SPAN else None

    def departed(self, batch_id: int, group: int) -> Snapshot:
        """A group after a batch, for its next owner."""
        found = self.departures.get((batch_id, group))
        if found is not None:
            return found
        if self.at == batch_id and group in self.groups:  # The next owner has heard of the change before us.
            return self.now.restricted(frozenset({group}))
        raise StaleError(f"key group {group} as of batch {batch_id} is not kept on {self}")

    def release(self, ticket: Ticket) -> object:
        """Forget what left before a batch."""
        if ticket.generation < self.fence.ticket.generation:
            raise FencedError(f"{ticket} is refused by {self}")
        self.departures = {at: kept for at, kept in self.departures.items() if at[0] >= ticket.batch_id}
        return None

    @property
    def pullable(self) -> bool:
        """Whether there is something to be got in the background."""
        if not self.alive or self.hung or self.pulling or self.allowance <= 0:
            return False
        return any(not each.hold.rests(group) for each in self.arrivals for group in each.open)

    def pull(self) -> Work[object]:
        """Get a part of what is with other nodes."""
        self.pulling = True
        self.allowance -= 1
        for arrival in self.arrivals:
            hold = arrival.hold
            step = hold.next(arrival.groups)
            if step is None:
                continue
            origin = hold.origins[step.group]
            answer = yield Request(origin, "span", (step.group, hold.batch_id, step.first))
            if isinstance(answer, tuple):
                hold.load(step, *answer)
            elif hold.failed(origin) and self.logged:  # The first time it may not have heard of the batch.
                hold.drop(origin)
            break
        self.pulling = False
        return None

    def peek(self) -> State:
        """What all reads together would give, without asking: for the checks."""
        found: State = {}
        for group in self.groups:
            found |= _peeked(self, self.now, group)
        return found

    def _read(
        self, snapshot: Snapshot, table: str, groups: Groups, keys: frozenset[int] | None
    ) -> Work[dict[int, int]]:
        """Rows of a snapshot; what is not here is asked for first."""
        whole: dict[int, State] = {}
        while (asked := self._missing(snapshot, table, groups, keys, whole)) is not None:
            hold, origin, mine, wanted = asked
            answer = yield Request(origin, "take", (mine, hold.batch_id, table, wanted))
            if isinstance(answer, TidegateError):
                self._do_without(hold, origin, answer)
            elif isinstance(answer, dict) and wanted is not None:
                hold.learn(table, wanted, answer)
            elif isinstance(answer, dict):
                for group in mine:
                    rows = {(table, key): value for key, value in answer.items()}
                    whole[group] = self._of(group, rows)
        return self._seen(snapshot, table, groups, keys, whole)

    def _missing(
        self,
        snapshot: Snapshot,
        table: str,
        groups: Groups,
        keys: frozenset[int] | None,
        whole: Mapping[int, State],
    ) -> tuple[Transfer, Mover, Groups, frozenset[int] | None] | None:
        """What to ask one origin for: keys of some groups, or all of those."""
        found: tuple[Transfer, Mover] | None = None
        mine: set[int] = set()
        wanted: set[int] = set()
        for group in sorted(groups):
            hold = snapshot.arrival(group)
            if hold is None or group not in hold.open or group in whole:
                continue
            if found is not None and found != (hold, hold.origins[group]):
                continue
            left = self._unknown(snapshot, hold, table, group, keys)
            if keys is None or left:
                found = (hold, hold.origins[group])
                mine.add(group)
                wanted |= left
        if found is None:
            return None
        return (*found, frozenset(mine), None if keys is None else frozenset(wanted))

    def _unknown(
        self, snapshot: Snapshot, hold: Transfer, table: str, group: int, keys: frozenset[int] | None
    ) -> set[int]:
        """Keys of an open group that its origin has to be asked for."""
        newer = self._rows(snapshot.runs, group, hold.batch_id)
        return {
            key
            for key in keys or ()
            if self._group(table, key) == group
            and (table, key) not in newer
            and not hold.knows(group, (table, key))
        }

    def _do_without(self, hold: Transfer, origin: Mover, error: TidegateError) -> None:
        """An origin does not give what is asked for: from now on the log is read, if there is one."""
        if not any(hold.origins[group] is origin for group in hold.open):
            return
        if self.logged:
            hold.drop(origin)
        elif isinstance(error, NodeError):
            raise error
        else:
            raise StateError(f"state is lost: {origin} has it no more: {error}") from error

    def _seen(
        self,
        snapshot: Snapshot,
        table: str,
        groups: Groups,
        keys: frozenset[int] | None,
        whole: Mapping[int, State],
    ) -> dict[int, int]:
        found: State = {}
        for group in groups:
            hold = snapshot.arrival(group)
            if hold is None:
                found |= self._rows(snapshot.runs, group)
                continue
            old = hold.settled.get(group)
            if old is None:
                old = whole[group] if group in whole else self._of(group, hold.known(group, table))
            found |= self.combined(old, self._rows(snapshot.runs, group, hold.batch_id))
        return {
            key: value
            for (name, key), value in found.items()
            if name == table and (keys is None or key in keys)
        }

    def combined(self, came: State, written: State) -> State:
        """What has come of a group, and what was written since."""
        return {**came, **written}

    def _rows(self, runs: Iterable[RunRef], group: int, after: int = -2) -> State:
        """What runs that are younger than a batch hold of a group."""
        found: State = {}
        for ref in sorted(runs, key=lambda run: (run.sequence, run.name)):
            if group in ref.groups and ref.sequence > after:
                found |= self._of(group, self._run(ref).rows)
        return found

    def _run(self, ref: RunRef) -> Run:
        found = (self.durable.log if self.logged else self.memory).get(ref.name)
        if found is None:
            raise StateError(f"run {ref.name} is not in the {'log' if self.logged else 'memory'} of {self}")
        return found

    def _of(self, group: int, rows: State) -> State:
        return {place: value for place, value in rows.items() if self._group(*place) == group}

    def _group(self, table: str, key: int) -> int:
        return group_of(table, key, self.durable.workload.groups)

    # --- merges --------------------------------------------------------------------------------------

    def keep(self, name: str, run: Run) -> None:
        super().keep(name, run)
        if not self.logged:
            self.memory[name] = run

    def mergeable(self, rng: Random) -> tuple[RunRef, ...]:
        """None that arrivals are read for; unless there is no log, and all has come: then all together."""
        reached = max((each.hold.batch_id for each in self.arrivals), default=-1)
        if not self.logged and self.arrivals and not self.now.open and self.at > reached:
            return self.runs
        free = tuple(run for run in self.runs if run.sequence > reached)
        return neighbours(free, rng) if free else ()

    def sequence(self, inputs: tuple[RunRef, ...]) -> int:
        everything = not self.logged and bool(self.arrivals) and inputs == self.runs
        return self.at if everything else super().sequence(inputs)

    def content(self, runs: tuple[RunRef, ...]) -> State:
        found: State = {}
        for group in frozenset().union(*(run.groups for run in runs)):
            hold = self.now.arrival(group)
            if hold is None or group not in _upto(runs, hold.batch_id):
                found |= self._rows(runs, group)
            else:
                found |= self.combined(hold.settled.get(group, {}), self._rows(runs, group, hold.batch_id))
        return found


def _upto(runs: Iterable[RunRef], batch_id: int) -> Groups:
    """The groups that have rows up to a batch."""
    return frozenset().union(*(run.groups for run in runs if run.sequence <= batch_id))


def _peeked(node: Mover, snapshot: Snapshot, group: int) -> State:
    hold = snapshot.arrival(group)
    if hold is None:
        return node._rows(snapshot.runs, group)
    old = hold.settled.get(group)
    if old is None:
        origin = hold.origins[group]
        try:
            old = _peeked(origin, origin.departed(hold.batch_id, group), group)
        except (StaleError, StateError):
            if not node.logged:
                raise
            return node._rows(snapshot.runs, group)
    return node.combined(old, node._rows(snapshot.runs, group, hold.batch_id))
