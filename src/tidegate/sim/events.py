"""What may happen in a simulated world while somebody is about to do something."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tidegate.errors import TidegateError
from tidegate.sim.hosts import STORE
from tidegate.sim.process import DiedError, Process

if TYPE_CHECKING:
    from tidegate.sim.world import World

_DRIVERS = 3
"""At once: all but the newest are held up."""


class Events:
    """One method for each kind of `Weather.kinds`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def happen(self) -> None:
        """Any of them."""
        world = self._world
        kinds = world.weather.kinds
        (kind,) = world.rng.choices(list(kinds), list(kinds.values()))
        getattr(self, kind)()

    def background(self) -> None:
        world = self._world
        nodes = world.alive()
        if nodes:
            world.work(world.rng.choice(nodes))

    def deliver(self) -> None:
        world = self._world
        if world.network.late:
            world.network.deliver_late()
        if world.bucket.late:
            world.bucket.late.pop(world.rng.randrange(len(world.bucket.late)))()

    def straggle(self) -> None:
        world = self._world
        if world.stragglers:
            host, stage = world.stragglers.pop(world.rng.randrange(len(world.stragglers)))
            world.counts["stragglers"] += 1
            with world.acting(Process("straggler", host)), suppress(DiedError):
                try:
                    stage()
                    world.tell("a task that was left behind stages")
                except TidegateError as error:
                    world.tell(f"a task that was left behind is refused: {error}")

    def thread(self) -> None:
        """What a driver does beside its batches."""
        world = self._world
        drivers = [driver for driver in world.drivers() if driver.threads]
        if drivers:
            driver = world.rng.choice(drivers)
            work = driver.threads.pop(0)
            with world.acting(driver), suppress(DiedError):
                work()

    def end_node(self) -> None:
        self._strike("dies", "node deaths", hangs=False)

    def hang_node(self) -> None:
        self._strike("hangs", "node hangs", hangs=True)

    def end_driver(self) -> None:
        world = self._world
        drivers = world.drivers()
        if drivers:
            world.counts["driver deaths"] += 1
            world.kill(world.rng.choice(drivers), "dies")

    def take_over(self) -> None:
        """The current driver is held up, and another one is started in its place, for a while."""
        world = self._world
        drivers = world.drivers()
        if drivers and drivers[-1] is world.stack[-1] and len(drivers) < _DRIVERS:
            world.counts["zombies"] += 1
            world.tell(f"{drivers[-1].name} is held up")
            if world.rng.random() < 0.5:
                for node in world.alive():
                    world.kill(node, "dies")
            world.start(world.spark.next() + world.rng.randint(1, 3))
            world.tell(f"{drivers[-1].name} wakes up")

    def cut_power(self) -> None:
        world = self._world
        world.counts["power cuts"] += 1
        world.tell("the power is cut")
        for process in (*world.stack[1:], *world.alive()):
            process.dead = True
        for host in world.hosts:
            host.disk.lose_power()
        world.network.late.clear()
        world.stragglers.clear()

    def end_host(self) -> None:
        """All that runs on one host dies; it is there again at once, with what its disk has kept."""
        world = self._world
        host = world.rng.choice(world.hosts)
        world.counts["host deaths"] += 1
        world.tell(f"host {host.name} dies")
        for process in (*world.stack[1:], *world.alive()):
            process.dead = process.dead or process.host is host
        host.disk.lose_power()
        world.stragglers = [left for left in world.stragglers if left[0] is not host]

    def leave(self) -> None:
        """Another host is about to go away; none ever does while nodes are on it."""
        world = self._world
        leaving = world.rng.choice(world.hosts)
        for host in world.hosts:
            host.leaves = host is leaving
        world.counts["hosts left"] += 1
        world.tell(f"nodes are to leave {leaving.name}")

    def cut(self) -> None:
        """A host is cut off, from all others or from some, in one direction or in both."""
        world = self._world
        host, names = world.rng.choice(world.hosts), [each.name for each in world.hosts]
        others = world.rng.choice(([*names, STORE], names, [STORE], [world.rng.choice(names)]))
        sends, hears = world.rng.choice(((True, True), (True, True), (True, False), (False, True)))
        world.links.isolate(host.name, others, sends=sends, hears=hears)
        world.counts["cuts"] += 1
        world.tell(f"cut: {', '.join(f'{source} to {target}' for source, target in sorted(world.links.cut))}")

    def heal(self) -> None:
        """All links are there again, and what was frozen goes on."""
        world = self._world
        if world.links.cut:
            world.links.cut.clear()
            world.tell("all links are there again")
        for node in world.alive():
            if node.hangs:
                node.hangs = False
                world.tell(f"{node.name} wakes up")

    def fill_disk(self) -> None:
        world = self._world
        disk = world.rng.choice(world.hosts).disk
        disk.full = not disk.full
        world.tell("a disk is full" if disk.full else "a disk has space again")

    def ask(self) -> None:
        world = self._world
        drivers = world.drivers()
        if drivers:
            with world.acting(drivers[-1]), suppress(DiedError, TidegateError):
                drivers[-1].ask()

    def _strike(self, fate: str, count: str, *, hangs: bool) -> None:
        world = self._world
        nodes = world.alive()
        if nodes:
            node = world.rng.choice(nodes)
            world.counts[count] += 1
            node.hangs = hangs
            world.tell(f"{node.name} {fate}") if hangs else world.kill(node, fate)
