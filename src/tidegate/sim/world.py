"""Drivers, nodes and tasks on hosts, a network, disks and an object store in one thread, decided by one seed.

Whenever a process is about to do something to the world outside of it, others may act first (`step`): an
older message arrives, a node compacts, somebody dies, another driver takes over and works while this one is
held up. So calls nest, and whoever is further down in the stack is waiting.

A third of the worlds are one machine, with a checkpoint on its disk; nodes end with their driver there. The
others have several hosts, which share nothing but an object store, and are cut off from it and from each
other; nodes have leases, and drivers, nodes and tasks are on any host.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from tidegate.errors import FencedError, TidegateError
from tidegate.sim.disk import SimDisk
from tidegate.sim.driver import RETENTION, Driver
from tidegate.sim.events import Events
from tidegate.sim.hosts import Host, Links
from tidegate.sim.network import Client, Network, WouldBlockError
from tidegate.sim.nodes import Node
from tidegate.sim.oracle import Oracle
from tidegate.sim.process import DiedError, Process, PromiseError
from tidegate.sim.spark import JobError, Sink, Spark
from tidegate.sim.store import Bucket, Store
from tidegate.sim.weather import Weather
from tidegate.state.node.lease import SHARE
from tidegate.storage.local import Local
from tidegate.storage.storage import Storage

_STARTS = 14
_STEPS = 3000
_DEEPEST = 8
_TOLD = 60


class _Away(Local):
    """A log that cannot be mapped into memory, as an object store."""

    mapped = False


class World:
    """One run, decided by its seed alone."""

    died = DiedError

    def __init__(self, seed: int, scratch: Path, *, rescales: bool, whole_story: bool = False) -> None:
        """`scratch` is a real folder, for what need not outlive a process: caches, not simulated files."""
        self.rng = rng = Random(seed)
        hosts = rng.choice((1, 2, 3))
        self.weather = Weather.drawn(rng, rescales=rescales, hosts=hosts)
        self.calm = self.last_batch = False
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=None if whole_story else _TOLD)
        self.groups = rng.choice((4, 8, 16))
        self.first_nodes, self.first_partitions = rng.randint(1, 3), rng.randint(1, 4)
        self.peers = rng.random() < 0.7
        self.ledger_folder, self.log_folder = Path("/checkpoint/ledger"), Path("/checkpoint/state")
        self.scratch = scratch
        self.hosts = [self._host(f"h{number}") for number in range(hosts)]
        self.links = Links()
        self.bucket = Bucket()
        self.lease = float(rng.choice((100, 300, 1000))) if hosts > 1 else None
        """In steps; None where nodes end with their driver."""
        self._renewal = 0.0
        """The step by which leases are renewed next."""
        self.network = Network(self)
        self.events, self.oracle = Events(self), Oracle(self)
        self.spark = Spark(self)
        self.sink = Sink(self)
        self.stragglers: list[tuple[Host, Callable[[], object]]] = []
        self._storage = _Away if rng.random() < 0.3 else Local
        self._batches = rng.randint(4, 9)
        self._asks = 2 if rescales else 0
        """For rescales, in calm weather."""
        self.stack: list[Process] = [Process("world", self.hosts[0])]
        self._drivers = 0
        self.known = -1
        """The last batch that somebody has seen committed."""

    def _host(self, name: str) -> Host:
        scratch = self.scratch / name
        scratch.mkdir()
        return Host(name, SimDisk(self.rng, lambda _: self.step()), scratch)

    # What processes use

    @property
    def here(self) -> Host:
        """Where whoever acts is."""
        return self.stack[-1].host

    @property
    def driver(self) -> Driver:
        """The one that is at work."""
        return next(each for each in reversed(self.stack) if isinstance(each, Driver))

    def store(self, name: str) -> Store:
        """A place in the object store."""
        return Store(self, self.bucket.content.within(name), f"store/{name}")

    def storage(self) -> Storage:
        if len(self.hosts) > 1:
            return self.store("state")
        return self._storage(self.log_folder, self.hosts[0].disk)

    def records(self) -> Storage:
        """Where the ledger is."""
        if len(self.hosts) > 1:
            return self.store("ledger")
        return Local(self.ledger_folder, self.hosts[0].disk)

    def spark_copy(self) -> Storage | None:
        """Where Spark's own checkpoint is kept, if it does not stay where its driver is."""
        return self.store("spark") if len(self.hosts) > 1 else None

    def runs(self) -> set[str]:
        """The files of the log, whoever asks."""
        if len(self.hosts) > 1:
            return set(self.bucket.content.within("state").names())
        return set(self.hosts[0].disk.names(self.log_folder))

    def ledger_files(self) -> dict[str, bytes]:
        """What is in the ledger, whoever asks."""
        if len(self.hosts) > 1:
            place = self.bucket.content.within("ledger")
            return {name: place.open(name).to_pybytes() for name in place.names()}
        disk = self.hosts[0].disk
        return {name: disk.read(self.ledger_folder / name) for name in disk.names(self.ledger_folder)}

    def connect(self, address: str) -> Any:
        return Client(self.network, address)

    def clock(self) -> float:
        return float(self.steps)

    def sleep(self, seconds: float) -> None:
        """Others go on meanwhile."""
        self.step()
        for node in self.alive():
            self.work(node)
        self.check_alive()

    @contextmanager
    def acting(self, process: Process) -> Iterator[None]:
        self.stack.append(process)
        try:
            yield
        finally:
            self.stack.pop()

    def step(self) -> None:
        """Before the current process does something: something else may happen first."""
        self.steps += 1
        self.check_alive()
        if self.lease is not None and self.steps >= self._renewal:
            self._renewal = self.steps + self.lease / SHARE
            self._renew()
        if len(self.stack) < _DEEPEST and self.rng.random() < self.weather.events:
            self.events.happen()
            self.check_alive()

    def check_alive(self) -> None:
        if self.stack[-1].dead:
            raise DiedError

    def strikes(self, chance: float) -> bool:
        return chance > 0 and self.rng.random() < chance

    def tell(self, what: str) -> None:
        self.story.append(f"{self.steps:5} {'  ' * (len(self.stack) - 1)}{what}")

    def kill(self, process: Process, fate: str) -> None:
        if process.dead:
            return
        process.dead = True
        self.tell(f"{process.name} {fate}")
        if isinstance(process, Driver) and self.lease is None:
            # Its nodes see that and end, at once or a little later.
            for node in self.alive():
                if node.driver is process and self.rng.random() < 0.7:
                    self.kill(node, "ends with its driver")

    def gives_up(self, node: Node) -> bool:
        """Whether a node ends because of its lease. One that was frozen meanwhile may do something before."""
        if node.hangs:
            return node.dead
        left = node.state.lease_left
        if left is not None and left <= 0:
            if self.calm or self.rng.random() < 0.7:
                self.counts["leases"] += 1
                self.kill(node, "gives up: its lease has run out")
        else:
            self.promise(not node.is_forsaken, f"{node.name} goes on without a driver that counts")
        return node.dead

    # The run

    def run(self) -> None:
        """Rough weather first, then calm; raises PromiseError when a promise is broken."""
        starts = 0
        while self.known + 1 < self._batches and starts < _STARTS and self.steps < _STEPS:
            if starts and self.strikes(0.2):
                self.counts["deletions"] += 1
                with self.acting(Process("somebody", self.rng.choice(self.hosts))), suppress(DiedError):
                    self.spark.forget()
            starts += 1
            self.start(self._batches)
        self._calm_down()
        self.oracle.check_states()

    def _calm_down(self) -> None:
        """All is well again: batches must go through, and rescales settle."""
        self.tell("the weather is calm")
        self.weather, self.calm = Weather(), True
        self.events.heal()
        self._arrive()
        for host in self.hosts:
            host.disk.full = False
        self.start(self.known + 1 + RETENTION + 2)
        self.last_batch, self._asks = True, 0
        self.start(self.known + 2)
        self._end_all()
        # What nobody needs is deleted by the next start at the latest.
        self.start(self.known + 1)
        self.oracle.check_nothing_is_left()

    def _renew(self) -> None:
        """Each driver has its nodes go on; one that is held up may do so or not."""
        for driver in self.drivers():
            if driver is self.driver or self.rng.random() < 0.5:
                with self.acting(driver), suppress(DiedError):
                    driver.renew()
        self.check_alive()

    def _end_all(self) -> None:
        """No driver is left, and so no node is before long. What was on its way to the store arrives."""
        self.steps += round(self.lease or 0)
        for node in self.alive():
            if self.lease is None:
                self.kill(node, "ends with its driver")
            else:
                self.promise(self.gives_up(node), f"{node.name} goes on though its lease has run out")
        self._arrive()

    def _arrive(self) -> None:
        """What is still on its way to the store does."""
        while self.bucket.late:
            self.bucket.late.pop()()

    def spend_a_calm_moment(self) -> None:
        """Between two batches: what is to be done in the background is done."""
        while any(driver.threads for driver in self.drivers()):
            self.events.thread()
        for node in self.alive():
            while self.work(node):
                pass
        if self._asks and self.rng.random() < 0.5:
            self._asks -= 1
            going = len(self.hosts) > 1 and self.rng.random() < 0.3
            self.events.leave() if going else self.events.ask()
        if self.rng.random() < 0.3:
            self.events.end_node()  # Which must not end the driver.

    def start(self, upto: int) -> None:
        """A driver, until it has so many batches behind it or fails."""
        for node in self.alive():
            if self.lease is None and node.driver.dead and self.rng.random() < 0.5:
                self.kill(node, "ends with its driver")
        self._drivers += 1
        self.counts["drivers"] += 1
        driver = Driver(self, self._drivers, self.rng.choice(self.hosts))
        with self.acting(driver):
            try:
                driver.run(upto)
                self.oracle.check_settled(driver)
            except DiedError:
                pass
            except FencedError as error:
                self.counts["fenced"] += 1
                self.tell(f"{driver.name} is fenced: {error}")
                self.promise(not self.calm, f"a driver is fenced though it is alone: {error}")
            except (TidegateError, OSError, JobError) as error:
                self.tell(f"{driver.name} fails: {error}")
                self.promise(
                    not self.calm, f"a driver fails in calm weather: {type(error).__name__}: {error}"
                )
            if self.lease is not None and not driver.dead:
                driver.close()
        self.kill(driver, "ends")

    def alive(self) -> list[Node]:
        return [node for node in self.network.listening.values() if not node.dead]

    def drivers(self) -> list[Driver]:
        return [each for each in dict.fromkeys(self.stack) if isinstance(each, Driver) and not each.dead]

    def work(self, node: Node) -> bool:
        """What a node does beside its requests, as the threads of its process would; whether it would pull
        more state at once."""
        if node.compacting or node.hangs or self.gives_up(node):
            return False
        more = False
        node.compacting = True
        with self.acting(node):
            try:
                if node.state.compact_once(self.step):
                    self.counts["compactions"] += 1
                    self.tell(f"{node.name} has compacted")
                node.state.tidy()
                more = node.state.pull_once(self.step)
            except (TidegateError, OSError) as error:
                self.tell(f"{node.name} could not compact or pull: {error}")
            except (DiedError, WouldBlockError):
                pass
        node.compacting = False
        return more

    def promise(self, kept: bool, otherwise: str) -> None:
        if not kept:
            self.tell(otherwise)
            raise PromiseError(otherwise)
