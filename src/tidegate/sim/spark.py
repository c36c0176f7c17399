"""Spark as far as a batch sees it: cuts that are logged before a batch runs, but not synced; tasks that fail,
run twice and are left behind. And a sink, which keeps what it is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.batch.outcome import Written
from tidegate.batch.reconciliation import ends_of
from tidegate.batch.ticket import Ticket
from tidegate.errors import TidegateError
from tidegate.ledger.records import Cut, Entry
from tidegate.sim.hosts import Host
from tidegate.sim.process import DiedError, Process
from tidegate.sim.workload import GRACE, TABLES, Input, Model, Output, Row, applied, hashed
from tidegate.sinks.sink import Receipt
from tidegate.sources.source import Seen
from tidegate.spark.checkpoint_copy import CheckpointCopy
from tidegate.spark.checkpoint_files import CheckpointFiles
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
    """One source. Its offset is a number of rows or, as that of a file source, that of a log with it."""

    def __init__(self, world: World) -> None:
        self.input = Input(world.rng)
        self._has_logs = world.rng.random() < 0.5
        self._plans_first = world.rng.random() < 0.3
        """Cuts outlive a crash before their batches run."""
        self._world = world
        self._models = [Model()]
        self._taken = 0
        """Rows in the batches that were committed, as far as they have models."""

    @property
    def files(self) -> CheckpointFiles:
        """Those on the host of whoever acts."""
        return CheckpointFiles(Path("/checkpoint/spark"), self._world.here.disk)

    def record(self, last: Entry | None, generation: int) -> CheckpointFiles | CheckpointCopy:
        """What keeps the files of a new driver; where that is the store, they are made anew from there."""
        place = self._world.spark_copy()
        if place is None:
            return self.files
        copy = CheckpointCopy(self.files, place, generation, plans=self._plans_first)
        batch_id = last.batch_id if last else -1
        finished = batch_id in self._world.sink.visible and self._world.strikes(0.5)
        copy.restore(batch_id, *ends_of(last, [SOURCE]), finished=finished)
        return copy

    def next(self) -> int:
        """The batch that a new query begins with: one that is logged and not committed is replayed."""
        return self.files.finished() + 1

    def cut(self, batch_id: int) -> Cut:
        """From where to where; decided and logged when it is first asked for."""
        start = self._offset(batch_id - 1) if batch_id else None
        if batch_id > self.files.newest("offsets"):
            self._write(self.files.folder / "offsets" / str(batch_id), {}, self._plan(batch_id))
        return Cut(start, self._offset(batch_id))

    def rows(self, cut: Cut) -> list[Row]:
        return self.input.rows[self._position(cut.start) : self._position(cut.end)]

    def commit(self, batch_id: int) -> None:
        self._world.step()
        files = self.files
        if not files.disk.exists(path := files.folder / "commits" / str(batch_id)):
            self._write(path, {})

    def forget(self) -> None:
        """While no driver runs, somebody deletes the newest cut, or all cuts and commits. The logs of sources
        stay: a file source would not go on without them."""
        files = self.files
        if self._world.rng.random() < 0.5:
            self._world.tell("Spark's newest cut is deleted")
            files.unplan(files.newest("offsets"))
            return
        self._world.tell("Spark's cuts and commits are deleted")
        for folder in (files.folder / "offsets", files.folder / "commits"):
            for name in files.disk.names(folder):
                files.disk.remove(folder / name)

    def model(self, batch_id: int, cut: Cut | None = None) -> Model:
        """What must have come of a batch, which was committed with this cut; -1 for what is there before the
        first."""
        if cut is not None and len(self._models) == batch_id + 1:
            begins, ends = self._position(cut.start), self._position(cut.end)
            self._world.promise(
                begins == self._taken, f"batch {batch_id} begins at row {begins}, not at {self._taken}"
            )
            self._models.append(self._models[-1].after(self.input.rows[begins:ends]))
            self._taken = ends
        return self._models[batch_id + 1]

    def _plan(self, batch_id: int) -> Any:
        """The end of a new batch. Rows of a log beyond the last cut are taken in."""
        # At times much to begin with, so that later runs are compacted without the first one.
        sizes = (0, 1, 3, 6) if batch_id else (3, 6, 400)
        every, more = self._world.last_batch, self._world.rng.choice(sizes)
        end = self.input.one_of_each_key() if every else self.input.more(more)
        if not self._has_logs:
            return end
        folder = self.files.folder / "sources" / "0"
        number = len([name for name in self._world.here.disk.names(folder) if name.isdigit()])
        self._write(folder / str(number), {"path": str(end), "batchId": number})
        return {"logOffset": number}

    def _position(self, offset: Any) -> int:
        if not isinstance(offset, dict):
            return offset or 0
        log = self.files.folder / "sources" / "0" / str(offset["logOffset"])
        return int(json.loads(self._world.here.disk.read(log).splitlines()[1])["path"])

    def _offset(self, batch_id: int) -> Any:
        found = self.files.offsets(batch_id)
        if found is None:
            raise JobError(f"Spark cannot read its log of batch {batch_id}")
        return found[0]

    def _write(self, path: Path, *lines: Any) -> None:
        """As Spark does: once, and whole or not at all as long as the power is not cut."""
        disk = self._world.here.disk
        disk.make_folder(path.parent)
        draft = path.with_name(f".{path.name}.{self._world.steps}.tmp")
        with disk.create(draft) as file:
            file.write("\n".join(["v1", *map(json.dumps, lines)]).encode())
        try:
            disk.link(draft, path)
        except FileExistsError:
            raise JobError(f"another query has written {path}") from None
        finally:
            disk.remove(draft)

    def job(self, ticket: Ticket, assignment: Assignment | None) -> Written:
        """All tasks of a batch, in any order."""
        assert assignment is not None
        world, cut = self._world, self.cut(ticket.batch_id)
        rows = self.rows(cut)
        route = assignment.route
        partitions = list(range(route.parallelism))
        parts: dict[int, list[Row]] = {partition: [] for partition in partitions}
        for row in rows:
            parts[route.partitions[hashed(row.key) * route.groups >> 64]].append(row)
        world.rng.shuffle(partitions)
        record = world.driver.record
        if self._plans_first:
            record.sync(ticket.batch_id, [cut.start], [cut.end])
        output: Output = []
        for place, partition in enumerate(partitions):
            try:
                output += self._task(assignment, partition, parts[partition])
            except JobError:
                for other in partitions[place + 1 :]:
                    if world.strikes(0.3):  # It was running already.
                        self._leave_behind(
                            world.rng.choice(world.hosts), self._whole_task(assignment, other, parts[other])
                        )
                raise
        receipt = world.sink.write(ticket, sorted(output))
        if not self._plans_first:
            record.sync(ticket.batch_id, [cut.start], [cut.end])
        newest = max((row.at for row in rows), default=None)
        return Written({SINK: receipt}, {"sink-1": len(output)}, {SOURCE: Seen(len(rows), newest=newest)})

    def _task(self, assignment: Assignment, partition: int, rows: list[Row]) -> Output:
        problem = "no executor can be reached"
        for _ in range(_TRIES):
            if hosts := self._executors():
                task = Process(f"task {partition}", self._world.rng.choice(hosts))
                try:
                    with self._world.acting(task):
                        output = self._tried(task, assignment, partition, rows)
                    if output is not None:
                        return output
                    problem = "its executor was lost"
                except TidegateError as error:
                    problem = str(error)
                except DiedError:
                    problem = "its executor died"
                self._world.check_alive()
        raise JobError(f"task {partition} failed: {problem}")

    def _tried(self, task: Process, assignment: Assignment, partition: int, rows: list[Row]) -> Output | None:
        """One attempt at a task; None if the driver does not hear of its end. Then it may still be at it."""
        world = self._world
        state = self._state(assignment, partition)
        output, late = applied(rows, state, assignment.time)
        if world.strikes(world.weather.stragglers):  # Another one is quicker.
            self._leave_behind(task.host, partial(state.stage, TABLES, late))
            if world.strikes(0.5):
                return None
        if task.host not in self._executors():
            self._leave_behind(task.host, partial(state.stage, TABLES, late))
            return None
        state.stage(TABLES, late)
        if world.strikes(world.weather.stragglers):
            self._leave_behind(task.host, self._whole_task(assignment, partition, rows))
        return output if task.host in self._executors() else None

    def _executors(self) -> list[Host]:
        """The hosts on which the driver can run tasks."""
        driver = self._world.driver.host.name
        return [host for host in self._world.hosts if self._world.links.reach(driver, host.name)]

    def _leave_behind(self, host: Host, stage: Callable[[], object]) -> None:
        self._world.stragglers.append((host, stage))

    def _whole_task(self, assignment: Assignment, partition: int, rows: list[Row]) -> Callable[[], None]:
        def run() -> None:
            state = self._state(assignment, partition)
            state.stage(TABLES, applied(rows, state, assignment.time)[1])

        return run

    def _state(self, assignment: Assignment, partition: int) -> TaskState:
        here = self._world.here
        return TaskState(
            assignment,
            partition,
            here.scratch,
            connect=self._world.connect,
            here=lambda address: address.partition(":")[0] == here.name,
        )


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
        cut = world.oracle.check_committed(batch_id, attempt)
        found, wanted = self._written.get(attempt), world.spark.model(batch_id, cut).output
        shown = self.visible.setdefault(batch_id, attempt)
        world.promise(shown == attempt, f"batch {batch_id} is published twice: as {shown} and as {attempt}")
        world.promise(found == wanted, f"batch {batch_id} is published with {found}, not {wanted}")
        world.tell(f"batch {batch_id} is published")
