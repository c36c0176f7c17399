"""Spark as far as a batch sees it: cuts that are logged before a batch runs, tasks that fail, run twice and
are left behind. And a sink, which keeps what it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidegate.batch.outcome import Written
from tidegate.batch.ticket import Ticket
from tidegate.errors import TidegateError
from tidegate.sim.workload import GRACE, TABLES, Input, Model, Output, Row, applied, hashed
from tidegate.sinks.sink import Receipt
from tidegate.sources.source import Seen
from tidegate.state.task.assignment import Assignment
from tidegate.state.task.state import TaskState

if TYPE_CHECKING:
    from tidegate.sim.world import World

SOURCE, SINK = "source-1", "files:/out"
GRACES = {SOURCE: GRACE}
_TRIES = 3


class JobError(Exception):
    """A task failed as often as it may, or the sink did."""


class Spark:
    """Cuts and commits outlive everything; how Spark keeps them is not simulated."""

    def __init__(self, world: World) -> None:
        self.input = Input(world.rng)
        self.committed = -1
        """The last batch that Spark has committed for itself."""
        self._ends: list[int] = []
        self._world = world
        self._models = [Model()]

    def next(self) -> int:
        """The batch that a new query begins with: one that is logged and not committed is replayed."""
        return min(self.committed + 1, len(self._ends))

    def cut(self, batch_id: int) -> tuple[int, int]:
        """From which row to which; decided and logged when it is first asked for."""
        if batch_id == len(self._ends):
            # At times much to begin with, so that later runs are compacted without the first one.
            sizes = (0, 1, 3, 6) if batch_id else (3, 6, 400)
            every = self._world.last_batch
            more = self._world.rng.choice(sizes)
            self._ends.append(self.input.one_of_each_key() if every else self.input.more(more))
        return self._ends[batch_id - 1] if batch_id else 0, self._ends[batch_id]

    def rows(self, batch_id: int) -> list[Row]:
        return self.input.rows[slice(*self.cut(batch_id))]

    def commit(self, batch_id: int) -> None:
        self._world.step()
        self.committed = max(self.committed, batch_id)

    def model(self, batch_id: int) -> Model:
        """What must have come of a batch; -1 for what is there before the first."""
        while len(self._models) <= batch_id + 1:
            self._models.append(self._models[-1].after(self.rows(len(self._models) - 1)))
        return self._models[batch_id + 1]

    def job(self, ticket: Ticket, assignment: Assignment | None) -> Written:
        """All tasks of a batch, in any order."""
        assert assignment is not None
        world, rows = self._world, self.rows(ticket.batch_id)
        route = assignment.route
        partitions = list(range(route.parallelism))
        parts: dict[int, list[Row]] = {partition: [] for partition in partitions}
        for row in rows:
            parts[route.partitions[hashed(row.key) * route.groups >> 64]].append(row)
        world.rng.shuffle(partitions)
        output: Output = []
        for place, partition in enumerate(partitions):
            try:
                output += self._task(assignment, partition, parts[partition])
            except JobError:
                for other in partitions[place + 1 :]:
                    if world.strikes(0.3):  # It was running already.
                        world.stragglers.append(self._whole_task(assignment, other, parts[other]))
                raise
        receipt = world.sink.write(ticket, sorted(output))
        newest = max((row.at for row in rows), default=None)
        return Written({SINK: receipt}, {"sink-1": len(output)}, {SOURCE: Seen(len(rows), newest=newest)})

    def _task(self, assignment: Assignment, partition: int, rows: list[Row]) -> Output:
        world = self._world
        problem: TidegateError | None = None
        for _ in range(_TRIES):
            try:
                state = self._state(assignment, partition)
                output, late = applied(rows, state, assignment.time)
                if world.strikes(world.weather.stragglers):  # Another one is quicker.
                    world.stragglers.append(partial(state.stage, TABLES, late))
                    if world.strikes(0.5):
                        continue
                state.stage(TABLES, late)
                if world.strikes(world.weather.stragglers):
                    world.stragglers.append(self._whole_task(assignment, partition, rows))
                return output
            except TidegateError as error:
                problem = error
        raise JobError(f"task {partition} failed: {problem}") from problem

    def _whole_task(self, assignment: Assignment, partition: int, rows: list[Row]) -> Callable[[], None]:
        def run() -> None:
            state = self._state(assignment, partition)
            state.stage(TABLES, applied(rows, state, assignment.time)[1])

        return run

    def _state(self, assignment: Assignment, partition: int) -> TaskState:
        return TaskState(assignment, partition, self._world.scratch, connect=self._world.connect)


class Sink:
    """Rows by attempt; a batch becomes visible once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._written: dict[str, Output] = {}
        self.visible: dict[int, str] = {}

    def write(self, ticket: Ticket, rows: Output) -> Receipt:
        self._world.step()
        if self._world.strikes(self._world.weather.sink):
            raise JobError("the sink cannot be reached")
        attempt = f"{ticket.batch_id}-{ticket.generation}-{len(self._written)}"
        self._written[attempt] = rows
        return {"rows": len(rows), "attempt": attempt}

    def publish(self, batch_id: int, place: str, receipt: Receipt) -> None:
        world = self._world
        world.step()
        if world.strikes(world.weather.sink):
            raise JobError("the sink cannot be reached")
        attempt = receipt["attempt"]
        found, wanted = self._written.get(attempt), world.spark.model(batch_id).output
        shown = self.visible.setdefault(batch_id, attempt)
        world.promise(shown == attempt, f"batch {batch_id} is published twice: as {shown} and as {attempt}")
        world.promise(found == wanted, f"batch {batch_id} is published with {found}, not {wanted}")
        world.check_committed(batch_id, attempt)
        world.tell(f"batch {batch_id} is published")
