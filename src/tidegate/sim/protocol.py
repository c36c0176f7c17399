"""Runs of the batch protocol under faults, by the seed: what came of one, and of many."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tidegate.sim.durable import PromiseError
from tidegate.sim.weather import Weather
from tidegate.sim.world import Cast, World

_CHUNK = 50
"""Seeds that a process works on before it reports."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed. `problem` is None when every promise was kept."""

    seed: int
    steps: int
    counts: Counter[str]
    problem: str | None
    story: tuple[str, ...]
    """The latest moves, or all of them; empty when all went well and nobody asked."""

    def __str__(self) -> str:
        told = "\n".join(self.story)
        return (
            f"seed {self.seed}: {self.problem or 'all promises kept'} (step {self.steps})\n{told}\n"
            f"Replay: tidegate sim protocol --seed {self.seed} --story"
        )


@dataclass(slots=True)
class Tally:
    """What many seeds amount to."""

    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.runs += other.runs
        self.counts.update(other.counts)
        self.failures += other.failures


def simulate(
    seed: int, *, cast: Cast | None = None, weather: Weather | None = None, story: bool = False
) -> Outcome:
    """One run. The same seed gives the same run, on any machine. It decides the weather, too, if nobody else
    does."""
    world = World(seed, cast=cast or Cast(), weather=weather, whole_story=story)
    problem = None
    try:
        world.run()
    except PromiseError as violation:
        problem = str(violation)
    except Exception as error:  # The machinery under test may fail in any way; that is a finding, too.
        problem = f"{type(error).__name__}: {error}"
    counts = Counter(world.counts)
    counts["batches"] = len(world.durable.done)
    counts["steps"] = world.steps
    told = tuple(world.story) if story or problem is not None else ()
    return Outcome(seed, world.steps, counts, problem, told)


def simulate_all(seeds: Sequence[int]) -> Tally:
    """One run for each seed."""
    tally = Tally()
    for seed in seeds:
        outcome = simulate(seed)
        tally.runs += 1
        tally.counts.update(outcome.counts)
        if outcome.problem is not None:
            tally.failures.append(outcome)
    return tally


def simulate_many(seeds: range, *, jobs: int) -> Iterator[Tally]:
    """The same in `jobs` processes; yields what was added since, in the order of the seeds."""
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    if jobs == 1:
        yield from map(simulate_all, chunks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            yield from pool.map(simulate_all, chunks)
        except GeneratorExit:
            pool.shutdown(cancel_futures=True)
            raise
