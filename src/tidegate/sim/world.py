"""Drivers, nodes, tasks and messages at once: one small move after the other, as one random number says."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from random import Random
from typing import ClassVar, Protocol

from tidegate.batch.protocol import BatchProtocol
from tidegate.errors import NodeError, StateError, TidegateError
from tidegate.rescale.migration import Migration
from tidegate.sim.driver import Driver
from tidegate.sim.durable import Durable, Entry, PromiseError, check
from tidegate.sim.job import Job, Task
from tidegate.sim.network import Call, Message, Network
from tidegate.sim.node import Node
from tidegate.sim.weather import Weather
from tidegate.sim.workload import Rows, Workload

_REMEMBERED = 40
_DRIVERS = 4
_RARE = ("begin", "prepare", "commit", "abort")


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays; a test puts a broken one in."""

    protocol: type[BatchProtocol] = BatchProtocol
    node: type[Node] = Node
    driver: type[Driver] = Driver
    durable: type[Durable] = Durable
    migration: type[Migration] = Migration


class Actor(Protocol):
    """Who else may make a move."""

    def step(self) -> None: ...


class World:
    """One run, decided by its seed alone.

    Faults strike until all batches but one are committed, or for a number of steps; then everything has to
    come to a good end.
    """

    noisy_steps: ClassVar[int] = 3_000
    quiet_steps: ClassVar[int] = 6_000
    calm_batches: ClassVar[int] = 1

    def __init__(
        self, seed: int, *, cast: Cast, weather: Weather | None = None, whole_story: bool = False
    ) -> None:
        self.rng = rng = Random(seed)
        self.cast = cast
        self.counts: Counter[str] = Counter()
        self.durable = cast.durable(self.workload(rng))
        self.weather = weather or self.drawn(rng)
        self.network = Network(rng, self.counts, self.weather)
        self.tries = rng.choice((2, 3, 5))
        self.retention = rng.choice((2, 3))
        self.tasks: list[Task] = []
        self.steps = 0
        self.noisy = True
        self._nodes: dict[int, Node] = {}
        self._addresses: list[Node] = []
        self._drivers: list[Driver] = []
        self._started = 0
        self._story: deque[tuple[int, str, tuple[object, ...]]] = deque(
            maxlen=None if whole_story else _REMEMBERED
        )

    @property
    def story(self) -> list[str]:
        """The latest moves."""
        return [f"{step:5d}  {text.format(*map(_brief, facts))}" for step, text, facts in self._story]

    def tell(self, text: str, *facts: object) -> None:
        self._story.append((self.steps, text, facts))

    def run(self) -> None:
        """To the end; raises a PromiseError when a promise is broken."""
        while not self._over:
            self.steps += 1
            bound = self.noisy_steps + self.quiet_steps
            check(self.steps < bound, "all batches are committed in bounded time")
            if self.noisy and (self._nearly_done or self.steps > self.noisy_steps):
                self._calm_down()
            self._step()
        self._check_end()

    def workload(self, rng: Random) -> Workload:
        return Workload(rng)

    def drawn(self, rng: Random) -> Weather:
        return Weather.drawn(rng)

    def wanted(self, rows: Rows) -> frozenset[int] | None:
        """The keys that a task reads for some rows; None for all that there are."""
        return None

    def others(self) -> Sequence[Actor]:
        """Who may make a move beside drivers, tasks and messages."""
        return ()

    def risk(self, driver: Driver) -> float:
        """How likely a driver stops or sleeps after a move."""
        return self.weather.faults

    def strikes(self, chance: float) -> bool:
        """Whether an oddity of a Spark job happens now."""
        return self.rng.random() < chance * self.weather.oddities

    def node(self, name: int) -> Node:
        """Where a node is now."""
        return self._nodes[name] if name in self._nodes else self._place(name)

    def look_after(self, name: int) -> None:
        """Replace a node that is dead, or seems so: the one that hangs may come back elsewhere."""
        node = self.node(name)
        if node.alive and not (node.hung and self.rng.random() < 0.5):
            return
        if not node.alive and self.rng.random() < 0.5:
            node.restart()
            self.tell("{} is started again", node)
        else:
            self._place(name)
            self.tell("{} is replaced", node)

    def leave_behind(self, job: Job) -> None:
        """A job is over: some of its tasks are stopped, others do not notice."""
        for task in self.tasks:
            if task.job is job and not (self.noisy and self.rng.random() < 0.7):
                task.alive = False

    # --- moves ---------------------------------------------------------------------------------------

    def _step(self) -> None:
        rng, network = self.rng, self.network
        if rng.random() < self.weather.faults:
            self._disturb()
        if network.late and rng.random() < self.weather.release:
            network.release()
        if rng.random() < self.weather.merging:
            self._merge()
        if not self._current and not self._finished and rng.random() < 0.05:
            self._start_driver()
        drivers = [driver for driver in self._drivers if driver.ready]
        tasks = [task for task in self.tasks if task.ready]
        others = self.others()
        own = len(drivers) + len(tasks)
        number = rng.randrange(max(1, own + len(others) + len(network.bag)))
        if number < len(drivers):
            drivers[number].step()
            if rng.random() < self.risk(drivers[number]):
                self._interrupt(drivers[number])
        elif number < own:
            task = tasks[number - len(drivers)]
            self.tell("{} goes on", task)
            task.step()
        elif number < own + len(others):
            others[number - own].step()
        elif network.bag:
            self._deliver(network.take())
        else:
            self._wake()
        self._drivers = [driver for driver in self._drivers if driver.alive]
        self.tasks = [task for task in self.tasks if task.alive]

    def _deliver(self, message: Message) -> None:
        kind, call, answer = message
        if kind == "request":
            self._ask(call, message)
        elif not call.done:
            call.done = True
            self.tell("answer to {}: {}", call, answer)
            call.caller.answered(call, answer)

    def _ask(self, call: Call, message: Message) -> None:
        node = call.node
        if node.hung:
            self.network.hold(message)
            return
        if not node.alive:
            self.network.answer(call, NodeError("connection refused", node=str(node)))
            return
        before = node.fence
        answer: object
        try:
            answer = node.handle(call)
        except TidegateError as error:
            answer = error
        check(before.ticket <= node.fence.ticket, f"{node} goes back to {node.fence.ticket}")
        self.reply(call, answer)

    def reply(self, call: Call, answer: object) -> None:
        """A node has an answer, which may be the last that is heard of it."""
        node = call.node
        self.tell("{}: {}", call, answer)
        self.check_answer(call, answer)
        # A batch has many more calls of tasks; dying of each as often would let none through.
        share = 1.0 if call.action in _RARE else 0.1
        if self.rng.random() < share * self.weather.dying:
            self.crash_node(node)
            self.network.lose(call)
        else:
            self.network.answer(call, answer)

    def _merge(self) -> None:
        """What happens in any run, at any time."""
        node = self.rng.choice(self._addresses) if self._addresses else None
        if node is None or not node.alive or node.hung:
            return
        try:
            merged = node.merge(self.rng)
        except StateError as error:  # It has no part in the pipeline any more, and its runs are collected.
            self.check_node(node, error)
            return
        if merged:
            self.counts["merges"] += 1
            self.tell("{} merges: {}", node, node.merges[-1])

    def _wake(self) -> None:
        """Nothing is ready: what was held up goes on."""
        for driver in self._drivers:
            driver.paused = False
        for node in self._addresses:
            node.hung = False
        if self.network.late:
            self.network.release()
        elif not self._current and not self._finished:
            self._start_driver()

    # --- faults --------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        fault = self.rng.random()
        node = self.rng.choice(self._addresses) if self._addresses else None
        if self._drivers and fault < 0.3:
            driver = self.rng.choice(self._drivers)
            driver.paused = not driver.paused
            self.tell("{} {}", driver, "sleeps" if driver.paused else "wakes")
        elif self._drivers and fault < 0.4:
            self._replace_driver()
        elif self.tasks and fault < 0.6:
            job = self.rng.choice(self.tasks).job
            self.tell("Spark gives up the job of {}", job.ticket)
            job.abort("an executor was lost")
        elif node is not None and fault < 0.8:
            self.crash_node(node)
        elif node is not None:
            node.hung = not node.hung and node.alive
            self.counts["node hangs"] += node.hung
            self.tell("{} {}", node, "hangs" if node.hung else "goes on")

    def _interrupt(self, driver: Driver) -> None:
        """Right after any move of a driver: it dies, or falls asleep and is taken for dead."""
        if self.rng.random() < 0.4:
            self.counts["driver crashes"] += 1
            driver.stop("crashes")
        else:
            driver.paused = True
            self.tell("{} sleeps", driver)
            self._replace_driver()

    def _replace_driver(self) -> None:
        if self._current and len(self._drivers) < _DRIVERS:
            self._start_driver()

    def crash_node(self, node: Node) -> None:
        self.counts["node crashes"] += 1
        again = self.rng.random() < 0.5
        node.restart()
        node.alive = again
        if again:
            self.network.reconnect(node)
        self.tell("{} crashes{}", node, " and is started again" if again else "")

    def _calm_down(self) -> None:
        self.noisy = False
        self.weather = self.network.weather = Weather()
        for driver in self._drivers:
            driver.paused = False
        for node in self._addresses:
            node.hung = False
        self.tell("no more faults")

    def _start_driver(self) -> None:
        self._started += 1
        self.counts["drivers"] += 1
        self._drivers.append(self.cast.driver(self, self._started))
        self.tell("{} starts", self._drivers[-1])

    def _place(self, name: int) -> Node:
        place = sum(node.name == name for node in self._addresses)
        node = self._nodes[name] = self.cast.node(name, self.durable, place)
        self._addresses.append(node)
        return node

    # --- what must hold ------------------------------------------------------------------------------

    @property
    def _current(self) -> bool:
        """Whether the driver that was started last is alive; all others are only still around."""
        return any(driver.number == self._started for driver in self._drivers)

    @property
    def _nearly_done(self) -> bool:
        last = self.durable.last
        return last is not None and last.batch_id >= self.durable.workload.batches - 1 - self.calm_batches

    @property
    def _finished(self) -> bool:
        return len(self.durable.done) == self.durable.workload.batches

    @property
    def _over(self) -> bool:
        waiting = self._drivers or self.tasks or self.network.bag or self.network.late
        return self._finished and not waiting

    def check_answer(self, call: Call, answer: object) -> None:
        self.check_node(call.node, answer)

    def check_node(self, node: Node, answer: object) -> None:
        ticket, last = node.fence.ticket, self.durable.last
        if node.fence.phase == "committed":
            entry = self.durable.entry(ticket.batch_id)
            check(entry is not None and entry.ticket == ticket, f"{node} commits {ticket}: not in the ledger")
        if isinstance(answer, StateError):
            needed = ticket.batch_id == (last.batch_id + 1 if last else 0)
            current = ticket.generation == self.durable.generation
            check(not (needed and current), f"{node} needs a run that was deleted: {answer}")

    def _check_end(self) -> None:
        durable = self.durable
        workload, last = durable.workload, durable.last
        if last is None or last.batch_id != workload.batches - 1:
            raise PromiseError("the ledger has all batches")
        check(durable.read(last.manifest.runs) == workload.state(last.batch_id), "the state is right")
        published = [durable.outputs[ticket] for _, ticket in sorted(durable.published.items())]
        check(published == workload.output, f"published is {published} instead of {workload.output}")
        self.check_nodes(last)

    def check_nodes(self, last: Entry) -> None:
        """What they hold at the end."""
        durable = self.durable
        for name in last.route.nodes:
            node = self.node(name)
            check(not node.staged, f"{node} still holds staged parts")
            check(node.fence.ticket == last.ticket, f"{node} stands at {node.fence.ticket}")
            check(node.fence.phase == "committed", f"{node} is {node.fence.phase}")
            runs = last.manifest.restricted(node.groups).runs
            check(durable.read(node.runs) == durable.read(runs), f"{node} holds other state than the ledger")


def _brief(fact: object) -> str:
    """As text, the same in every process: sets in their order."""
    if isinstance(fact, tuple | frozenset):
        parts = list(fact) if isinstance(fact, tuple) else sorted(fact)
        return f"({', '.join(map(_brief, parts))})"
    if is_dataclass(fact) and type(fact).__str__ is object.__str__:
        values = ", ".join(_brief(getattr(fact, item.name)) for item in fields(fact))
        return f"{type(fact).__name__}({values})"
    return str(fact)
