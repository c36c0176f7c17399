"""The batch protocol under faults: right under every seed, and every broken variant is caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from typer.testing import CliRunner

from tidegate.batch.protocol import (
    Append,
    BatchProtocol,
    Commit,
    Event,
    Instruction,
    Prepared,
    Publish,
)
from tidegate.batch.ticket import Ticket
from tidegate.cli.sim import app
from tidegate.sim.driver import Driver
from tidegate.sim.durable import Durable, Entry
from tidegate.sim.network import Call
from tidegate.sim.node import Node
from tidegate.sim.protocol import simulate, simulate_all, simulate_many
from tidegate.sim.weather import STORM
from tidegate.sim.world import Cast
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.node.fence import Fence

SEEDS = 500
CHUNK = 25
PATIENCE = 400
"""Seeds within which a broken variant must be caught."""


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(start: int) -> None:
    failures = simulate_all(range(start, start + CHUNK)).failures
    assert not failures, "\n\n".join(map(str, failures))


def test_the_faults_happen() -> None:
    """A simulation in which nothing goes wrong would prove nothing."""
    counts = simulate_all(range(60)).counts
    for fault in (
        "driver crashes",
        "node crashes",
        "node hangs",
        "duplicates",
        "reordered",
        "lost",
        "late",
        "task retries",
        "speculations",
        "attempts again",
        "calls again",
        "fenced",
        "merges",
        "rescales",
        "collected",
    ):
        assert counts[fault] >= 10, (fault, counts)


def test_a_seed_replays_in_any_process() -> None:
    program = "from tidegate.sim.protocol import simulate; print(*simulate(7, story=True).story, sep='\\n')"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(told) == 1
    assert len(told.pop().splitlines()) > 100


def test_several_processes_find_what_one_does() -> None:
    alone = simulate_all(range(60))
    runs, counts = 0, alone.counts.copy()
    for tally in simulate_many(range(60), jobs=2):
        runs += tally.runs
        counts.subtract(tally.counts)
    assert runs == 60
    assert not any(counts.values())


# --- broken variants -----------------------------------------------------------------------------------


class BlindToGenerations(Node):
    """Takes requests of drivers that were replaced."""

    def handle(self, call: Call) -> object:
        return _taken_for(self, call, replace(call.ticket, generation=self.fence.ticket.generation))


def _taken_for(node: Node, call: Call, ticket: Ticket) -> object:
    """Carry out a request as if it had another ticket, but remember who staged."""
    if call.action == "begin":
        ticket = max(ticket, call.ticket)
    answer = Node.handle(node, replace(call, ticket=ticket))
    if call.action == "stage":
        part, rows = call.body
        node.staged[part] = (call.ticket, rows)
    return answer


class BeginsForAnyGeneration(Node):
    """Lets a driver that was replaced begin."""

    class Lenient(Fence):
        def begin(self, ticket: Ticket) -> Fence:
            return type(self)(ticket, "open")

    standing_type = Lenient


class BlindToAttempts(Node):
    """Takes what a straggler of an earlier attempt stages."""

    def handle(self, call: Call) -> object:
        own = self.fence.ticket
        if call.action not in ("get", "stage") or call.ticket.batch_id != own.batch_id:
            return super().handle(call)
        return _taken_for(self, call, replace(call.ticket, attempt=own.attempt))


class KeepsStaged(Node):
    """Begins an attempt with what the one before had staged."""

    def drop_staged(self) -> None:
        pass


class TrustsItself(Node):
    """Does not read the manifest when it takes itself to be at the batch before."""

    def conform(self, manifest: StateManifest) -> None:
        if self.at != manifest.batch_id or not self.runs:
            super().conform(manifest)

    at = -2

    def commit(self, ticket: Ticket) -> None:
        super().commit(ticket)
        self.at = ticket.batch_id


class RepeatsNames(Node):
    """Names its runs by their attempt alone, and writes them again when it has been started again."""

    def run_name(self, ticket: Ticket) -> str:
        return f"{ticket.batch_id}-{ticket.generation}-{ticket.attempt}-{self.name}.{self.place}"


class TearsSequences(Node):
    """Merges some of the runs of a batch, and leaves others out."""

    def mergeable(self, rng: Random) -> tuple[RunRef, ...]:
        low = rng.randrange(len(self.runs) - 1)
        return self.runs[low : low + rng.randint(2, 3)]


class MergesAnything(Node):
    """Merges runs that are not neighbours."""

    def mergeable(self, rng: Random) -> tuple[RunRef, ...]:
        return tuple(run for run in self.runs if rng.random() < 0.6)


class KeepsMergesForever(Node):
    """Brings runs of an older generation into the manifest, which a newer one collects."""

    def conform(self, manifest: StateManifest) -> None:
        self.merges = [replace(merge, generation=self.fence.ticket.generation) for merge in self.merges]
        super().conform(manifest)


class AppendsEarly(BatchProtocol):
    """Commits as soon as the first node is prepared."""

    def _prepared(self, event: Prepared) -> list[Instruction]:
        self._waiting &= {event.node}
        return super()._prepared(event)


class BlindToParts(BatchProtocol):
    """Commits whatever was staged."""

    def _prepared(self, event: Prepared) -> list[Instruction]:
        return super()._prepared(replace(event, staged=self._expected[event.node]))


class CommitsEarly(BatchProtocol):
    """Tells the nodes to commit before the ledger has the batch."""

    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        if any(isinstance(instruction, Append) for instruction in told):
            return [*(Commit(self.ticket, node) for node in sorted(self._expected)), *told]
        return told


class PublishesEarly(BatchProtocol):
    """Makes the output visible before the ledger has the batch."""

    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        if any(isinstance(instruction, Append) for instruction in told):
            return [Publish(self.ticket.batch_id), *told]
        return told


class ForgetsToPublish(BatchProtocol):
    """Takes a batch that is in the ledger for one that is published."""

    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        if getattr(event, "committed", False):
            self.phase = "done"
            return []
        return told


class CollectsTheLast(Driver):
    """Keeps the runs of no entry at all."""

    def collectable(self) -> list[str]:
        return sorted(run.name for run in self._named(self.ledger.entries))


class CollectsUnknown(Driver):
    """Deletes all runs that no entry names that it knows of."""

    def collectable(self) -> list[str]:
        kept = {run.name for run in self._named(self.ledger.entries[-self.world.retention :])}
        return sorted(set(self.world.durable.log) - kept)


class DropsAllOutput(Driver):
    """Drops at its start what newer drivers have written since."""

    def recover(self) -> None:
        last = self.ledger.last
        self.world.durable.drop_outputs(last.batch_id if last else -1, sys.maxsize)


class Overwritten(Durable):
    """A ledger without atomic create: the last writer wins."""

    def create(self, number: int, record: Entry | int) -> bool:
        return super().create(len(self.records), record)


NODES = (
    BlindToGenerations,
    BeginsForAnyGeneration,
    BlindToAttempts,
    KeepsStaged,
    TrustsItself,
    RepeatsNames,
    TearsSequences,
    MergesAnything,
    KeepsMergesForever,
)
PROTOCOLS = (AppendsEarly, BlindToParts, CommitsEarly, PublishesEarly, ForgetsToPublish)
DRIVERS = (CollectsTheLast, CollectsUnknown, DropsAllOutput)
BROKEN: dict[str, Cast] = {
    **{node.__name__: Cast(node=node) for node in NODES},
    **{protocol.__name__: Cast(protocol=protocol) for protocol in PROTOCOLS},
    **{driver.__name__: Cast(driver=driver) for driver in DRIVERS},
    "Overwritten": Cast(durable=Overwritten),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_variant_is_caught(broken: str) -> None:
    caught = (simulate(seed, cast=BROKEN[broken], weather=STORM) for seed in range(PATIENCE))
    assert any(outcome.problem is not None for outcome in caught)


# --- the command ---------------------------------------------------------------------------------------


def test_the_command_sums_up() -> None:
    answer = CliRunner().invoke(app, ["protocol", "--seeds", "5", "--start", "3", "--jobs", "1", "--json"])
    assert answer.exit_code == 0
    summary = json.loads(answer.stdout)
    assert summary["runs"] == 5
    assert summary["batches"] >= 15
    assert summary["failures"] == []


def test_the_command_tells_how_to_replay_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.sim.protocol.Cast", lambda: Cast(driver=CollectsTheLast))
    answer = CliRunner().invoke(app, ["protocol", "--seeds", "1", "--start", "9", "--jobs", "1"])
    assert answer.exit_code == 1
    assert "seed 9: run " in answer.stdout
    assert "deletes run" in answer.stdout
    assert "tidegate sim protocol --seed 9 --story" in answer.stdout


def test_a_story_is_that_of_one_seed() -> None:
    assert CliRunner().invoke(app, ["protocol", "--story"]).exit_code == 2
    told = CliRunner().invoke(app, ["protocol", "--seed", "3", "--story"]).stdout
    assert "driver 1 starts" in told
