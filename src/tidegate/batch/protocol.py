"""The batch protocol as a state machine without I/O: events in, instructions out.

    Start                -> begin on every node (a batch in the ledger is only published)
    all nodes have begun -> run the Spark job: tasks read and stage, sinks write where nobody reads
    the job is done      -> prepare on every node
    all are prepared     -> append to the ledger, if every part was staged: THE commit point
    appended             -> commit on every node, publish

Up to the commit point any failure ends the attempt: lost nodes are replaced, and the next attempt begins.
After it nothing is undone: a node that missed its commit learns of it from the next `begin`. Every event of a
node or job carries its ticket, so events that arrive late, twice or for an earlier attempt change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.batch.ticket import StagedPart, Ticket


@dataclass(frozen=True, slots=True)
class Start:
    batch_id: int
    committed: bool
    """Whether the ledger has the batch already: Spark is replaying it."""

    def __str__(self) -> str:
        return f"batch {self.batch_id} starts" + (" again: it is already committed" if self.committed else "")


@dataclass(frozen=True, slots=True)
class Begun:
    ticket: Ticket
    node: int

    def __str__(self) -> str:
        return f"attempt {self.ticket.attempt}: node {self.node} has begun"


@dataclass(frozen=True, slots=True)
class JobDone:
    """The Spark job is done: every task has staged, every sink has written."""

    ticket: Ticket

    def __str__(self) -> str:
        return f"attempt {self.ticket.attempt}: the job is done"


@dataclass(frozen=True, slots=True)
class Prepared:
    ticket: Ticket
    node: int
    staged: frozenset[StagedPart]

    def __str__(self) -> str:
        return f"attempt {self.ticket.attempt}: node {self.node} has prepared {len(self.staged)} parts"


@dataclass(frozen=True, slots=True)
class Failed:
    """Something before the commit point went wrong."""

    ticket: Ticket
    why: str
    lasting: bool = False
    """Whether another attempt is bound to fail in the same way."""

    def __str__(self) -> str:
        return f"attempt {self.ticket.attempt}: failed: {self.why}"


@dataclass(frozen=True, slots=True)
class Healed:
    """Nodes that were lost have been replaced."""

    ticket: Ticket

    def __str__(self) -> str:
        return f"attempt {self.ticket.attempt}: lost nodes have been replaced"


@dataclass(frozen=True, slots=True)
class Appended:
    ticket: Ticket

    def __str__(self) -> str:
        return f"attempt {self.ticket.attempt}: the batch is in the ledger"


@dataclass(frozen=True, slots=True)
class Committed:
    """A node has made the batch current, or cannot be reached: the next `begin` tells it."""

    ticket: Ticket
    node: int

    def __str__(self) -> str:
        return f"attempt {self.ticket.attempt}: node {self.node} has been told of the commit"


@dataclass(frozen=True, slots=True)
class Published:
    batch_id: int

    def __str__(self) -> str:
        return f"batch {self.batch_id} is published"


Event: TypeAlias = Start | Begun | JobDone | Prepared | Failed | Healed | Appended | Committed | Published


@dataclass(frozen=True, slots=True)
class Begin:
    ticket: Ticket
    node: int


@dataclass(frozen=True, slots=True)
class RunJob:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Prepare:
    ticket: Ticket
    node: int


@dataclass(frozen=True, slots=True)
class Append:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Commit:
    ticket: Ticket
    node: int


@dataclass(frozen=True, slots=True)
class Publish:
    batch_id: int


@dataclass(frozen=True, slots=True)
class Heal:
    """Replace lost nodes before the next attempt."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class GiveUp:
    batch_id: int
    tries: int
    why: str


Instruction: TypeAlias = Begin | RunJob | Prepare | Append | Commit | Publish | Heal | GiveUp
BatchPhase: TypeAlias = Literal[
    "new", "beginning", "running", "preparing", "appending", "finishing", "healing", "done", "failed"
]


class BatchProtocol:
    """One batch. `expected` says what must be staged on each node before the batch can commit."""

    def __init__(self, *, generation: int, expected: Mapping[int, frozenset[StagedPart]], tries: int) -> None:
        self._generation = generation
        self._expected = dict(expected)
        self._tries = tries
        self._waiting: set[int] = set()
        self._published = False
        self.phase: BatchPhase = "new"
        self.ticket = Ticket(generation, -1)
        """That of the current attempt."""
        self.story: list[Event] = []
        """Every event so far; `str` of one is a line for people."""
        self.why = ""
        """Why the latest attempt failed."""

    def handle(self, event: Event) -> list[Instruction]:
        """What to do now. An event that does not belong to the current attempt is ignored."""
        self.story.append(event)
        if isinstance(event, Start):
            return self._start(event)
        if isinstance(event, Published):
            return self._finished(published=True)
        if event.ticket != self.ticket:
            return []
        match event, self.phase:
            case Begun(), "beginning":
                self._waiting.discard(event.node)
                return [] if self._waiting else self._run()
            case JobDone(), "running":
                return self._ask("preparing", Prepare) or self._append()
            case Prepared(), "preparing":
                return self._prepared(event)
            case Appended(), "appending":
                return [*self._ask("finishing", Commit), Publish(self.ticket.batch_id)]
            case Committed(), "finishing":
                self._waiting.discard(event.node)
                return self._finished(published=False)
            case Failed(), "beginning" | "running" | "preparing":
                return self._failed(event.why, lasting=event.lasting)
            case Healed(), "healing":
                return self._attempt(self.ticket.attempt + 1)
        return []

    def _start(self, event: Start) -> list[Instruction]:
        if self.phase != "new":
            return []
        self.ticket = Ticket(self._generation, event.batch_id)
        if event.committed:
            return self._next("finishing", Publish(event.batch_id))
        return self._attempt(1)

    def _attempt(self, number: int) -> list[Instruction]:
        self.ticket = Ticket(self._generation, self.ticket.batch_id, number)
        return self._ask("beginning", Begin) or self._run()

    def _ask(
        self, phase: BatchPhase, instruction: type[Begin] | type[Prepare] | type[Commit]
    ) -> list[Instruction]:
        """The same instruction for every node; empty without nodes."""
        self.phase = phase
        self._waiting = set(self._expected)
        return [instruction(self.ticket, node) for node in sorted(self._waiting)]

    def _run(self) -> list[Instruction]:
        return self._next("running", RunJob(self.ticket))

    def _next(self, phase: BatchPhase, instruction: Instruction) -> list[Instruction]:
        self.phase = phase
        return [instruction]

    def _prepared(self, event: Prepared) -> list[Instruction]:
        missing = self._expected[event.node] - event.staged
        if missing:
            table, partition = min(missing)
            return self._failed(
                f"partition {partition} of {table} was not staged on node {event.node} "
                f"({len(missing)} parts are missing): a sink has to read all rows of a batch"
            )
        self._waiting.discard(event.node)
        return [] if self._waiting else self._append()

    def _append(self) -> list[Instruction]:
        return self._next("appending", Append(self.ticket))

    def _failed(self, why: str, *, lasting: bool = False) -> list[Instruction]:
        self.why = why
        if lasting or self.ticket.attempt >= self._tries:
            return self._next("failed", GiveUp(self.ticket.batch_id, self.ticket.attempt, why))
        return self._next("healing", Heal(self.ticket))

    def _finished(self, *, published: bool) -> list[Instruction]:
        self._published = self._published or published
        if self.phase == "finishing" and self._published and not self._waiting:
            self.phase = "done"
        return []
