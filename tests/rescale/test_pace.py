"""The pace of a migration on machines that exist only as arithmetic."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.rescale.pace import Pace

LIMIT = 2.0
MB = 1_000_000


@dataclass(frozen=True)
class Run:
    """Batch by batch, the bytes that moved and the seconds that it took."""

    moved: list[int]
    seconds: list[float]

    def within(self) -> float:
        return sum(seconds <= LIMIT for seconds in self.seconds) / len(self.seconds)


def run(pace: Pace, machine: Callable[[int], float], batches: int) -> Run:
    """A migration with more to move than these batches can."""
    moved, seconds = [], []
    for _ in range(batches):
        moved.append(pace.budget)
        seconds.append(machine(pace.budget))
        pace.next(seconds[-1], LIMIT, used=True)
    return Run(moved, seconds)


def start(first: int = MB, floor: int = 1_000, ceiling: int = 10**12) -> Pace:
    return Pace(first, floor, ceiling)


machines = {
    "base": st.floats(0.0, 0.7 * LIMIT),
    "speed": st.floats(1e5, 1e10),
    "first": st.integers(1_000, 10**9),
}


@given(**machines)
def test_batches_keep_to_the_limit_and_the_budget_is_used_well(base: float, speed: float, first: int) -> None:
    pace = start(first)
    run(pace, lambda moved: base + moved / speed, 100)
    settled = run(pace, lambda moved: base + moved / speed, 100)
    ideal = (0.8 * LIMIT - base) * speed
    assert settled.within() == 1.0
    assert min(settled.moved) >= ideal / 2


@given(**{**machines, "base": st.floats(0.0, 0.5 * LIMIT)}, seed=st.integers(0, 2**32))
def test_they_do_so_on_a_machine_that_is_never_quite_as_before(
    base: float, speed: float, first: int, seed: int
) -> None:
    noise = random.Random(seed)

    def machine(moved: int) -> float:
        return (base + moved / speed) * noise.uniform(0.85, 1.15)

    pace = start(first)
    run(pace, machine, 100)
    settled = run(pace, machine, 200)
    assert settled.within() >= 0.9
    assert mean(settled.moved) >= (LIMIT - base) * speed / 2


@given(**machines)
def test_a_rise_alone_takes_no_batch_beyond_the_limit(base: float, speed: float, first: int) -> None:
    pace = start(first)
    found = run(pace, lambda moved: base + moved / speed, 100)
    calm = [seconds <= 0.8 * LIMIT for seconds in found.seconds]
    after_calm = [seconds for seconds, before in zip(found.seconds[1:], calm, strict=False) if before]
    assert all(seconds <= LIMIT for seconds in after_calm)


def test_a_machine_that_slows_down_gets_less_and_one_that_recovers_more() -> None:
    pace = start()
    fast = run(pace, lambda moved: 0.2 + moved / 1e8, 40)
    slow = run(pace, lambda moved: 0.2 + moved / 1e6, 40)
    again = run(pace, lambda moved: 0.2 + moved / 1e8, 40)
    assert slow.moved[-1] < fast.moved[-1] / 50
    assert slow.seconds[-1] <= LIMIT
    assert again.moved[-1] > fast.moved[-1] / 2


def test_a_batch_with_little_room_still_gets_all_of_it_soon() -> None:
    base, speed = 0.78 * LIMIT, 1e8
    found = run(start(1_000), lambda moved: base + moved / speed, 60)
    assert min(found.moved[-10:]) >= (0.8 * LIMIT - base) * speed / 2


def test_a_surge_that_fills_the_batch_leaves_the_floor_until_it_is_over() -> None:
    pace = start()
    calm = run(pace, lambda moved: 0.2 + moved / 1e8, 40)
    surge = run(pace, lambda moved: 3.0 + moved / 1e8, 40)
    after = run(pace, lambda moved: 0.2 + moved / 1e8, 40)
    assert surge.moved[-1] == 1_000
    assert after.moved[-1] > calm.moved[-1] / 2


def test_a_migration_ends_even_where_there_is_never_room_for_it() -> None:
    pace, left, batches = start(floor=50_000), 5 * MB, 0
    while left > 0:
        left -= pace.next(10 * LIMIT, LIMIT, used=True)
        batches += 1
        assert batches <= 100


@given(
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 10**7),
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5), st.booleans()), max_size=50),
)
def test_the_bounds_hold_whatever_happens(
    floor: int, wider: int, first: int, batches: list[tuple[float, float, bool]]
) -> None:
    pace = Pace(first, floor, floor + wider)
    assert floor <= pace.budget <= floor + wider
    for seconds, limit, used in batches:
        before = pace.budget
        assert floor <= pace.next(seconds, limit, used) <= floor + wider
        if not used:
            assert pace.budget <= before
        if seconds > limit:
            assert pace.budget == floor or pace.budget < before
        if used and seconds <= 0.8 * limit:
            assert pace.budget == floor + wider or pace.budget > before


def test_a_budget_that_was_not_used_up_does_not_rise() -> None:
    pace = start()
    assert [pace.next(0.1, LIMIT, used=False) for _ in range(5)] == [MB] * 5
    assert pace.next(0.1, LIMIT, used=True) == 2 * MB


def test_the_smallest_budget_can_rise() -> None:
    pace = Pace(1, 1, 100)
    found = run(pace, lambda moved: 1.55, 60)
    assert found.moved[-1] > 50


@pytest.mark.parametrize(("floor", "ceiling"), [(0, 10), (11, 10), (-1, 10)])
def test_bounds_that_make_no_sense_are_refused(floor: int, ceiling: int) -> None:
    with pytest.raises(ValueError, match="1 <= floor <= ceiling"):
        Pace(5, floor, ceiling)
