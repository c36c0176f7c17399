"""A world in which drivers are asked for rescales, and state moves from node to node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import replace
from random import Random
from typing import ClassVar

from tidegate.errors import TidegateError
from tidegate.sim.driver import Driver
from tidegate.sim.durable import Entry, check
from tidegate.sim.errand import Errand
from tidegate.sim.hold import Transfer
from tidegate.sim.mover import Mover
from tidegate.sim.network import Call
from tidegate.sim.node import Node
from tidegate.sim.rescaler import Rescaler
from tidegate.sim.weather import Weather
from tidegate.sim.workload import Rows, Workload
from tidegate.sim.world import Actor, Cast, World

_PATIENT = 1_000
"""Attempts at a batch where nothing may be lost with a driver."""


class Moving(World):
    """State is read from the log by new owners, or comes from the old ones; with a log behind, or without.

    Without a log nothing can make up for a lost node or driver: then none is lost, but everything else goes
    wrong as ever.
    """

    noisy_steps: ClassVar[int] = 6_000
    quiet_steps: ClassVar[int] = 12_000
    calm_batches: ClassVar[int] = 4

    def __init__(
        self, seed: int, *, cast: Cast, weather: Weather | None = None, whole_story: bool = False
    ) -> None:
        super().__init__(seed, cast=cast, weather=weather, whole_story=whole_story)
        self.errands: list[Errand] = []
        self._starts: list[_Start] = []
        self._placed: Counter[int] = Counter()
        self.peers, self.logged = self.rng.choice(((False, True), (True, True), (True, True), (True, False)))
        if not self.logged:
            self.tries = _PATIENT
            self.weather = self.network.weather = replace(self.weather, dying=0.0)

    def workload(self, rng: Random) -> Workload:
        blind = frozenset(range(0, 40, 3))
        return Workload(rng, batches=(7, 12), groups=(4, 8, 8), keys=rng.choice((8, 20)), blind=blind)

    def drawn(self, rng: Random) -> Weather:
        # Milder than in a run without rescales: they take longer than most drivers live there.
        return replace(
            Weather.drawn(rng),
            faults=rng.choice((0.0, 0.001, 0.005, 0.02)),
            dying=rng.choice((0.0, 0.005, 0.02)),
            asking=rng.choice((0.005, 0.02, 0.05)),
            failing=rng.choice((0.0, 0.1, 0.5)),
        )

    def wanted(self, rows: Rows) -> frozenset[int] | None:
        if self.rng.random() < 0.1:  # As when windows fall due.
            return None
        return frozenset(key for key, _ in rows) - self.durable.workload.blind

    # --- moves ---------------------------------------------------------------------------------------

    def others(self) -> Sequence[Actor]:
        self._starts = [start for start in self._starts if start.driver.alive]
        starts = [start for start in self._starts if start.ready]
        movers = [node for node in self._addresses if isinstance(node, Mover) and node.pullable]
        return [*starts, *(_Pull(self, node) for node in movers)]

    def risk(self, driver: Driver) -> float:
        # Its few moves between two routes are as much at risk as its many others.
        between = isinstance(driver, Rescaler) and driver.locked
        return self.weather.faults * (10 if between else 1)

    def _step(self) -> None:
        if self.noisy and self.rng.random() < self.weather.asking:
            able = [each for each in self._drivers if isinstance(each, Rescaler) and each.askable]
            if able:
                self.rng.choice(able).ask()
        super()._step()

    def reply(self, call: Call, answer: object) -> None:
        if isinstance(answer, Generator):
            self.errands.append(Errand(self, call.node, answer, call))
            self.errands[-1].go_on()
        else:
            super().reply(call, answer)

    def start_nodes(self, driver: Rescaler, count: int) -> None:
        self._starts.append(_Start(self, driver, count))

    def started(self, start: _Start) -> None:
        self._starts.remove(start)

    def pull(self, node: Mover) -> None:
        self.tell("{} pulls", node)
        self.errands.append(Errand(self, node, node.pull(), None))
        self.errands[-1].go_on()

    # --- nodes ---------------------------------------------------------------------------------------

    def place(self, name: int) -> Mover:
        """A node at an address of its own."""
        node = self.cast.node(name, self.durable, self._placed[name])
        assert isinstance(node, Mover)
        node.logged = self.logged
        self._placed[name] += 1
        self._addresses.append(node)
        self.tell("{} starts", node)
        return node

    def end(self, node: Mover) -> None:
        """A node ends for good."""
        node.restart()
        node.alive = False
        if node in self._addresses:
            self._addresses.remove(node)
        self._interrupted(node)

    def seems_dead(self, node: Mover) -> bool:
        """Whether a driver replaces it. One that hangs may come back where nobody expects it."""
        return not node.alive or (self.logged and node.hung and self.rng.random() < 0.5)

    def crash_node(self, node: Node) -> None:
        super().crash_node(node)
        self._interrupted(node)

    def _interrupted(self, node: Node) -> None:
        """Whoever waits for an answer of a process that is gone waits in vain."""
        over = [errand for errand in self.errands if errand.node is node]
        self.errands = [errand for errand in self.errands if errand.node is not node]
        for errand in over:
            if errand.call is not None:
                self.network.lose(errand.call)
        self.network.reconnect(node)

    def _disturb(self) -> None:
        if self.logged:
            super()._disturb()
            return
        fault, node = self.rng.random(), self.rng.choice(self._addresses or [None])
        if self._drivers and fault < 0.3:
            driver = self.rng.choice(self._drivers)
            driver.paused = not driver.paused
            self.tell("{} {}", driver, "sleeps" if driver.paused else "wakes")
        elif self.tasks and fault < 0.6:
            job = self.rng.choice(self.tasks).job
            self.tell("Spark gives up the job of {}", job.ticket)
            job.abort("an executor was lost")
        elif node is not None:
            node.hung = not node.hung
            self.counts["node hangs"] += node.hung
            self.tell("{} {}", node, "hangs" if node.hung else "goes on")

    def _interrupt(self, driver: Driver) -> None:
        if self.logged:
            super()._interrupt(driver)

    # --- what must hold ------------------------------------------------------------------------------

    def check_answer(self, call: Call, answer: object) -> None:
        # What has left may be in no log any more: then its new owner reads what the last manifest names.
        if call.action not in ("take", "span") or not isinstance(answer, TidegateError):
            super().check_answer(call, answer)

    def check_settled(self, driver: Rescaler) -> None:
        """Old owners may let go."""
        needed = sorted(map(str, self._needed(driver)))
        check(not needed, f"{driver} settles a rescale while state is still on its way from {needed}")

    def check_leaving(self, driver: Rescaler, leaving: list[Mover]) -> None:
        """Nothing depends on nodes that end."""
        for node in leaving:
            check(not driver.route.groups_of(node.name), f"{node} ends, but it owns key groups")
            check(node.name not in driver.switch.losing, f"{node} ends, but the batch has to go through it")
        wrong = sorted(str(node) for node in self._needed(driver).intersection(leaving))
        check(not wrong, f"{wrong} end while state is still on its way from there")

    def check_driver(self, driver: Rescaler) -> None:
        """At the end of a run: rescales that were left in peace have settled, and just the nodes are there
        that the route needs, with the right state."""
        machine, last = driver.migration, self.durable.last
        assert machine is not None
        assert last is not None
        going = [number for number in driver.asked if number not in driver.ended]
        if going:
            check(going == [machine.current], f"rescales {going} have come to no end")
            lazily = driver.asked[going[0]] == "lazy" and machine.phase == "moving"
            check(lazily and bool(self._needed(driver)), f"rescale {going[0]} does not settle")
        else:
            check(machine.phase == "idle", f"nothing is under way, but the migration is {machine.phase}")
            least = max(last.route.nodes) + 1
            check(len(driver.pool) == least, f"there are {len(driver.pool)} nodes, and {least} are needed")
        for name in last.route.nodes:
            node = driver.node(name)
            check(not node.staged, f"{node} still holds staged parts")
            check(node.fence.ticket == last.ticket, f"{node} stands at {node.fence.ticket}")
            check(node.fence.phase == "committed", f"{node} is {node.fence.phase}")
            runs = last.manifest.restricted(node.groups).runs
            check(node.peek() == self.durable.read(runs), f"{node} holds other state than the ledger")
        self.counts["checked"] += 1

    def check_nodes(self, last: Entry) -> None:
        check(self.counts["checked"] > 0, "a driver comes to the end")

    def _needed(self, driver: Rescaler) -> set[Mover]:
        """The nodes that the owners of key groups, now or in the next batch, have still to ask."""
        found: set[Mover] = set()
        for origins in driver.switch.origins.values():
            for group, origin in origins.items():
                found.add(origin)
                self._follow(origin.now.arrival(group), group, found)
        for name in driver.route.nodes:
            node = driver.node(name)
            for arrival in node.arrivals:
                for group in arrival.open:
                    self._follow(arrival.hold, group, found)
        return found

    def _follow(self, hold: Transfer | None, group: int, found: set[Mover]) -> None:
        if hold is None or group not in hold.open:
            return
        origin = hold.origins[group]
        found.add(origin)
        kept = origin.departures.get((hold.batch_id, group))
        self._follow(kept.arrival(group) if kept else None, group, found)


class _Start:
    """Nodes that are being started while batches go on: all that are missing, or none."""

    def __init__(self, world: Moving, driver: Rescaler, count: int) -> None:
        self.driver = driver
        self._world = world
        self._count = count
        self._there = False

    @property
    def ready(self) -> bool:
        return not self.driver.paused and not (self._there and self.driver.locked)

    def step(self) -> None:
        world = self._world
        if self._there:
            world.started(self)
            self.driver.started(None)
        elif world.rng.random() < world.weather.failing:
            if not self.driver.locked:
                world.started(self)
                self.driver.started("no machine has room for them")
        else:
            self.driver.grow(self._count)
            self._there = True


class _Pull:
    """A node that may get some more of its state in the background."""

    def __init__(self, world: Moving, node: Mover) -> None:
        self._world = world
        self._node = node

    def step(self) -> None:
        self._world.pull(self._node)
