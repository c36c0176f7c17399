"""Rescales under faults: right under every seed, and every broken variant is caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from tidegate.batch.ticket import StagedPart, Ticket
from tidegate.cli.sim import app
from tidegate.rescale.migration import (
    Committed,
    Event,
    GiveUp,
    Instruction,
    Migration,
    NotStarted,
    Replaced,
    Settle,
)
from tidegate.rescale.model import Strategy
from tidegate.rescale.route import Route
from tidegate.sim.errand import Work
from tidegate.sim.hold import Place, Snapshot
from tidegate.sim.mover import Mover
from tidegate.sim.network import Call
from tidegate.sim.node import Receipt
from tidegate.sim.rescale import CAST, simulate, simulate_all
from tidegate.sim.rescaler import Rescaler
from tidegate.sim.weather import SURGE
from tidegate.sim.workload import State
from tidegate.sim.world import Cast
from tidegate.state.log.manifest import StateManifest

SEEDS = 500
CHUNK = 25
PATIENCE = 400
"""Seeds within which a broken variant must be caught."""


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_every_promise_is_kept(start: int) -> None:
    failures = simulate_all(range(start, start + CHUNK)).failures
    assert not failures, "\n\n".join(map(str, failures))


def test_all_of_it_happens() -> None:
    """A simulation in which nothing moves, or nothing goes wrong, would prove nothing."""
    counts = simulate_all(range(60)).counts
    for what in (
        "restart",
        "eager",
        "lazy",
        "hybrid",
        "rebalances",
        "refused",
        "given up",
        "replaced",
        "settled",
        "asked",
        "chained",
        "unanswered",
        "replacements",
        "driver crashes",
        "node crashes",
        "node hangs",
        "duplicates",
        "reordered",
        "lost",
        "late",
        "fenced",
        "merges",
        "collected",
    ):
        assert counts[what] >= 5, (what, counts)


def test_a_seed_replays_in_any_process() -> None:
    program = "from tidegate.sim.rescale import simulate; print(*simulate(7, story=True).story, sep='\\n')"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2", "3")
    }
    assert len(told) == 1
    assert len(told.pop().splitlines()) > 100


# --- broken variants -----------------------------------------------------------------------------------


class SettlesEarly(Migration):
    """Takes the first batch on a route for the end of the move."""

    def handle(self, event: Event) -> list[Instruction]:
        return super().handle(Committed(0) if isinstance(event, Committed) else event)


class NeverSettles(Migration):
    """Waits for a group more than there is."""

    def handle(self, event: Event) -> list[Instruction]:
        return super().handle(Committed(event.left + 1) if isinstance(event, Committed) else event)


class KeepsEveryNode(Migration):
    """Does not end nodes that own nothing."""

    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        return [replace(each, nodes=99) if isinstance(each, Settle) else each for each in told]


class KeepsNoOrigin(Migration):
    """Ends all nodes that the route does not need when others do not start, whoever depends on them."""

    def handle(self, event: Event) -> list[Instruction]:
        told = super().handle(event)
        if not isinstance(event, NotStarted):
            return told
        self._nodes = self._needed(self.route)
        return [replace(each, nodes=self._nodes) if isinstance(each, GiveUp) else each for each in told]


class TakesAnyAsk(Migration):
    """Forgets a rescale when it is asked for another one."""

    def check(self, strategy: Strategy) -> None:
        pass


class ForgetsTheOneBefore(Migration):
    """Does not tell that a rescale was replaced."""

    def _switch(self) -> list[Instruction]:
        return [each for each in super()._switch() if not isinstance(each, Replaced)]


class StartsTooFew(Migration):
    """Counts nodes from 0."""

    def _needed(self, route: Route) -> int:
        return max(route.nodes)


class OldOverNew(Mover):
    """Lets a value that comes from an old owner hide the one that was put meanwhile."""

    def combined(self, came: State, written: State) -> State:
        return {**written, **came}


class FreezesNothing(Mover):
    """Forgets groups when they leave."""

    def freeze(self, leaving: Snapshot) -> None:
        pass


class FreezesWhatIsHere(Mover):
    """Keeps of groups that leave only what has come of them: a chain is broken."""

    def freeze(self, leaving: Snapshot) -> None:
        super().freeze(replace(leaving, arrivals=()))


class ThawsDepartures(Mover):
    """Gives groups as they are now when they have come back meanwhile."""

    def departed(self, batch_id: int, group: int) -> Snapshot:
        if group in self.groups:
            return self.now.restricted(frozenset({group}))
        return super().departed(batch_id, group)


class ReleasesAnything(Mover):
    """Takes a release that was held up for one of what has left since."""

    def release(self, ticket: Ticket) -> object:
        return super().release(replace(ticket, batch_id=sys.maxsize))


class ReleasesWhenAsked(Mover):
    """Forgets groups that were got whole once, though the answer may not arrive."""

    def span(self, group: int, batch_id: int, first: Place | None) -> Work[object]:
        answer = yield from super().span(group, batch_id, first)
        assert isinstance(answer, tuple)
        if answer[1] is None:
            self.departures.pop((batch_id, group), None)
        return answer


class HidesWhatIsLeft(Mover):
    """Says that all has arrived."""

    def prepare(self, ticket: Ticket) -> Receipt:
        self.receipt = replace(super().prepare(ticket), left=0)
        return self.receipt


class MissesItsCommit(Mover):
    """Knows nothing of a batch whose commit did not get through."""

    def _stand(self, groups: frozenset[int], manifest: StateManifest, origins: Mapping[int, Mover]) -> None:
        self.pending = None
        super()._stand(groups, manifest, origins)


class MergesArrivals(Mover):
    """Merges runs for which something else is read."""

    def mergeable(self, rng: object) -> tuple[object, ...]:  # type: ignore[override]
        return self.runs


class GetsHalf(Mover):
    """Takes a group for complete after its first span."""

    def span(self, group: int, batch_id: int, first: Place | None) -> Work[object]:
        answer = yield from super().span(group, batch_id, first)
        assert isinstance(answer, tuple)
        return answer[0], None


class SwitchesInABatch(Rescaler):
    """Uses a new route as soon as it knows it."""

    def started(self, problem: str | None) -> None:
        super().started(problem)
        if problem is None and self.migration is not None and self.migration._asked is not None:
            self._route = self.route = self.migration._asked.route


class ReleasesAtTheSwitch(Rescaler):
    """Lets old owners let go when the new ones know where to ask."""

    def through(self, batch_id: int) -> Generator[None]:
        yield from self.let_go(batch_id)
        yield from super().through(batch_id)


class TellsNoLoser(Rescaler):
    """Does not begin the batch on nodes that lose all they had."""

    def expected(self) -> dict[int, frozenset[StagedPart]]:
        return {name: parts for name, parts in super().expected().items() if name in self._route.nodes}


class ForgetsOrigins(Rescaler):
    """Names old owners at the first attempt alone."""

    def heal(self, ticket: Ticket) -> None:
        super().heal(ticket)
        self.switch = replace(self.switch, origins={})


class WaitsForGood(Rescaler):
    """Begins a batch that is held once, though an old owner may not have answered."""

    def _event(self, call: Call, answer: object) -> object:  # type: ignore[override]
        if call.action == "begin" and self.switch.hold and isinstance(answer, int) and answer > 0:
            self._inbox.append((call, len(self.node(call.node.name).now.open)))
            return None
        return super()._event(call, answer)


MIGRATIONS = (
    SettlesEarly,
    NeverSettles,
    KeepsEveryNode,
    KeepsNoOrigin,
    TakesAnyAsk,
    ForgetsTheOneBefore,
    StartsTooFew,
)
NODES = (
    OldOverNew,
    FreezesNothing,
    FreezesWhatIsHere,
    ThawsDepartures,
    ReleasesAnything,
    ReleasesWhenAsked,
    HidesWhatIsLeft,
    MissesItsCommit,
    MergesArrivals,
    GetsHalf,
)
DRIVERS = (
    SwitchesInABatch,
    ReleasesAtTheSwitch,
    TellsNoLoser,
    ForgetsOrigins,
    WaitsForGood,
)
BROKEN: dict[str, Cast] = {
    **{machine.__name__: replace(CAST, migration=machine) for machine in MIGRATIONS},
    **{node.__name__: replace(CAST, node=node) for node in NODES},
    **{driver.__name__: replace(CAST, driver=driver) for driver in DRIVERS},
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_variant_is_caught(broken: str) -> None:
    caught = (simulate(seed, cast=BROKEN[broken], weather=SURGE) for seed in range(PATIENCE))
    assert any(outcome.problem is not None for outcome in caught)


# --- the command ---------------------------------------------------------------------------------------


def test_the_command_sums_up() -> None:
    answer = CliRunner().invoke(app, ["rescale", "--seeds", "5", "--start", "3", "--jobs", "1", "--json"])
    assert answer.exit_code == 0
    summary = json.loads(answer.stdout)
    assert summary["runs"] == 5
    assert summary["batches"] >= 35
    assert summary["settled"] >= 1
    assert summary["failures"] == []


def test_the_command_tells_how_to_replay_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.sim.rescale.CAST", BROKEN["NeverSettles"])
    seed = next(seed for seed in range(PATIENCE) if simulate(seed, cast=BROKEN["NeverSettles"]).problem)
    answer = CliRunner().invoke(app, ["rescale", "--seeds", "1", "--start", str(seed), "--jobs", "1"])
    assert answer.exit_code == 1
    assert f"seed {seed}: rescale " in answer.stdout
    assert f"tidegate sim rescale --seed {seed} --story" in answer.stdout


def test_a_story_is_that_of_one_seed() -> None:
    assert CliRunner().invoke(app, ["rescale", "--story"]).exit_code == 2
    told = CliRunner().invoke(app, ["rescale", "--seed", "3", "--story"]).stdout
    assert "driver 1 carries out Switch" in told
