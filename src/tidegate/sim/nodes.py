"""State nodes as simulated processes, and what starts and ends them on hosts that can be reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tidegate.batch.ticket import Ticket
from tidegate.errors import StateError, TidegateError
from tidegate.security.security import Security
from tidegate.sim.hosts import Host
from tidegate.sim.network import Lock
from tidegate.sim.process import Process, Sequential
from tidegate.state.fleet.placement import placed
from tidegate.state.fleet.provider import NodeHandle
from tidegate.state.node.node import StateNode
from tidegate.state.node.shard import Shard
from tidegate.state.wire import commands as wire

if TYPE_CHECKING:
    from tidegate.sim.driver import Driver
    from tidegate.sim.world import World

_PORTS = 5


class Node(Process):
    """A real `StateNode` that knows nothing when it starts."""

    def __init__(self, world: World, name: str, host: Host, address: str, driver: Driver) -> None:
        super().__init__(name, host)
        self.address = address
        self.driver = driver
        self.hangs = False
        self.compacting = False
        self._world = world
        self._renewed = self._begun = 0
        """The newest driver that has renewed the lease, and that has begun a batch."""
        self._heard = world.clock()
        shard = Shard(
            world.storage(),
            name=name,
            scratch=host.scratch,
            memory=1 << 20,
            connect=world.connect,
            pool=Sequential(world.rng),
        )
        self.state = StateNode(
            shard, name=name, staged=1 << 30, lock=Lock(), lease=world.lease, clock=world.clock
        )

    def arrived(self, command: wire.Command) -> None:
        """By our own reckoning, too: a lease is renewed by its newest driver, and not once it has run out."""
        renewing = isinstance(command, wire.Begin | wire.Prepare | wire.Commit | wire.Renew)
        generation = _generation(command)
        if renewing and generation is not None and generation >= self._renewed and not self.is_forsaken:
            self._renewed, self._heard = generation, self._world.clock()

    def accepted(self, command: wire.Command) -> None:
        """Whoever has heard a newer driver takes nothing from an older one."""
        generation = _generation(command)
        if generation is None:
            return
        newest = self._renewed if isinstance(command, wire.Renew) else self._begun
        self._world.promise(
            generation >= newest,
            f"{self.name} takes a {wire.operation(type(command))} of generation {generation} after {newest}",
        )
        if isinstance(command, wire.Begin):
            self._begun = generation

    @property
    def is_forsaken(self) -> bool:
        """Whether no driver that counts has asked for it for as long as its lease."""
        lease = self._world.lease
        return lease is not None and self._world.clock() - self._heard >= lease


def _generation(command: wire.Command) -> int | None:
    """Of the driver that a command comes from; None where that does not matter."""
    if isinstance(command, wire.Renew):
        return command.generation
    ticket: Ticket | None = getattr(command, "ticket", None)
    return ticket.generation if ticket else None


def _handle(node: Node) -> NodeHandle:
    return NodeHandle(node.name, node.address, 0, node.host.name)


class Provider:
    """Starts nodes at addresses that are free: that of a dead one may be another driver's by now.

    Where there is a lease, a node is no child of its driver: one that cannot be reached lives on.
    """

    security = Security("token")

    def __init__(self, world: World, driver: Driver, prefix: str) -> None:
        self._world = world
        self._driver = driver
        self._prefix = prefix
        self._nodes: list[Node] = []
        self._standing_by: dict[int, Node] = {}
        self._retiring: list[Node] = []

    @property
    def nodes(self) -> tuple[NodeHandle, ...]:
        return tuple(map(_handle, self._nodes))

    def grow(self, count: int, *, gently: bool = False) -> None:
        self._nodes += self._all_started(range(len(self._nodes), count), self._nodes)

    def shrink(self, count: int) -> None:
        leaving, self._nodes = self._nodes[count:], self._nodes[:count]
        self._end(leaving, "is ended")

    def dead(self) -> list[int]:
        """Those that do not answer; some do so a moment too late."""
        world, here = self._world, self._driver.host.name
        world.step()
        return [
            index
            for index, node in enumerate(self._nodes)
            if node.dead
            or node.hangs
            or not world.links.reach(here, node.host.name)
            or world.strikes(world.weather.lost)
        ]

    def replace_all(self, indexes: Sequence[int]) -> list[NodeHandle]:
        for index in indexes:
            old = self._nodes[index]
            self._end([old], "is replaced")
            self._nodes[index] = self._started(index, [node for node in self._nodes if node is not old])
        return [self.nodes[index] for index in indexes]

    def leaving(self, *, now: bool = False) -> frozenset[int]:
        return frozenset(index for index, node in enumerate(self._nodes) if node.host.leaves)

    def stand_in(self, indexes: Iterable[int]) -> None:
        moving = sorted(indexes)
        started = self._all_started(moving, [node for at, node in enumerate(self._nodes) if at not in moving])
        self._standing_by |= dict(zip(moving, started, strict=True))

    def take_over(self) -> dict[int, NodeHandle]:
        old = {index: self._nodes[index] for index in self._standing_by if index < len(self._nodes)}
        for index in old:
            self._nodes[index] = self._standing_by.pop(index)
        self._retiring += old.values()
        return {index: _handle(node) for index, node in old.items()}

    @property
    def retiring(self) -> tuple[NodeHandle, ...]:
        return tuple(map(_handle, self._retiring))

    def retire(self) -> None:
        leaving, self._retiring = self._retiring, []
        self._end(leaving, "is ended")

    def cancel(self) -> None:
        leaving, self._standing_by = list(self._standing_by.values()), {}
        self._end(leaving, "is not needed")

    def close(self) -> None:
        self.shrink(0)
        self.retire()
        self.cancel()

    def renew(self, generation: int) -> None:
        """Tell all nodes that their driver lives, as far as it reaches them."""
        for node in (*self._nodes, *self._standing_by.values(), *self._retiring):
            try:
                self._world.connect(node.address).renew(generation)
            except TidegateError as error:
                self._world.tell(f"the lease of {node.name} is not renewed: {error}")

    def _end(self, leaving: Sequence[Node], fate: str) -> None:
        """Whatever they are doing, if they can be reached; else they are left to their lease."""
        for node in leaving:
            if self._world.links.carries(self._driver.host.name, node.host.name):
                self._world.kill(node, fate)
            elif not node.dead:
                self._world.counts["left to their lease"] += 1
                self._world.tell(f"{node.name} {fate}, but does not hear of it")

    def _all_started(self, indexes: Iterable[int], others: Sequence[Node]) -> list[Node]:
        """Or none of them."""
        self._world.step()
        if self._world.strikes(self._world.weather.no_start):
            raise StateError("a node did not start")
        started: list[Node] = []
        try:
            for index in indexes:
                started.append(self._started(index, [*others, *started]))
        except TidegateError:
            self._end(started, "is not needed")
            raise
        return started

    def _started(self, index: int, others: Sequence[Node]) -> Node:
        """On the host with the fewest, or another one if that cannot be reached."""
        world, here = self._world, self._driver.host.name
        taken = [node.host.name for node in others]
        hosts = [host for host in world.hosts if not host.leaves] or world.hosts
        left = {host.name: host for host in world.rng.sample(hosts, len(hosts))}
        while left:
            (name,) = placed(1, list(left), taken)
            if world.links.carries(here, name):
                node = self._listening(index, left[name])
                if world.links.carries(name, here):
                    return node
                world.tell(f"{self._driver.name} does not hear of {node.name}")
            del left[name]
        raise StateError("a node did not start: no host can be reached")

    def _listening(self, index: int, host: Host) -> Node:
        world = self._world
        taken = {node.address for node in world.network.listening.values() if not node.dead}
        free = [place for port in range(_PORTS) if (place := f"{host.name}:{port}") not in taken]
        world.counts["nodes"] += 1
        number = world.counts["nodes"]
        address = world.rng.choice(free or [f"{host.name}:{_PORTS + number}"])
        node = Node(world, f"{self._prefix}node-{index}-{number}", host, address, self._driver)
        world.network.listening[address] = node
        world.tell(f"{node.name} listens at {address}")
        return node
