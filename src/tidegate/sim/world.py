"""Drivers, nodes, tasks, a network and a disk in one thread, decided by one seed.

Whenever a process is about to do something to the world outside of it, others may act first (`step`): an
older message arrives, a node compacts, somebody dies, another driver takes over and works while this one is
held up. So calls nest, and whoever is further down in the stack is waiting.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from tidegate.errors import FencedError, TidegateError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Cut, Entry
from tidegate.sim.disk import SimDisk
from tidegate.sim.driver import RETENTION, Driver
from tidegate.sim.network import Client, Network, WouldBlockError
from tidegate.sim.nodes import Node
from tidegate.sim.process import DiedError, Process, PromiseError
from tidegate.sim.spark import SOURCE, JobError, Sink, Spark
from tidegate.sim.weather import Weather
from tidegate.sim.workload import ROWS, SUMS
from tidegate.state.log.storage import Local, Storage
from tidegate.state.node.shard import Shard
from tidegate.state.table.table import DUE

_STARTS = 14
_STEPS = 3000
_DEEPEST = 8
_DRIVERS = 3
"""At once: all but the newest are held up."""
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
        self.weather = Weather.drawn(rng, rescales=rescales)
        self.calm = self.last_batch = False
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self.story: deque[str] = deque(maxlen=None if whole_story else _TOLD)
        self.groups = rng.choice((4, 8, 16))
        self.first_nodes, self.first_partitions = rng.randint(1, 3), rng.randint(1, 4)
        self.peers = rng.random() < 0.7
        self.ledger_folder, self.log_folder = Path("/checkpoint/ledger"), Path("/checkpoint/state")
        self.scratch = scratch
        self.disk = SimDisk(rng, lambda _: self.step())
        self.network = Network(self)
        self.spark = Spark(self)
        self.sink = Sink(self)
        self.stragglers: list[Callable[[], object]] = []
        self._storage = _Away if rng.random() < 0.3 else Local
        self._batches = rng.randint(4, 9)
        self._asks = 2 if rescales else 0
        """For rescales, in calm weather."""
        self._stack: list[Process] = [Process("world")]
        self._drivers = 0
        self.known = -1
        """The last batch that somebody has seen committed."""

    # What processes use

    def storage(self) -> Storage:
        return self._storage(self.log_folder, self.disk)

    def connect(self, address: str) -> Any:
        return Client(self.network, address)

    def clock(self) -> float:
        return float(self.steps)

    def sleep(self, seconds: float) -> None:
        """Others go on meanwhile."""
        self.step()
        for node in self._alive():
            self._work(node)
        self.check_alive()

    @contextmanager
    def acting(self, process: Process) -> Iterator[None]:
        self._stack.append(process)
        try:
            yield
        finally:
            self._stack.pop()

    def step(self) -> None:
        """Before the current process does something: something else may happen first."""
        self.steps += 1
        self.check_alive()
        if len(self._stack) < _DEEPEST and self.rng.random() < self.weather.events:
            kinds = self.weather.kinds
            (kind,) = self.rng.choices(list(kinds), list(kinds.values()))
            getattr(self, kind)()
            self.check_alive()

    def check_alive(self) -> None:
        if self._stack[-1].dead:
            raise DiedError

    def strikes(self, chance: float) -> bool:
        return chance > 0 and self.rng.random() < chance

    def tell(self, what: str) -> None:
        self.story.append(f"{self.steps:5} {'  ' * (len(self._stack) - 1)}{what}")

    def kill(self, process: Process, fate: str) -> None:
        if process.dead:
            return
        process.dead = True
        self.tell(f"{process.name} {fate}")
        if isinstance(process, Driver):  # Its nodes see that and end, at once or a little later.
            for node in self._alive():
                if node.driver is process and self.rng.random() < 0.7:
                    self.kill(node, "ends with its driver")

    # What may happen

    def background(self) -> None:
        nodes = self._alive()
        if nodes:
            self._work(self.rng.choice(nodes))

    def deliver(self) -> None:
        if self.network.late:
            self.counts["late"] += 1
            self.network.deliver_late()

    def straggle(self) -> None:
        if self.stragglers:
            stage = self.stragglers.pop(self.rng.randrange(len(self.stragglers)))
            self.counts["stragglers"] += 1
            with self.acting(Process("straggler")):
                try:
                    stage()
                    self.tell("a task that was left behind stages")
                except TidegateError as error:
                    self.tell(f"a task that was left behind is refused: {error}")

    def thread(self) -> None:
        """What a driver does beside its batches."""
        drivers = [driver for driver in self._drivers_here() if driver.threads]
        if drivers:
            driver = self.rng.choice(drivers)
            work = driver.threads.pop(0)
            with self.acting(driver), suppress(DiedError):
                work()

    def end_node(self) -> None:
        self._strike_node("dies", "node deaths", hangs=False)

    def hang_node(self) -> None:
        self._strike_node("hangs", "node hangs", hangs=True)

    def end_driver(self) -> None:
        drivers = self._drivers_here()
        if drivers:
            self.counts["driver deaths"] += 1
            self.kill(self.rng.choice(drivers), "dies")

    def take_over(self) -> None:
        """The current driver is held up, and another one is started in its place, for a while."""
        drivers = self._drivers_here()
        if drivers and drivers[-1] is self._stack[-1] and len(drivers) < _DRIVERS:
            self.counts["zombies"] += 1
            self.tell(f"{drivers[-1].name} is held up")
            if self.rng.random() < 0.5:
                for node in self._alive():
                    self.kill(node, "dies")
            self._start(self.spark.next() + self.rng.randint(1, 3))
            self.tell(f"{drivers[-1].name} wakes up")

    def cut_power(self) -> None:
        self.counts["power cuts"] += 1
        self.tell("the power is cut")
        for process in (*self._stack[1:], *self._alive()):
            process.dead = True
        self.disk.lose_power()
        self.network.late.clear()
        self.stragglers.clear()

    def fill_disk(self) -> None:
        self.disk.full = not self.disk.full
        self.tell("the disk is full" if self.disk.full else "the disk has space again")

    def ask(self) -> None:
        drivers = self._drivers_here()
        if drivers:
            with self.acting(drivers[-1]), suppress(DiedError, TidegateError):
                drivers[-1].ask()

    # The run

    def run(self) -> None:
        """Rough weather first, then calm; raises PromiseError when a promise is broken."""
        starts = 0
        while self.spark.finished + 1 < self._batches and starts < _STARTS and self.steps < _STEPS:
            starts += 1
            self._start(self._batches)
        self._calm_down()
        self._check_states()

    def _calm_down(self) -> None:
        """All is well again: batches must go through, and rescales settle."""
        self.tell("the weather is calm")
        self.weather, self.calm, self.disk.full = Weather(), True, False
        for node in self._alive():
            node.hangs = False
        self._start(self.spark.finished + 1 + RETENTION + 2)
        self.last_batch, self._asks = True, 0
        self._start(self.spark.finished + 2)
        # What nobody needs is deleted by the next start at the latest.
        for node in self._alive():
            self.kill(node, "ends with its driver")
        self._start(self.spark.finished + 1)
        states = [entry.state for entry in self._entries()[:RETENTION] if entry.state is not None]
        needed = {run.name for state in states for run in state.runs}
        left = set(self.storage().names()) - needed
        self.promise(not left, f"runs that nobody needs are left: {sorted(left)}")

    def _spend_a_calm_moment(self) -> None:
        """Between two batches: what is to be done in the background is done."""
        while any(driver.threads for driver in self._drivers_here()):
            self.thread()
        for node in self._alive():
            while self._work(node):
                pass
        if self._asks and self.rng.random() < 0.5:
            self._asks -= 1
            self.ask()
        if self.rng.random() < 0.3:
            self.end_node()  # Which must not end the driver.

    def _start(self, upto: int) -> None:
        """A driver, until it has so many batches behind it or fails."""
        for node in self._alive():
            if node.driver.dead and self.rng.random() < 0.5:
                self.kill(node, "ends with its driver")
        self._drivers += 1
        self.counts["drivers"] += 1
        driver = Driver(self, self._drivers)
        with self.acting(driver):
            try:
                driver.run(upto)
                self._check_settled(driver)
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
        self.kill(driver, "ends")

    def _alive(self) -> list[Node]:
        return [node for node in self.network.listening.values() if not node.dead]

    def _drivers_here(self) -> list[Driver]:
        return [each for each in dict.fromkeys(self._stack) if isinstance(each, Driver) and not each.dead]

    def _strike_node(self, fate: str, count: str, *, hangs: bool) -> None:
        nodes = self._alive()
        if nodes:
            node = self.rng.choice(nodes)
            self.counts[count] += 1
            node.hangs = hangs
            self.tell(f"{node.name} {fate}") if hangs else self.kill(node, fate)

    def _work(self, node: Node) -> bool:
        """What a node does beside its requests, as the threads of its process would; whether it would pull
        more state at once."""
        if node.compacting or node.hangs:
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

    # Promises

    def promise(self, kept: bool, otherwise: str) -> None:
        if not kept:
            self.tell(otherwise)
            raise PromiseError(otherwise)

    def check_committed(self, batch_id: int, attempt: str) -> Cut | None:
        """What becomes visible is in the ledger, with that attempt. The cut of the batch, unless it has been
        forgotten since."""
        for record in self._records():
            if record["batch_id"] == batch_id:
                shown = [receipt["attempt"] for receipt in record["receipts"].values()]
                self.promise(shown == [attempt], f"{attempt} is published, and {shown} committed")
                self.known = max(self.known, batch_id)
                return Cut(**record["cut"][SOURCE])
        # It may have been forgotten since, when the one who publishes was held up.
        self.promise(batch_id <= self.known - RETENTION, f"batch {batch_id} is published and not committed")
        return None

    def check_progress(self, batch_id: int) -> None:
        self.promise(batch_id in self.sink.visible, f"batch {batch_id} is through and was not published")
        self.known = max(self.known, batch_id)
        self.counts["batches"] += 1
        there = set(self.disk.names(self.log_folder))
        for record in itertools.islice(self._records(), RETENTION):
            gone = {run["name"] for run in record["state"]["runs"]} - there
            self.promise(not gone, f"batch {record['batch_id']} needs runs that were deleted: {gone}")
        if self.calm:
            self._spend_a_calm_moment()

    def _check_settled(self, driver: Driver) -> None:
        rescaler = driver.rescaler
        if self.calm and rescaler is not None and rescaler.phase is not None:
            current = rescaler.history.all()[-1]
            self.promise(current.strategy == "lazy", f"rescale {current} does not settle")

    def _records(self) -> Iterator[dict[str, Any]]:
        """The committed batches as they lie on the disk, newest first."""
        for name in reversed(self.disk.names(self.ledger_folder)):
            if name.startswith(".") or not name.endswith(".json"):
                continue
            record = json.loads(self.disk.read(self.ledger_folder / name))
            if "batch_id" in record:
                yield record

    def _entries(self) -> list[Entry]:
        return list(Ledger(self.ledger_folder, self.disk).entries())

    def _check_states(self) -> None:
        """The state after each batch within the retention can be read, from the log alone, and is right."""
        entries = self._entries()
        self.promise(len(entries) >= RETENTION, f"the ledger has {len(entries)} batches left")
        every = frozenset(range(self.groups))
        for entry in entries[:RETENTION]:
            shard = Shard(self.storage(), name="reader", scratch=self.scratch)
            assert entry.state is not None
            shard.begin(entry.state, every)
            sums, rows = shard.scan(SUMS.name, every), shard.scan(ROWS.name, every)
            found = (
                sorted(zip(sums["key"].to_pylist(), sums["total"].to_pylist(), strict=True)),
                sorted(zip(*(rows[name].to_pylist() for name in ("key", "value", DUE)), strict=True)),
            )
            wanted = self.spark.model(entry.batch_id).state
            self.promise(found == wanted, f"state after batch {entry.batch_id} is {found}, not {wanted}")
            shard.close()
        self.promise(
            set(self.sink.visible) == set(range(self.spark.finished + 1)),
            "some batches were never published",
        )
