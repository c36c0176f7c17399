"""Runs of the batch protocol under faults, by the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.sim.outcome import Outcome, Tally, outcome_of, shared_out, tally_of
from tidegate.sim.weather import Weather
from tidegate.sim.world import Cast, World


def simulate(
    seed: int, *, cast: Cast | None = None, weather: Weather | None = None, story: bool = False
) -> Outcome:
    """One run. The same seed gives the same run, on any machine. It decides the weather, too, if nobody else
    does."""
    world = World(seed, cast=cast or Cast(), weather=weather, whole_story=story)
    return outcome_of(world, "protocol", seed, story=story)


def simulate_all(seeds: Sequence[int]) -> Tally:
    """One run for each seed."""
    return tally_of(simulate(seed) for seed in seeds)


def simulate_many(seeds: range, *, jobs: int) -> Iterator[Tally]:
    """The same in `jobs` processes; yields what was added since, in the order of the seeds."""
    return shared_out(simulate_all, seeds, jobs=jobs)
