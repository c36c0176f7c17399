"""State nodes as simulated processes, and what starts and ends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.errors import StateError
from tidegate.sim.network import Lock
from tidegate.sim.process import Process, Sequential
from tidegate.state.fleet.provider import NodeHandle
from tidegate.state.node.node import StateNode
from tidegate.state.node.shard import Shard
from tidegate.state.wire.access import Identity

if TYPE_CHECKING:
    from tidegate.sim.driver import Driver
    from tidegate.sim.world import World

_ADDRESSES = 10


class Node(Process):
    """A real `StateNode` that knows nothing when it starts."""

    def __init__(self, world: World, name: str, address: str, driver: Driver) -> None:
        super().__init__(name)
        self.address = address
        self.driver = driver
        self.hangs = False
        self.compacting = False
        shard = Shard(
            world.storage(),
            name=name,
            scratch=world.scratch,
            memory=1 << 20,
            connect=world.connect,
            pool=Sequential(world.rng),
        )
        self.state = StateNode(shard, name=name, staged=1 << 30, lock=Lock())


class Provider:
    """Starts nodes at addresses that are free: that of a dead one may be another driver's by now."""

    token = "token"
    identity: Identity | None = None

    def __init__(self, world: World, driver: Driver, prefix: str) -> None:
        self._world = world
        self._driver = driver
        self._prefix = prefix
        self._nodes: list[Node] = []

    @property
    def nodes(self) -> tuple[NodeHandle, ...]:
        return tuple(NodeHandle(node.name, node.address, 0) for node in self._nodes)

    def grow(self, count: int, *, gently: bool = False) -> None:
        self._world.step()
        if self._world.strikes(self._world.weather.no_start):
            raise StateError("a node did not start")
        while len(self._nodes) < count:
            self._nodes.append(self._started(len(self._nodes)))

    def shrink(self, count: int) -> None:
        leaving, self._nodes = self._nodes[count:], self._nodes[:count]
        for node in leaving:
            self._world.kill(node, "is ended")

    def dead(self) -> list[int]:
        """Those that do not answer; some do so a moment too late."""
        self._world.step()
        slow = self._world.weather.lost
        return [
            index
            for index, node in enumerate(self._nodes)
            if node.dead or node.hangs or self._world.strikes(slow)
        ]

    def replace_all(self, indexes: Sequence[int]) -> list[NodeHandle]:
        for index in indexes:
            self._world.kill(self._nodes[index], "is replaced")
            self._nodes[index] = self._started(index)
        return [self.nodes[index] for index in indexes]

    def close(self) -> None:
        self.shrink(0)

    def _started(self, index: int) -> Node:
        world = self._world
        taken = {node.address for node in world.network.listening.values() if not node.dead}
        free = [place for place in (f"n{number}:1" for number in range(_ADDRESSES)) if place not in taken]
        world.counts["nodes"] += 1
        address = world.rng.choice(free or [f"m{world.counts['nodes']}:1"])
        node = Node(world, f"{self._prefix}node-{index}-{world.counts['nodes']}", address, self._driver)
        world.network.listening[address] = node
        world.tell(f"{node.name} listens at {address}")
        return node
