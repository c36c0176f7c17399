"""What survives every crash: the records of the ledger, the log, Spark's own checkpoint, the sink.

Nothing here is clever. Each write checks what must hold after it, so a wrong one is caught where it happens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.batch.ticket import StagedPart, Ticket
from tidegate.errors import StateError
from tidegate.rescale.route import Route
from tidegate.sim.workload import Rows, State, Workload, group_of
from tidegate.state.log.manifest import RunRef, StateManifest


class PromiseError(AssertionError):
    """A promise of the protocol was broken."""


def check(holds: bool, promise: str) -> None:
    """Raise a PromiseError unless the promise holds."""
    if not holds:
        raise PromiseError(promise)


@dataclass(frozen=True, slots=True)
class Entry:
    """A committed batch, as the ledger has it."""

    ticket: Ticket
    """That of the attempt that was committed; its output is filed under it, too."""
    manifest: StateManifest
    route: Route

    @property
    def batch_id(self) -> int:
        return self.ticket.batch_id


@dataclass(frozen=True, slots=True)
class Run:
    """A run in the log."""

    rows: State
    generation: int
    origins: dict[StagedPart, Ticket]
    """Who staged which part; nobody for a merged run."""


class Durable:
    """All of it. `records` is the ledger: entries, and numbers of generations."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.records: list[Entry | int] = []
        self.log: dict[str, Run] = {}
        self.planned: set[int] = set()
        self.done: set[int] = set()
        self.outputs: dict[Ticket, Rows] = {}
        self.published: dict[int, Ticket] = {}

    @property
    def last(self) -> Entry | None:
        return next((record for record in reversed(self.records) if isinstance(record, Entry)), None)

    @property
    def generation(self) -> int:
        return next((record for record in reversed(self.records) if isinstance(record, int)), 0)

    def entry(self, batch_id: int) -> Entry | None:
        found = (record for record in self.records if isinstance(record, Entry))
        return next((entry for entry in found if entry.batch_id == batch_id), None)

    def create(self, number: int, record: Entry | int) -> bool:
        """Create the record of that number; False when it is taken."""
        if number != len(self.records):
            check(number < len(self.records), "the ledger has no gaps")
            return False
        if isinstance(record, Entry):
            self._check_entry(record)
        self.records.append(record)
        return True

    def create_run(self, name: str, run: Run) -> None:
        check(name not in self.log, f"run {name} is written once")
        self.log[name] = run

    def delete_run(self, name: str) -> None:
        named = {run.name for run in self.last.manifest.runs} if self.last else set()
        check(name not in named, f"run {name} is deleted, but the last manifest needs it")
        self.log.pop(name, None)

    def read(self, runs: Iterable[RunRef]) -> State:
        """What these runs amount to; of two with a key, the later one counts."""
        state: State = {}
        for ref in sorted(runs, key=lambda run: (run.sequence, run.name)):
            run = self.log.get(ref.name)
            if run is None:
                raise StateError(f"run {ref.name} is not in the log")
            state.update(
                (place, value)
                for place, value in run.rows.items()
                if group_of(*place, self.workload.groups) in ref.groups
            )
        return state

    def drop_outputs(self, after: int, before: int) -> None:
        """Forget what was written for batches after `after` by generations before `before`."""
        for ticket in list(self.outputs):
            if ticket.batch_id > after and ticket.generation < before:
                del self.outputs[ticket]

    def publish(self, ticket: Ticket) -> None:
        """Make an attempt's output visible; again is the same as once."""
        entry = self.entry(ticket.batch_id)
        check(
            entry is not None and entry.ticket == ticket, f"{ticket} is published, but it was not committed"
        )
        check(ticket in self.outputs, f"the output of {ticket} is gone before it was published")
        check(
            self.published.setdefault(ticket.batch_id, ticket) == ticket,
            f"{ticket} is published a second time",
        )

    def _check_entry(self, entry: Entry) -> None:
        batch_id, ticket = entry.batch_id, entry.ticket
        after = self.last.batch_id if self.last else -1
        check(batch_id == after + 1, f"batch {batch_id} is committed after batch {after}")
        check(ticket.generation == self.generation, f"{ticket} is committed by a driver that was replaced")
        check(entry.manifest.batch_id == batch_id, f"{ticket} has the manifest of another batch")
        try:
            state = self.read(entry.manifest.runs)
        except StateError as error:
            raise PromiseError(f"{ticket} is committed, but {error}") from error
        for ref in entry.manifest.runs:
            if ref.sequence == batch_id:
                wrong = [origin for origin in self.log[ref.name].origins.values() if origin != ticket]
                check(not wrong, f"{ticket} is committed with parts that {wrong} staged")
        expected = self.workload.state(batch_id)
        check(state == expected, f"{ticket} is committed with state {state} instead of {expected}")
        output, right = self.outputs.get(ticket), self.workload.output[batch_id]
        check(output == right, f"{ticket} is committed with output {output} instead of {right}")
