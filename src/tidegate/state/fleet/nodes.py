"""The state nodes of a run, as the driver sees them: the route to them, and the batch protocol's calls."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tidegate import faults
from tidegate.batch.ticket import StagedPart, Ticket
from tidegate.batch.time import Time
from tidegate.config.settings import StateSettings as Settings
from tidegate.errors import NodeError, StateLostError, TidegateError
from tidegate.rescale.model import Moved
from tidegate.rescale.route import Route, moves
from tidegate.state.fleet.provider import NodeHandle, NodeProvider
from tidegate.state.log.manifest import StateManifest, together
from tidegate.state.table.keys import Groups, show_groups
from tidegate.state.task.assignment import Assignment
from tidegate.state.wire.client import NodeClient, client_for, patiently
from tidegate.state.wire.commands import Begin, Nonces, PrepareAnswer
from tidegate.units import seconds

_log = logging.getLogger(__name__)

_POLL = 0.01
"""Seconds between two checks of the state that a batch is held for."""
_POLLS = 100
"""Such checks without progress until the node is told again."""
_PATIENCE = 3
"""Time-outs without progress until it is given up."""
_UNLIMITED = 1 << 62
"""Bytes: all of it."""
_DECAY = 0.8
"""The weight of earlier load when the next batch is measured."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """State that came from its old owners in a batch."""

    on_demand: Moved = field(default_factory=Moved)
    background: Moved = field(default_factory=Moved)
    groups_left: int = 0
    """Key groups that have not wholly arrived."""
    local: int = 0
    """Keys looked up that the node had."""
    remote: int = 0
    """Keys looked up that it had to ask an old owner for."""


@dataclass(frozen=True, slots=True)
class StateResult:
    """What a batch left in the nodes once all of them have prepared."""

    manifest: StateManifest
    late: int
    wire: int
    """Bytes of keys and rows between tasks and nodes."""
    rows: int
    """Rows of state that were written."""
    bytes: int
    """What the log grew by."""
    arrived: Arrived = field(default_factory=Arrived)
    furthest: int | None = None
    """The latest moment for which a window or timer of this batch waits, in microseconds."""
    wire_remote: int = 0
    """Those of `wire` that went between a task and a node on another host."""


@dataclass(frozen=True, slots=True)
class _Switch:
    """What is special about the first batch on a new route."""

    origins: Mapping[int, Mapping[NodeHandle, Groups]] = field(default_factory=dict)
    """New owner -> old owner -> groups."""
    losing: frozenset[int] = frozenset()
    """Nodes that own nothing any more: they have to hear of it."""
    moved: Mapping[int, NodeHandle] = field(default_factory=dict)
    """What was in the place of a node that is on another machine now: it has to hear of it, too."""
    hold: bool = False


def in_background(work: Callable[[], None]) -> None:
    """In a thread of its own, which does not keep the process alive."""
    threading.Thread(target=work, name="nodes", daemon=True).start()


class Nodes:
    """The state nodes of a driver, with the state that they stand at."""

    def __init__(
        self,
        settings: Settings,
        *,
        provider: NodeProvider,
        pipeline: str,
        base: StateManifest,
        route: Route,
        peers: bool,
        connect: Callable[[str], NodeClient] | None = None,
        spawn: Callable[[Callable[[], None]], object] = in_background,
        sleep: Callable[[float], None] = time.sleep,
        pool: Executor | None = None,
        patience: float = 0.0,
    ) -> None:
        """`provider` has the nodes of the route. `peers`: after a switch of the route, new owners get state
        from the old ones; else from the log. `connect` leads to the node at an address, `spawn` runs what no
        batch is to wait for, `pool` questions to several nodes. `patience`: seconds that a node which answers
        may wait for its log."""
        self._base = base
        self._tables = base.tables
        self.route = route
        self.peers = peers
        self.budget = 0
        """Bytes that a node may bring over in the background during the next batch."""
        self.load: NDArray[np.float64] = np.zeros(route.groups)
        """Recent accesses to each key group, later ones counting more."""
        self.durable = settings.durable
        """Whether what the nodes keep outlives them."""
        self.security = provider.security
        self._tasks = self.security.party("task")
        self._switch = _Switch()
        self.timeout = seconds(settings.timeout)
        """How long a live node may take to answer."""
        self._pipeline = pipeline
        self._before: Ticket | None = None
        self._owners: dict[int, NodeHandle] = {}
        """The nodes that have the state of the batch before."""
        self._nonces: Nonces = {}
        self._answers: dict[int, PrepareAnswer] = {}
        self._provider = provider
        self._connect = connect or partial(
            client_for,
            security=self.security,
            pipeline=pipeline,
            timeout=self.timeout,
        )
        self._spawn = spawn
        self._sleep = sleep
        self._pool = pool
        self._repeats = math.ceil(patience / self.timeout)

    @property
    def expected(self) -> dict[int, frozenset[StagedPart]]:
        """What each node must have got before a batch can commit."""
        return {
            node: frozenset(
                (table.name, partition)
                for table in self._tables
                for partition in self.route.partitions_on(node)
            )
            for node in {*self.route.nodes, *self._switch.losing}
        }

    @property
    def handles(self) -> tuple[NodeHandle, ...]:
        """The nodes by number; some may own nothing."""
        return self._provider.nodes

    def sizes(self) -> dict[int, tuple[int, int]]:
        """Rows and bytes of the key groups as they lie in the log; of nodes that answer."""
        found: dict[int, tuple[int, int]] = {}
        asking = nullcontext(self._pool) if self._pool else ThreadPoolExecutor(len(self.route.nodes))
        with asking as pool:
            for sizes in pool.map(self._sizes_on, self.route.nodes):
                found |= sizes
        return found

    def stored(self) -> list[int]:
        """Bytes of the log that the key groups of each node take, about: a run counts in equal parts for its
        groups. No node is asked."""
        each = np.zeros(self.route.groups)
        for run in self._base.runs:
            each[sorted(run.groups)] += run.bytes / len(run.groups)
        owners = np.asarray(self.route.owners, np.int64)
        return [round(size) for size in np.bincount(owners, each, len(self.handles))]

    def grow(self, count: int) -> None:
        """Have at least so many nodes, without a batch taking longer for it. The new ones own nothing yet."""
        self._provider.grow(count, gently=True)

    def leaving(self, *, now: bool = False) -> frozenset[int]:
        """The nodes on machines that are going away, as was last known, or as it is `now`."""
        return self._provider.leaving(now=now)

    def stand_in(self, indexes: frozenset[int]) -> None:
        """Have another node beside each of these, on a machine that stays. The next switch puts them in their
        places."""
        self._provider.stand_in(indexes)

    def shrink(self, count: int) -> None:
        """All state is where it belongs: keep the first `count` nodes; the others end, and those whose places
        were taken."""
        self._provider.shrink(count)
        self._provider.retire()

    def cancel(self, count: int) -> None:
        """There is no switch: keep the first `count` nodes, and none that stands by."""
        self._provider.shrink(count)
        self._provider.cancel()

    def switch(self, route: Route, *, hold: bool) -> None:
        """Between two batches: the next one runs on this route. `hold` it until the state is all there."""
        handles = self._provider.nodes
        origins: dict[int, dict[NodeHandle, Groups]] = {}
        for move in moves(self.route, route) if self.peers else ():
            groups, owner = origins.setdefault(move.target, {}), handles[move.source]
            groups[owner] = groups.get(owner, frozenset()) | {move.group}
        losing = frozenset(self.route.nodes) - frozenset(route.nodes)
        moved = self._provider.take_over()
        for index, old in moved.items() if self.peers else ():
            if staying := self.route.groups_of(index) & route.groups_of(index):
                origins.setdefault(index, {})[old] = staying
        self._switch = _Switch(origins, losing, moved, hold)
        self.route = route

    def restart(self, route: Route) -> None:
        """Between two batches: end all nodes and start those of another route; the log has the state."""
        self._provider.close()
        self._provider.grow(max(route.nodes) + 1)
        self.route, self._switch = route, _Switch()

    def let_go(self) -> None:
        """All state is where it belongs: nobody asks its old owners any more. A thread of its own tells them,
        so that no batch waits for one that does not answer; what leaves them from now on is not meant."""
        assert self._before is not None
        ticket, every = self._before, frozenset(range(self.route.groups))

        def tell(handles: Sequence[NodeHandle]) -> None:
            for node in handles:
                try:
                    self._connect(node.address).release(ticket, every)
                except TidegateError as error:
                    _log.warning("could not tell %s to release key groups: %s", node.name, error)

        self._spawn(partial(tell, self._provider.nodes))

    def assignment(self, ticket: Ticket, time: Time) -> Assignment:
        """What the tasks of an attempt have to know."""
        nodes = self._provider.nodes
        return Assignment(
            pipeline=self._pipeline,
            security=self._tasks,
            ticket=ticket,
            nonces=self._nonces,
            time=time,
            route=self.route,
            addresses=tuple(node.address for node in nodes),
            hosts=tuple(node.host for node in nodes),
            timeout=self.timeout,
            faults=faults.place(),
        )

    def begin(self, node: int, ticket: Ticket, watermark: int | None) -> None:
        """Have a node stand at the batch before, whatever it is at."""
        groups, switch = self.route.groups_of(node), self._switch
        self._answers.pop(node, None)
        base = self._base.restricted(groups)
        owner = self._owners.get(node)
        if owner is not None and base.runs:
            self._check_not_lost(owner, groups)
        self._freeze(node, ticket, watermark)
        command = Begin(
            ticket,
            base,
            groups,
            watermark,
            origins=self._origins(node),
            budget=_UNLIMITED if switch.hold else self.budget,
            urgent=switch.hold,
        )
        patiently(self._client(node), lambda client: client.begin(command), self._repeats)
        if switch.hold:
            self._hold(node, command)

    def prepare(self, node: int, ticket: Ticket) -> frozenset[StagedPart]:
        """Have a node make durable what was staged; what that was."""
        answer = patiently(self._client(node), lambda client: client.prepare(ticket), self._repeats)
        self._answers[node] = answer
        return frozenset((table, partition) for table, parts in answer.tables.items() for partition in parts)

    def kept(self, batch_id: int, watermark: int | None) -> StateResult:
        """What the nodes answered, together."""
        answers = self._answers.values()
        runs = together(answer.runs for answer in answers)
        return StateResult(
            manifest=StateManifest(batch_id, self.route.groups, watermark, self._tables, runs),
            late=sum(answer.stats.get("late", 0) for answer in answers),
            wire=sum(answer.stats.get("wire", 0) for answer in answers),
            rows=sum(rows for a in answers for parts in a.tables.values() for rows in parts.values()),
            bytes=sum(answer.bytes for answer in answers),
            arrived=_arrived(answers),
            furthest=max((a.furthest for a in answers if a.furthest is not None), default=None),
            wire_remote=sum(answer.stats.get("wire_remote", 0) for answer in answers),
        )

    def committed(self, ticket: Ticket, manifest: StateManifest) -> None:
        """The batch is in the ledger: from now on the nodes are to stand there."""
        self._base, self._before = manifest, ticket
        self._owners = {node: self._handle(node) for node in self.route.nodes}
        self._switch = _Switch()
        load = self.load * _DECAY
        for answer in self._answers.values():
            for group, accesses in answer.load.items():
                load[group] += accesses
        self.load = load
        self._nonces = agreed(answer.nonces for answer in self._answers.values())
        self._answers = {}

    def commit(self, node: int, ticket: Ticket, watermark: int | None) -> None:
        """Have a node make the batch current. One that misses it is told by the next `begin`."""
        try:
            self._client(node).commit(ticket, watermark)
        except TidegateError as error:
            _log.warning("node %d was not told that batch %d is committed: %s", node, ticket.batch_id, error)

    def heal(self) -> int:
        """Replace the nodes that do not answer; how many there were."""
        lost = self._provider.dead()
        for node in lost:
            _log.warning("state node %d is lost; starting a replacement", node)
        self._provider.replace_all(lost)
        return len(lost)

    def close(self) -> None:
        self._provider.close()

    def _sizes_on(self, node: int) -> dict[int, tuple[int, int]]:
        handles = self._provider.nodes
        if node >= len(handles):
            return {}  # All of them are being started anew.
        try:
            sizes = self._connect(handles[node].address).status(sizes=True).sizes
        except NodeError:
            return {}  # It is replaced when the next batch needs it.
        return {int(group): (rows, size) for group, (rows, size) in sizes["groups"].items()}

    def _freeze(self, node: int, ticket: Ticket, watermark: int | None) -> None:
        """Have what was in the place of a node stand at the batch before, with nothing of its own any more:
        it keeps what it had for others to fetch. If it is dead, the log stands in for it."""
        old = self._switch.moved.get(node)
        if old is None or not self.peers:
            return
        nothing = frozenset[int]()
        command = Begin(ticket, self._base.restricted(nothing), nothing, watermark)
        try:
            self._connect(old.address).begin(command)
        except NodeError as error:
            log = "its state is read from the log" if self.durable else "its state is lost"
            _log.warning("%s cannot hand over what it has, %s: %s", old.name, log, error)

    def _hold(self, node: int, command: Begin) -> None:
        """Wait until a node has all of its state, as long as some of it comes."""
        seen, waited = (0, 0), 0
        while (left := (status := self._client(node).status()).groups_left) > 0:
            waited = waited + 1 if seen == (left, status.received) else 0
            seen = left, status.received
            if waited * _POLL > _PATIENCE * self.timeout:
                raise NodeError(
                    f"state node {node} is waiting for the state of {left} key groups, and has received none "
                    f"of it for {_PATIENCE * self.timeout:.0f} s",
                    node=str(node),
                )
            self._sleep(_POLL)
            if waited % _POLLS == _POLLS - 1:
                # A node leaves an old owner that did not answer alone until it is begun again; where there is
                # no log, nobody but that owner has the state.
                for address in () if self.durable else command.origins:
                    self._connect(address).status()
                self._client(node).begin(command)

    def _origins(self, node: int) -> Mapping[str, Groups]:
        """Where a node gets the state of its groups from. An old owner may have died since: then only the
        log has that state, if there is one."""
        origins = self._switch.origins.get(node, {})
        for owner, groups in origins.items():
            self._check_not_lost(owner, groups)
        return {owner.address: groups for owner, groups in origins.items() if self._may_live(owner)}

    def _may_live(self, owner: NodeHandle) -> bool:
        """Whether an owner of state is still a node of this run, and no other one has taken its address: that
        one does not have the state, and would ask itself for it."""
        nodes = *self._provider.nodes, *self._provider.retiring
        return owner in nodes and all(node == owner or node.address != owner.address for node in nodes)

    def _check_not_lost(self, owner: NodeHandle, groups: Groups) -> None:
        """Raise StateLostError when the state of these groups went with its owner."""
        if not self.durable and not self._may_live(owner):
            raise StateLostError(
                f"the state of key groups {show_groups(groups)} was in the memory of {owner.name} alone, as "
                "state.durable is off, and is lost with it; start with a new checkpoint"
            )

    def _client(self, node: int) -> NodeClient:
        return self._connect(self._handle(node).address)

    def _handle(self, node: int) -> NodeHandle:
        handles = self._provider.nodes
        if node >= len(handles):
            raise NodeError(f"state node {node} is not running: all nodes have been ended", node=str(node))
        return handles[node]


def agreed(nonces: Iterable[Nonces]) -> Nonces:
    """Which attempt at each task counts; those are left out of which one node has one attempt and another
    node another."""
    found: dict[str, dict[int, int]] = {}
    for tables in nonces:
        for table, parts in tables.items():
            known = found.setdefault(table, {})
            for partition, nonce in parts.items():
                known[partition] = nonce if known.get(partition, nonce) == nonce else 0
    return {table: {at: nonce for at, nonce in parts.items() if nonce} for table, parts in found.items()}


def _arrived(answers: Iterable[PrepareAnswer]) -> Arrived:
    total: Counter[str] = Counter()
    for answer in answers:
        total.update(answer.arrived)
    return Arrived(
        Moved(total["demand_keys"], total["demand_bytes"]),
        Moved(total["background_keys"], total["background_bytes"]),
        total["groups_left"],
        total["local"],
        total["remote"],
    )


def name_prefix(generation: int) -> str:
    """How the names of a driver's nodes begin. They go into the names of the runs that those write."""
    return f"g{generation}-"


def generation_of(run: str) -> int | None:
    """The generation of the driver whose node wrote a run; None when its name does not tell."""
    found = re.match(r"\d+-g(\d+)-", run)
    return int(found[1]) if found else None
