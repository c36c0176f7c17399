"""A simulated driver: the thin shell around the real `BatchProtocol`. Every `yield` is a place to die at."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from tidegate.batch.protocol import (
    Append,
    Appended,
    BatchProtocol,
    Begin,
    Begun,
    Commit,
    Committed,
    Event,
    Failed,
    GiveUp,
    Heal,
    Healed,
    Instruction,
    Prepare,
    Prepared,
    Publish,
    Published,
    RunJob,
    Start,
)
from tidegate.batch.ticket import StagedPart, Ticket
from tidegate.errors import BatchError, CheckpointError, FencedError, NodeError, TidegateError
from tidegate.rescale.route import Route
from tidegate.sim.durable import Entry, check
from tidegate.sim.job import Job
from tidegate.sim.ledger import Ledger
from tidegate.sim.network import Call
from tidegate.sim.node import Node, Receipt
from tidegate.sim.workload import TABLES
from tidegate.state.log.manifest import RunRef, StateManifest, together

if TYPE_CHECKING:
    from tidegate.sim.world import World

_PATIENCE = 0.5
"""How likely a call without an answer is made again."""


class Driver:
    """From its start to its end, or to wherever it is stopped."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.paused = False
        self.why = ""
        self.ledger = Ledger(world.durable)
        self._inbox: list[Event | tuple[Call, object]] = []
        self._waiting = False
        self._receipts: dict[tuple[Ticket, int], Receipt] = {}
        self._life = self._live()

    def __str__(self) -> str:
        return f"driver {self.number}"

    @property
    def ready(self) -> bool:
        return not self.paused and (not self._waiting or bool(self._inbox))

    def tell(self, event: Event) -> None:
        self._inbox.append(event)

    def answered(self, call: Call, answer: object) -> None:
        self._inbox.append((call, answer))

    def step(self) -> None:
        """One thing: an instruction carried out, an event handled, a move between batches."""
        try:
            next(self._life)
        except StopIteration:
            self.stop("has come to the end")
        except TidegateError as error:
            self.world.counts["fenced"] += isinstance(error, FencedError)
            self.stop(f"stops: {error}")

    def stop(self, why: str) -> None:
        self.alive, self.why = False, why
        self.world.tell("{} {}", self, why)

    def _live(self) -> Generator[None]:
        durable = self.world.durable
        self.ledger.read_on()
        yield
        while not self.ledger.take_over():
            yield
            self.ledger.read_on()
            yield
        self.world.tell("{} takes generation {}", self, self.ledger.generation)
        yield
        self.recover()
        yield
        # Spark runs a batch again that it has planned and not finished.
        first = max(durable.done, default=-1) + 1
        replayed = first in durable.planned
        for batch_id in range(first, durable.workload.batches):
            yield
            if not (replayed and batch_id == first):
                self._note(durable.planned, batch_id)
            yield
            yield from self._batch(batch_id)
            yield from self.through(batch_id)
            yield from self._collect()
            self._note(durable.done, batch_id)

    def _note(self, checkpoint: set[int], batch_id: int) -> None:
        """Spark writes to its own checkpoint, and stops when another one has."""
        if batch_id in checkpoint:
            raise CheckpointError(f"another driver has noted batch {batch_id} in Spark's checkpoint")
        checkpoint.add(batch_id)

    def recover(self) -> None:
        """Drop what was written for batches that never happened. Only that of older generations: a newer one
        may have taken over since."""
        last = self.ledger.last
        self.world.durable.drop_outputs(last.batch_id if last else -1, self.ledger.generation)

    def _batch(self, batch_id: int) -> Generator[None]:
        entry, last = self.ledger.get(batch_id), self.ledger.last
        if entry is None and batch_id != (last.batch_id + 1 if last else 0):
            raise CheckpointError(f"Spark is at batch {batch_id}: another driver has gone on meanwhile")
        yield from self.bound(batch_id, committed=entry is not None)
        self._protocol: BatchProtocol = self.world.cast.protocol(
            generation=self.ledger.generation, expected=self.expected(), tries=self.world.tries
        )
        rng = self.world.rng
        todo = self._handle(Start(batch_id, entry is not None))
        while not self._done:
            if todo and (not self._inbox or rng.random() < 0.5):
                self._carry_out(todo.pop(rng.randrange(len(todo))))
            elif self._inbox:
                todo += self._take(self._inbox.pop(rng.randrange(len(self._inbox))))
            self._waiting = not todo and not self._done
            yield
            self._waiting = False

    def node(self, name: int) -> Node:
        """Where a node is now."""
        return self.world.node(name)

    def bound(self, batch_id: int, *, committed: bool) -> Generator[None]:
        """No batch is running and this one is next: which route it runs on."""
        self._route = self._routed()
        yield from ()

    def through(self, batch_id: int) -> Generator[None]:
        """A batch is committed and published."""
        yield from ()

    def expected(self) -> dict[int, frozenset[StagedPart]]:
        """What each node must have got before the batch can commit."""
        return {name: self.parts_of(name) for name in self._route.nodes}

    def parts_of(self, name: int) -> frozenset[StagedPart]:
        return frozenset((table, place) for table in TABLES for place in self._route.partitions_on(name))

    def beginning(self, name: int) -> tuple[object, ...]:
        """What a node is told when a batch begins."""
        return self._route.groups_of(name), self._manifest()

    @property
    def _done(self) -> bool:
        return self._protocol.phase == "done"

    def _routed(self) -> Route:
        """That of the last batch, or another one: a rescale."""
        last, rng = self.ledger.last, self.world.rng
        if last is not None and rng.random() >= self.world.weather.rescaling:
            return last.route
        self.world.counts["rescales"] += last is not None
        version = last.route.version + 1 if last else 1
        nodes, places = rng.randint(1, 4), rng.randint(1, 4)
        return Route.even(self.world.durable.workload.groups, nodes=nodes, partitions=places, version=version)

    def _handle(self, event: Event) -> list[Instruction]:
        instructions = self._protocol.handle(event)
        self.world.tell("{} hears {}: {}", self, event, tuple(instructions))
        return instructions

    def _carry_out(self, instruction: Instruction) -> None:
        self.world.tell("{} carries out {}", self, instruction)
        match instruction:
            case Begin(ticket, node):
                manifest = self._manifest()
                check(manifest.batch_id == ticket.batch_id - 1, f"{ticket} begins after {manifest.batch_id}")
                self._call("begin", ticket, node, *self.beginning(node))
            case RunJob(ticket):
                Job(self.world, self, ticket, self._route)
            case Prepare(ticket, node):
                self._call("prepare", ticket, node)
            case Append(ticket):
                self._append(ticket)
            case Commit(ticket, node):
                self._call("commit", ticket, node)
            case Publish(batch_id):
                self.publish(batch_id)
                self.tell(Published(batch_id))
            case Heal(ticket):
                self.world.counts["attempts again"] += 1
                self.heal(ticket)
                self.tell(Healed(ticket))
            case GiveUp(batch_id, tries, why):
                raise BatchError(why, batch_id=batch_id, tries=tries)

    def heal(self, ticket: Ticket) -> None:
        for name in self._route.nodes:
            self._call("abort", ticket, name)
            self.world.look_after(name)

    def publish(self, batch_id: int) -> None:
        entry = self.ledger.get(batch_id)
        self.world.durable.publish(entry.ticket if entry else self._protocol.ticket)

    def _append(self, ticket: Ticket) -> None:
        receipts = [self._receipts.get((ticket, node)) for node in self._route.nodes]
        runs = together(receipt.runs for receipt in receipts if receipt is not None)
        manifest = StateManifest(ticket.batch_id, self.world.durable.workload.groups, None, (), runs)
        self.ledger.append(Entry(ticket, manifest, self._route))
        self.tell(Appended(ticket))

    def _manifest(self) -> StateManifest:
        last = self.ledger.last
        return last.manifest if last else StateManifest(-1, self.world.durable.workload.groups, None, ())

    def _call(self, action: str, ticket: Ticket, node: int, *body: object) -> None:
        self.world.network.send(Call(self, self.node(node), action, ticket, body))

    def _take(self, item: Event | tuple[Call, object]) -> list[Instruction]:
        if not isinstance(item, tuple):
            return self._handle(item)
        call, answer = item
        event = self._event(call, answer)
        return [] if event is None else self._handle(event)

    def _event(self, call: Call, answer: object) -> Event | None:
        """What an answer means to the protocol; None when it is asked again, or nobody cares."""
        ticket, node = call.ticket, call.node.name
        if call.action == "abort":
            return None
        if isinstance(answer, FencedError):
            raise answer
        if isinstance(answer, NodeError) and self.world.rng.random() < _PATIENCE:
            self.world.counts["calls again"] += 1
            self._call(call.action, ticket, node, *call.body)
            return None
        if call.action == "commit":
            return Committed(ticket, node)
        if isinstance(answer, TidegateError):
            return Failed(ticket, f"{call}: {answer}")
        if isinstance(answer, Receipt):
            self.keep(ticket, node, answer)
            return Prepared(ticket, node, answer.staged)
        return Begun(ticket, node)

    def keep(self, ticket: Ticket, node: int, receipt: Receipt) -> None:
        """The first one counts: it is the one that the protocol judges. A call that was made again may be
        answered by a process that was started again, and has less, when all are prepared already."""
        self._receipts.setdefault((ticket, node), receipt)

    def _collect(self) -> Generator[None]:
        for name in self.collectable():
            yield
            self.world.tell("{} deletes run {}", self, name)
            self.world.durable.delete_run(name)
            self.world.counts["collected"] += 1

    def collectable(self) -> list[str]:
        """Runs that the last entries do not name, and no entry ever will.

        A run enters the manifest with an entry of its own generation, and never again once it has left. So a
        driver that was replaced, and knows no newer entries, deletes nothing that they need.
        """
        kept = {run.name for run in self._named(self.ledger.entries[-self.world.retention :])}
        left = {run.name for run in self._named(self.ledger.entries)}
        return sorted(
            name
            for name, run in self.world.durable.log.items()
            if name not in kept and (name in left or run.generation < self.ledger.generation)
        )

    def _named(self, entries: list[Entry]) -> list[RunRef]:
        return [run for entry in entries for run in entry.manifest.runs]
