"""A simulated state node: the real `Fence`, and a shard small enough to see whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from tidegate.batch.ticket import StagedPart, Ticket
from tidegate.errors import FencedError
from tidegate.sim.durable import Durable, Run
from tidegate.sim.network import Call
from tidegate.sim.workload import State, group_of
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.node.fence import Fence


@dataclass(frozen=True, slots=True)
class Receipt:
    """A node's answer to `prepare`."""

    staged: frozenset[StagedPart]
    runs: tuple[RunRef, ...]
    """What its key groups consist of when the batch commits."""
    left: int = 0
    """Key groups whose state has not wholly arrived."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Runs that one run stands in for, as soon as a batch commits with it."""

    inputs: tuple[RunRef, ...]
    output: RunRef
    generation: int


class Node:
    """What listens at one address. A process that is started there again knows nothing."""

    standing_type: ClassVar[type[Fence]] = Fence

    def __init__(self, name: int, durable: Durable, place: int) -> None:
        self.name = name
        self.durable = durable
        self.place = place
        self.process = 0
        self.alive = True
        self.hung = False
        self.restart()

    def __str__(self) -> str:
        return f"node {self.name}.{self.place}"

    def restart(self) -> None:
        """Lose all memory."""
        self.process += 1
        self.alive, self.hung = True, False
        self.fence = self.standing_type()
        self.groups: frozenset[int] = frozenset()
        self.runs: tuple[RunRef, ...] = ()
        self.staged: dict[StagedPart, tuple[Ticket, State]] = {}
        self.receipt: Receipt | None = None
        self.merges: list[Merge] = []
        self._written = 0

    def handle(self, call: Call) -> object:
        """Carry out a request; raises what the caller gets for an answer."""
        actions: dict[str, Callable[..., object]] = {
            "begin": self.begin,
            "get": self.get,
            "stage": self.stage,
            "prepare": self.prepare,
            "commit": self.commit,
            "abort": self.abort,
        }
        return actions[call.action](call.ticket, *call.body)

    def begin(self, ticket: Ticket, groups: frozenset[int], manifest: StateManifest) -> object:
        fence = self.fence.begin(ticket)
        if fence is self.fence:
            return None
        self.fence = fence
        self.receipt = None
        self.drop_staged()
        self.groups = groups
        self.conform(manifest)
        return None

    def drop_staged(self) -> None:
        self.staged.clear()

    def conform(self, manifest: StateManifest) -> None:
        """The state is what the ledger says, whatever this node took it to be.

        Merges of its own stay where the manifest has just their inputs. Not those of an older generation:
        a driver may collect runs of generations before its own that no entry names.
        """
        self.runs = manifest.restricted(self.groups).runs
        waiting, self.merges = self.merges, []
        for merge in waiting:
            if merge.generation == self.fence.ticket.generation and set(merge.inputs) <= set(self.runs):
                self._replace(merge)

    def get(self, ticket: Ticket, table: str, groups: frozenset[int], keys: frozenset[int] | None) -> object:
        """What a table holds of some groups: of all keys, or of these."""
        self.fence.read(ticket)
        count = self.durable.workload.groups
        return {
            key: value
            for (name, key), value in self.durable.read(self.runs).items()
            if name == table and group_of(name, key, count) in groups and (keys is None or key in keys)
        }

    def stage(self, ticket: Ticket, part: StagedPart, rows: State) -> None:
        self.fence.stage(ticket)
        self.staged[part] = (ticket, rows)

    def prepare(self, ticket: Ticket) -> Receipt:
        fence = self.fence.prepare(ticket)
        if self.receipt is None:
            self.receipt = self._write(ticket)
        self.fence = fence
        return self.receipt

    def commit(self, ticket: Ticket) -> None:
        fence = self.fence.commit(ticket)
        if fence != self.fence and self.receipt is not None:
            self.runs = self.receipt.runs
            self.merges.clear()
        self.fence = fence

    def abort(self, ticket: Ticket) -> None:
        if ticket.generation < self.fence.ticket.generation:
            raise FencedError(f"{ticket} is refused")
        if ticket == self.fence.ticket and self.fence.phase != "committed":
            self.fence = replace(self.fence, phase="idle")
            self.staged.clear()
            self.receipt = None

    def merge(self, rng: Random) -> bool:
        """Write one run for several neighbours; False when there is nothing to merge, or a batch is prepared.

        Runs of one sequence number stay together: beside a merged run with older rows, and with the number
        of its youngest input, one that was left out would have no order.
        """
        if self.fence.phase == "prepared" or len(self.runs) < 2:
            return False
        inputs = self.mergeable(rng)
        if len(inputs) < 2:
            return False
        ticket = self.fence.ticket
        output = RunRef(
            f"merged-{ticket.generation}-{self._place()}",
            self.sequence(inputs),
            frozenset().union(*(run.groups for run in inputs)),
            0,
            0,
        )
        self.keep(output.name, Run(self.content(inputs), ticket.generation, {}))
        self._replace(Merge(inputs, output, ticket.generation))
        return True

    def mergeable(self, rng: Random) -> tuple[RunRef, ...]:
        return neighbours(self.runs, rng)

    def sequence(self, inputs: tuple[RunRef, ...]) -> int:
        """Of a run in place of these."""
        return inputs[-1].sequence

    def content(self, runs: tuple[RunRef, ...]) -> State:
        """What runs amount to."""
        return self.durable.read(runs)

    def keep(self, name: str, run: Run) -> None:
        """Write a run."""
        self.durable.create_run(name, run)

    def _replace(self, merge: Merge) -> None:
        self.merges.append(merge)
        kept = [run for run in self.runs if run not in merge.inputs]
        self.runs = tuple(sorted([*kept, merge.output], key=lambda run: (run.sequence, run.name)))

    def run_name(self, ticket: Ticket) -> str:
        """Of a run that nobody else ever writes: no other process, nor this one for the same attempt."""
        return f"{ticket.batch_id}-{ticket.generation}-{ticket.attempt}-{self._place()}"

    def _place(self) -> str:
        self._written += 1
        return f"{self.name}.{self.place}.{self.process}.{self._written}"

    def _write(self, ticket: Ticket) -> Receipt:
        rows: State = {}
        for _, (_, part) in sorted(self.staged.items()):
            rows.update(part)
        origins = {part: origin for part, (origin, _) in self.staged.items()}
        runs = self.runs
        if rows:
            run = RunRef(self.run_name(ticket), ticket.batch_id, self.groups, len(rows), 0)
            self.keep(run.name, Run(rows, ticket.generation, origins))
            runs = (*runs, run)
        self.staged.clear()
        return Receipt(frozenset(origins), runs)


def neighbours(runs: tuple[RunRef, ...], rng: Random) -> tuple[RunRef, ...]:
    """Some runs with nothing between them."""
    numbers = sorted({run.sequence for run in runs})
    low = rng.randrange(len(numbers))
    chosen = numbers[low : low + rng.randint(1, 3)]
    return tuple(run for run in runs if run.sequence in chosen)
