"""What came of one seed, and of many."""

from __future__ import annotations

import logging
import multiprocessing
import os
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tidegate.sim.process import PromiseError
from tidegate.sim.world import World

_CHUNK = 20
"""Seeds that a process works on before it reports."""


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """What came of one seed. `problem` is None when every promise was kept."""

    command: str
    """What `tidegate sim` calls this kind of run."""
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
            f"Replay: tidegate sim {self.command} --seed {self.seed} --story"
        )


@dataclass(slots=True)
class SeedTally:
    """What many seeds amount to."""

    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[SeedOutcome] = field(default_factory=list)

    def add(self, other: SeedTally) -> None:
        self.runs += other.runs
        self.counts.update(other.counts)
        self.failures += other.failures

    def count(self, outcome: SeedOutcome) -> None:
        self.runs += 1
        self.counts.update(outcome.counts)
        if outcome.problem is not None:
            self.failures.append(outcome)


def simulate(seed: int, *, rescales: bool, story: bool = False) -> SeedOutcome:
    """One run. The same seed gives the same run, on any machine."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tidegate-sim-", dir=shared) as scratch:
        world = World(seed, Path(scratch), rescales=rescales, whole_story=story)
        problem = _problem(world)
    counts = Counter({**world.counts, "steps": world.steps})
    told = tuple(world.story) if story or problem is not None else ()
    return SeedOutcome("rescale" if rescales else "protocol", seed, world.steps, counts, problem, told)


def _problem(world: World) -> str | None:
    before = logging.root.manager.disable
    logging.disable()  # What goes wrong here is no news.
    try:
        world.run()
    except PromiseError as violation:
        return str(violation)
    except Exception as error:  # The machinery under test may fail in any way; that is a finding, too.
        world.tell(traceback.format_exc())
        return f"{type(error).__name__}: {error}"
    finally:
        logging.disable(before)
    return None


def simulate_many(seeds: range, *, rescales: bool, jobs: int) -> Iterator[SeedTally]:
    """One run for each seed, in `jobs` processes; yields what was added since, in the order of the seeds."""
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    work = partial(_simulate_all, rescales=rescales)
    if jobs == 1:
        yield from map(work, chunks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            yield from pool.map(work, chunks)
        except GeneratorExit:
            pool.shutdown(cancel_futures=True)
            raise


def _simulate_all(seeds: Sequence[int], *, rescales: bool) -> SeedTally:
    return tally_of(simulate(seed, rescales=rescales) for seed in seeds)


def tally_of(outcomes: Iterable[SeedOutcome]) -> SeedTally:
    tally = SeedTally()
    for outcome in outcomes:
        tally.count(outcome)
    return tally
