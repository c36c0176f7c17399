"""The nodes of a run, on whatever machines: started together, watched, kept, replaced."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

from tidegate.errors import HostError, StateError, TidegateError
from tidegate.security.security import Security
from tidegate.state.fleet.launcher import Launcher, Running
from tidegate.state.fleet.nodes import name_prefix
from tidegate.state.fleet.placement import placed
from tidegate.state.fleet.provider import NodeHandle
from tidegate.state.fleet.reach import Reach, host_of
from tidegate.state.fleet.renewal import Renewal
from tidegate.state.node.lease import SHARE
from tidegate.state.wire.access import SOCKET
from tidegate.state.wire.beside import beside
from tidegate.state.wire.client import NodeClient

_log = logging.getLogger(__name__)

_BRIEFLY = 0.3
"""Seconds that one which is to end at once has, before another one starts in its place."""
_GLANCE = 0.1
_END = 5.0
"""Seconds that nodes have to end by themselves."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Member:
    running: Running
    client: NodeClient
    keeper: NodeClient
    """Does not wait for an answer so long that the leases of others would run out meanwhile."""
    host: str
    """What the launcher calls the place where it runs."""

    @property
    def handle(self) -> NodeHandle:
        return self.running.handle


class Fleet:
    """The `NodeProvider` that there is; what differs between kinds of machines is the launcher's."""

    def __init__(
        self,
        launcher: Launcher,
        count: int,
        *,
        pipeline: str,
        security: Security,
        generation: int,
        timeout: float,
        lease: float | None = None,
    ) -> None:
        """`timeout`, in seconds, is how long a live node may take to answer or to work on one request. With a
        `lease` nodes, and what the launcher has started, are told in time that this driver lives."""
        self.security = security
        self._launcher = launcher
        self._pipeline = pipeline
        self._generation = generation
        self._timeout = timeout
        self._lease = lease
        self._members: list[_Member] = []
        self._standing_by: dict[int, _Member] = {}
        self._retiring: list[_Member] = []
        self._leaving: frozenset[str] = frozenset()
        """The hosts that are going away, as was last known."""
        self._kept: set[_Member] = set()
        """Those that are to go on: also the ones that wait for others to start."""
        self._change = threading.Lock()  # of which nodes there are
        self._renewal: Renewal | None = None
        self._watch: Renewal | None = None
        """Beside the renewal of nodes: a host that does not answer must not delay that."""
        self._reach: Reach | None = None
        try:
            self.grow(count)
        except BaseException:
            self.close()
            raise

    @property
    def nodes(self) -> tuple[NodeHandle, ...]:
        return tuple(member.handle for member in self._members)

    def grow(self, count: int, *, gently: bool = False) -> None:
        """`gently`: one after the other, and they leave the machine to others until they listen, where that
        may be arranged."""
        if self._lease is not None and self._renewal is None:
            self._renewal = Renewal(self._lease / SHARE, self._keep, name="leases")
            self._watch = Renewal(self._lease / SHARE, self._look, name="hosts")
            self._reach = Reach(self._remote, self._lost)
        first = len(self._members)
        places = self._places(range(first, count), self._members)
        work = [partial(self._start, index, host, gently=gently) for index, host in places]
        started, problem = _side_by_side(work, 1 if gently else len(work))
        if problem is not None:
            self._end(started)
            raise problem
        with self._change:
            in_time = len(self._members) == first
            if in_time:
                self._members = [*self._members, *started]
        if not in_time:
            self._end(started)
            raise StateError("no state node was added: the nodes were ended in the meantime")

    def shrink(self, count: int) -> threading.Thread:
        """Keep the first `count` nodes. The others are out at once; join the answer to see them ended."""
        with self._change:
            leaving, self._members = self._members[count:], self._members[:count]
        return self._end_beside(leaving)

    def dead(self) -> list[int]:
        """Indexes of the nodes whose process is gone, that do not answer in time, or that have been at one
        request for longer than the time-out. Takes no longer than that itself."""
        members = self._members
        with ThreadPoolExecutor(max(len(members), 1)) as pool:
            found = list(pool.map(self._is_dead, members))
        return [index for index, dead in enumerate(found) if dead]

    def replace(self, index: int) -> NodeHandle:
        """End a node, whatever it is doing, and start another one in its place under a name of its own."""
        return self.replace_all([index])[0]

    def replace_all(self, indexes: Sequence[int]) -> list[NodeHandle]:
        """`replace` for several nodes side by side. When some do not start, the first error is raised once
        the others have; those that did not stay dead."""
        before = self._members
        staying = [member for index, member in enumerate(before) if index not in indexes]
        known = [index for index in indexes if index < len(before)]
        places = self._places(known, staying)
        replaced, problem = _side_by_side(
            [partial(self._replace, index, before[index], host) for index, host in places], len(places)
        )
        if problem is not None:
            raise problem
        if len(known) < len(indexes):
            raise _ended(next(index for index in indexes if index not in known))
        return replaced

    def leaving(self, *, now: bool = False) -> frozenset[int]:
        if now:
            self._leaving = self._launcher.leaving()
        members, hosts = self._members, self._leaving
        return frozenset(index for index, member in enumerate(members) if member.host in hosts)

    def stand_in(self, indexes: Iterable[int]) -> None:
        moving = sorted(indexes)
        staying = [member for index, member in enumerate(self._members) if index not in moving]
        places = self._places(moving, staying)
        work = [partial(self._start, index, host, gently=True) for index, host in places]
        started, problem = _side_by_side(work, 1)
        if problem is not None:
            self._end(started)
            raise problem
        with self._change:
            self._standing_by |= dict(zip(moving, started, strict=True))

    def take_over(self) -> dict[int, NodeHandle]:
        with self._change:
            old = {index: self._members[index] for index in self._standing_by if index < len(self._members)}
            members = list(self._members)
            for index in old:
                members[index] = self._standing_by.pop(index)
            self._members = members
            self._retiring += old.values()
        return {index: member.handle for index, member in old.items()}

    @property
    def retiring(self) -> tuple[NodeHandle, ...]:
        return tuple(member.handle for member in self._retiring)

    def retire(self) -> None:
        with self._change:
            leaving, self._retiring = self._retiring, []
        if leaving:
            self._end_beside(leaving)

    def cancel(self) -> None:
        with self._change:
            leaving, self._standing_by = list(self._standing_by.values()), {}
        if leaving:
            self._end_beside(leaving)

    def close(self) -> None:
        """End all nodes. May be called again."""
        with self._change:
            beside = [*self._retiring, *self._standing_by.values()]
            self._retiring, self._standing_by = [], {}
        self._end(beside)
        self.shrink(0).join()
        for watching in (self._renewal, self._watch, self._reach):
            if watching is not None:
                watching.close()
        self._renewal = self._watch = self._reach = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _places(self, indexes: Sequence[int], staying: Sequence[_Member]) -> list[tuple[int, str]]:
        if not indexes:
            return []
        taken = [member.host for member in staying]
        return list(zip(indexes, placed(len(indexes), self._launcher.hosts(), taken), strict=True))

    def _replace(self, index: int, old: _Member, host: str) -> NodeHandle:
        # It may be on a machine that is gone: nobody waits for that.
        self._end_beside([old], patience=0.0).join(_BRIEFLY)
        started = self._start(index, host)
        with self._change:
            in_time = index < len(self._members) and self._members[index] is old
            if in_time:
                self._members = [*self._members[:index], started, *self._members[index + 1 :]]
        if not in_time:
            self._end([started])
            raise _ended(index)
        return started.handle

    def _start(self, index: int, host: str, *, gently: bool = False) -> _Member:
        """On another host if this one cannot be reached."""
        tried = list[str]()
        while True:
            name = f"{name_prefix(self._generation)}node-{index}-{secrets.token_hex(4)}"
            try:
                return self._connected(self._launcher.start(name, host, gently=gently), host)
            except HostError as error:
                tried.append(host)
                others = [other for other in self._launcher.hosts() if other not in tried]
                if not others:
                    raise
                _log.warning("%s; trying another one", error)
                (host,) = placed(1, others, [member.host for member in self._members])

    def _connected(self, running: Running, host: str) -> _Member:
        patience = self._timeout if self._lease is None else min(self._timeout, self._lease / SHARE)
        client, keeper = (
            NodeClient(
                running.handle.address,
                security=self.security,
                pipeline=self._pipeline,
                timeout=timeout,
            )
            for timeout in (self._timeout, patience)
        )
        member = _Member(running, client, keeper, host)
        with self._change:
            self._kept.add(member)
        return member

    def _end(self, leaving: Sequence[_Member], patience: float = _END) -> None:
        with self._change:
            self._kept.difference_update(leaving)
        for member in leaving:
            member.client.close()
            member.keeper.close()
            member.running.request_end()
        _side_by_side([partial(member.running.end, patience) for member in leaving], len(leaving))
        if not self._members:
            self._launcher.close()

    def _end_beside(self, leaving: Sequence[_Member], patience: float = _END) -> threading.Thread:
        """No batch waits for it."""
        ending = threading.Thread(target=self._end, args=(leaving, patience), name="ending-nodes")
        ending.start()
        return ending

    def _is_dead(self, member: _Member) -> bool:
        if not member.running.alive:
            return True
        asked = beside(member.client.status, name=f"asking-{member.handle.name}")
        while not wait([asked], _GLANCE).done:
            if self._reach is not None and self._reach.out_of(member.handle.address):
                return True
        try:
            # A little less than the time-out: the node saw the request after the one who gave it up.
            return asked.result().busy > 0.9 * self._timeout
        except TidegateError:
            return True

    def _keep(self) -> None:
        """Tell all nodes that this driver lives. One that does not hear of it is found dead by a batch."""
        with self._change:
            kept = list(self._kept)
        _side_by_side([partial(member.keeper.renew, self._generation) for member in kept], len(kept))

    def _remote(self) -> list[str]:
        """The addresses of nodes that a network is between."""
        return [each.handle.address for each in self._members if not each.handle.address.startswith(SOCKET)]

    def _lost(self, host: str) -> None:
        there = [member for member in self._members if host_of(member.handle.address) == host]
        _log.warning("%s is out of reach, with %d state nodes", host, len(there))
        for place in {member.host for member in there}:
            self._launcher.lost(place)

    def _look(self) -> None:
        """Tell the same to what else the launcher has started, and see which hosts are going away."""
        self._launcher.renew()
        self._leaving = self._launcher.leaving()


def _side_by_side(work: Sequence[Callable[[], T]], threads: int) -> tuple[list[T], BaseException | None]:
    """The results of those that came to an end, and the first error of the others."""
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        done = [pool.submit(each) for each in work]
    problems = (each.exception() for each in done)
    found = [each.result() for each in done if each.exception() is None]
    return found, next((problem for problem in problems if problem is not None), None)


def _ended(index: int) -> StateError:
    return StateError(f"state node {index} was not replaced: it was ended in the meantime")
