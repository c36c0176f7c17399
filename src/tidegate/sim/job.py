"""A simulated Spark job: the tasks of two keyed steps, retried, run twice at once, left behind."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from tidegate.batch.protocol import Event, Failed, Written
from tidegate.batch.ticket import StagedPart, Ticket
from tidegate.errors import TidegateError
from tidegate.rescale.route import Route
from tidegate.sim.durable import check
from tidegate.sim.network import Call
from tidegate.sim.workload import FIRST, SECOND, Rows, apply, group_of, rekeyed

if TYPE_CHECKING:
    from tidegate.sim.driver import Driver
    from tidegate.sim.node import Node
    from tidegate.sim.world import World

_TRIES = 3
_SLOWNESS = 0.95


class Job:
    """One attempt at a batch. It knows the nodes where they were when it began."""

    def __init__(self, world: World, driver: Driver, ticket: Ticket, route: Route) -> None:
        self.world = world
        self.driver = driver
        self.ticket = ticket
        self.route = route
        self.nodes = {name: driver.node(name) for name in route.nodes}
        self._results: dict[StagedPart, Rows] = {}
        self._failures: dict[StagedPart, int] = {}
        self._step = FIRST
        self._over = False
        # A sink that does not read all rows leaves a partition out.
        self._skipped = world.rng.randrange(route.parallelism) if world.strikes(0.05) else None
        self._start(FIRST)

    def input(self, step: str, partition: int) -> Rows:
        """The rows that the shuffle brings to a task."""
        if step == FIRST:
            rows = self.world.durable.workload.input[self.ticket.batch_id]
        else:
            places = range(self.route.parallelism)
            rows = rekeyed(row for place in places for row in self._results[FIRST, place])
        groups = self.route.groups_in(partition)
        return tuple(row for row in rows if group_of(step, row[0], self.route.groups) in groups)

    def finished(self, part: StagedPart, rows: Rows) -> None:
        """A task is through; that of a part that was done before counts for nothing."""
        if self._over or part in self._results:
            return
        self._results[part] = rows
        if all((self._step, place) in self._results for place in self._places(self._step)):
            if self._step == FIRST:
                self._start(SECOND)
            else:
                self._write()

    def failed(self, part: StagedPart, error: TidegateError) -> None:
        """A task has failed: run it again, or give the job up."""
        if self._over or part in self._results:
            return
        self._failures[part] += 1
        if self._failures[part] < _TRIES:
            self.world.counts["task retries"] += 1
            self._launch(part)
        else:
            self._end(Failed(self.ticket, str(error)))

    def abort(self, why: str) -> None:
        """Spark gives the job up."""
        if not self._over:
            self._end(Failed(self.ticket, why))

    def _start(self, step: str) -> None:
        self._step = step
        places = self._places(step)
        for place in places:
            self._failures[step, place] = 0
            self._launch((step, place))
            if self.world.strikes(0.2):
                self.world.counts["speculations"] += 1
                self._launch((step, place))
        if not places:
            self._write()

    def _places(self, step: str) -> list[int]:
        """The partitions of a step that are run."""
        every = range(self.route.parallelism)
        return [place for place in every if step == FIRST or place != self._skipped]

    def _launch(self, part: StagedPart) -> None:
        self.world.tasks.append(Task(self, part))

    def _write(self) -> None:
        """The sink's own part of the job, and its end."""
        rows = [row for (step, _), found in self._results.items() if step == SECOND for row in found]
        self.world.durable.outputs[self.ticket] = tuple(sorted(rows))
        self._end(Written(self.ticket))

    def _end(self, event: Event) -> None:
        self._over = True
        self.driver.tell(event)
        self.world.leave_behind(self)


class Task:
    """get from every node that has groups of the partition, work, stage there, tell the job."""

    def __init__(self, job: Job, part: StagedPart) -> None:
        self.job = job
        self.part = part
        self.alive = True
        self._slow = job.world.strikes(0.15)
        self._answers: list[object] = []
        self._waiting: Call | None = None
        self._life = self._live()

    def __str__(self) -> str:
        return f"task {self.part[1]} of {self.part[0]}, {self.job.ticket}"

    @property
    def ready(self) -> bool:
        waiting = self._waiting is not None and not self._answers
        return not waiting and not (self._slow and self.job.world.rng.random() < _SLOWNESS)

    def answered(self, call: Call, answer: object) -> None:
        if call is self._waiting:
            self._answers.append(answer)

    def step(self) -> None:
        """Go on to the next call."""
        try:
            next(self._life)
        except StopIteration:
            self.alive = False
        except TidegateError as error:
            self.alive = False
            self.job.failed(self.part, error)

    def _live(self) -> Generator[None]:
        job, (step, place) = self.job, self.part
        ticket, route = job.ticket, job.route
        owned = {
            name: job.route.groups_of(name) & job.route.groups_in(place)
            for name in route.nodes
            if place in route.partitions_on(name)
        }
        state: dict[int, int] = {}
        workload = job.world.durable.workload
        rows = job.input(step, place)
        keys = job.world.wanted(rows)
        for name, groups in owned.items():
            found = yield from self._call(job.nodes[name], "get", step, groups, keys)
            assert isinstance(found, dict)
            right = workload.part(ticket.batch_id - 1, step, groups, keys)
            check(found == right, f"{self} reads {found} instead of {right}")
            state |= found
        sums = apply(state, rows, workload.blind)
        yield
        for name, groups in owned.items():
            mine = {
                (step, key): total
                for key, total in sums.items()
                if group_of(step, key, route.groups) in groups
            }
            yield from self._call(job.nodes[name], "stage", self.part, mine)
        job.finished(self.part, tuple(sorted(sums.items())))

    def _call(self, node: Node, action: str, *body: object) -> Generator[None, None, object]:
        """Ask a node, once more when there is no answer; errors of its own are raised."""
        for again in (True, False):
            call = self._waiting = Call(self, node, action, self.job.ticket, body)
            self.job.world.network.send(call)
            yield
            self._waiting = None
            answer = self._answers.pop(0)
            self._answers.clear()
            if not isinstance(answer, TidegateError):
                return answer
            if not again or not isinstance(answer, ConnectionError):
                raise answer
        raise AssertionError("unreachable: the second answer is returned or raised")
