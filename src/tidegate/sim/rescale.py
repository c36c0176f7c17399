"""Runs with rescales under faults, by the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.sim.mover import Mover
from tidegate.sim.moving import Moving
from tidegate.sim.outcome import Outcome, Tally, outcome_of, shared_out, tally_of
from tidegate.sim.rescaler import Rescaler
from tidegate.sim.weather import Weather
from tidegate.sim.world import Cast

CAST = Cast(node=Mover, driver=Rescaler)


def simulate(
    seed: int, *, cast: Cast | None = None, weather: Weather | None = None, story: bool = False
) -> Outcome:
    """One run, see `tidegate.sim.protocol.simulate`. The seed decides, too, where state comes from: the log,
    its old owners, or those alone."""
    world = Moving(seed, cast=cast or CAST, weather=weather, whole_story=story)
    return outcome_of(world, "rescale", seed, story=story)


def simulate_all(seeds: Sequence[int]) -> Tally:
    """One run for each seed."""
    return tally_of(simulate(seed) for seed in seeds)


def simulate_many(seeds: range, *, jobs: int) -> Iterator[Tally]:
    """The same in `jobs` processes; yields what was added since, in the order of the seeds."""
    return shared_out(simulate_all, seeds, jobs=jobs)
