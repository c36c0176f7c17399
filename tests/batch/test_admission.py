"""Admission control on machines that exist only as arithmetic."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.batch.admission import Admission


def overloaded(
    admission: Admission, cost: Callable[[int], float], batches: int
) -> tuple[Admission, list[float]]:
    """Feed batches that always take the whole limit; give the seconds of each."""
    times = []
    for _ in range(batches):
        taken = cost(admission.limit)
        times.append(taken)
        admission = admission.observe(admission.limit, taken)
    return admission, times


def start(target: float = 0.9, limit: int = 10_000) -> Admission:
    return Admission(target=target, least=100, most=50_000_000, limit=limit, longest=10.0)


@given(
    fixed=st.floats(0.0, 0.1),
    per_row=st.floats(3e-8, 1e-4),
    limit=st.integers(100, 5_000_000),
    seed=st.integers(0, 2**32),
)
def test_under_overload_the_batch_settles_at_the_target(
    fixed: float, per_row: float, limit: int, seed: int
) -> None:
    noise = random.Random(seed)
    _, times = overloaded(
        start(limit=limit), lambda rows: (fixed + rows * per_row) * noise.uniform(0.95, 1.05), 60
    )
    settled = sorted(times[30:])
    assert settled[len(settled) // 2] == pytest.approx(0.9, rel=0.25)


def test_a_machine_that_slows_down_gets_less() -> None:
    fast, _ = overloaded(start(), lambda rows: 0.1 + rows * 1e-6, 30)
    slow, times = overloaded(fast, lambda rows: 0.1 + rows * 4e-6, 30)
    assert slow.limit < fast.limit / 3
    assert times[-1] == pytest.approx(0.9, rel=0.25)


@given(seconds=st.floats(0.01, 0.8))
def test_a_batch_takes_at_most_twice_the_target_if_only_its_rows_cost(seconds: float) -> None:
    calm = start(limit=50_000)
    for _ in range(20):
        calm = calm.observe(1_000, seconds)
    assert calm.limit <= min(2 * 1_000 * 0.9 / seconds, 20 * 1_000)


@pytest.mark.parametrize("capacity", [40_000, 250_000, 1_000_000, 4_000_000, 12_400_000])
@pytest.mark.parametrize("fixed", [0.1, 0.2])
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(
    "slow", [(1.5, 0.4, 0.1), (2.5, 0.3), (1.5, 0.6, 0.4, 0.3, 0.2), (4.0, 1.0, 0.5, 0.3)]
)
def test_lag_at_half_of_the_capacity_is_gone_within_five_batches_after_the_first(
    capacity: int, fixed: float, noise: float, slow: tuple[float, ...]
) -> None:
    """Batches have a fixed part, and the first ones are slower by what a cold machine costs."""
    vary = random.Random(1)
    per_row = (0.9 - fixed) / (0.9 * capacity)
    admission, lags = start(), []
    now, taken = 0.5, 0
    for number in range(12):
        arrived = int(now * capacity / 2)
        rows = min(arrived - taken, admission.limit)
        seconds = fixed + rows * per_row + (slow[number] if number < len(slow) else 0.0)
        seconds *= vary.uniform(1 - noise, 1 + noise)
        taken += rows
        lags.append((arrived - taken) / (capacity / 2))
        admission = admission.observe(rows, seconds)
        now = max(now + seconds, math.floor(now) + 1.0)  # Batches begin at full seconds, if they keep up.
    assert max(lags) > 0.2
    # As `benchmarks.start` counts: what arrives while a batch is planned is lag, too.
    assert max(lags[5:]) < 0.2


@pytest.mark.parametrize("per_row", [2e-4, 5e-5, 1e-5, 1e-6])
@pytest.mark.parametrize("fixed", [0.05, 0.2])
@pytest.mark.parametrize("slow", [(), (2.5, 0.6, 0.2)])
def test_no_batch_of_a_start_takes_longer_than_the_longest_and_later_ones_keep_to_the_target(
    per_row: float, fixed: float, slow: tuple[float, ...]
) -> None:
    cold = iter(slow)
    admission, times = overloaded(start(), lambda rows: fixed + rows * per_row + next(cold, 0.0), 30)
    assert max(times) <= admission.longest
    assert max(times[7:]) <= 2.5  # What the first limit takes.
    assert max(times[13:]) <= 1.2 * admission.seconds


def test_a_first_limit_that_takes_far_too_long_is_not_tried_again_and_again() -> None:
    _, times = overloaded(start(limit=10_000), lambda rows: 0.05 + rows * 1e-3, 20)
    assert sum(seconds > 5 for seconds in times) == 2


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("fixed", [0.9, 1.2])
def test_a_fixed_part_that_fills_the_interval_takes_little_of_a_backlog(fixed: float, noise: float) -> None:
    vary = random.Random(1)
    _, times = overloaded(
        start(), lambda rows: (fixed + rows * 8e-6) * vary.uniform(1 - noise, 1 + noise), 40
    )
    assert fixed * 40 / sum(times) < 0.3
    assert sorted(times)[20] <= 10 * (1 + noise)


@pytest.mark.parametrize("fixed", [0.3, 2.0, 6.0])
def test_files_that_are_read_whole_do_not_hold_the_limit_down(fixed: float) -> None:
    """Batches of one file each are all of one size, whatever the limit says."""
    admission = start()
    for _ in range(12):
        rows = max(1, admission.limit // 2_000) * 2_000
        admission = admission.observe(rows, fixed + rows * 1e-5)
    assert admission.limit > 40_000


def test_the_longest_batch_of_a_backlog_is_a_setting() -> None:
    short = replace(start(), longest=2.0)
    admission, times = overloaded(short, lambda rows: 0.6 + rows * 8e-6, 40)
    assert admission.seconds == pytest.approx(2.0)
    assert times[-1] == pytest.approx(2.0, rel=0.25)


def test_a_small_fixed_part_leaves_batches_at_the_target() -> None:
    admission, _ = overloaded(start(), lambda rows: 0.08 + rows * 1e-6, 40)
    assert admission.seconds == 0.9


def test_where_the_fixed_cost_fills_the_interval_work_is_still_done() -> None:
    admission, _ = overloaded(start(target=0.1, limit=1000), lambda rows: 0.2 + rows * 1e-5, 40)
    assert admission.limit > 5_000


def test_a_fixed_cost_near_the_target_is_not_taken_for_the_cost_of_the_rows() -> None:
    """A limit that is far too low must not keep itself alive because every batch takes the target anyway."""
    noise = random.Random(7)
    admission = start(limit=4_000)
    for _ in range(40):  # A busy machine: hardly anything of the time is due to the rows.
        admission = admission.observe(
            admission.limit, 0.85 * noise.uniform(0.8, 1.2) + admission.limit * 2e-7
        )
    assert admission.limit > 400_000


def test_the_bounds_hold() -> None:
    tiny, _ = overloaded(start(), lambda rows: 10.0 + rows, 20)
    assert tiny.limit == 100
    huge, _ = overloaded(start(), lambda rows: 1e-6, 40)
    assert huge.limit == 50_000_000


def test_an_empty_batch_teaches_nothing() -> None:
    assert start().observe(0, 0.3) == start()


def test_a_machine_that_warms_up_is_not_held_to_its_first_batches() -> None:
    """Slow however few rows come: the limit stays, and grows once the machine is warm."""
    times = iter([4.3, 2.9, 2.2, 1.8, 1.5, 1.3, 1.1, 1.0, 0.8, 0.6])
    admission = start(limit=10_000)
    for _ in range(10):
        admission = admission.observe(admission.limit, next(times))
        assert admission.limit >= 10_000
    admission, settled = overloaded(admission, lambda rows: 0.05 + rows * 1e-6, 20)
    assert admission.limit > 300_000
    assert settled[-1] == pytest.approx(0.9, rel=0.25)


@pytest.mark.parametrize("per_row", [1e-5, 1e-4, 1e-3])
def test_rows_that_cost_all_the_time_make_no_first_batch_much_longer_than_the_interval(
    per_row: float,
) -> None:
    _, times = overloaded(start(limit=1_000), lambda rows: rows * per_row, 12)
    assert max(times) <= 5.0


def test_rows_that_cost_a_lot_are_fewer_once_a_second_batch_says_so() -> None:
    """The first batch compiles code and starts workers: alone it tells nothing of the next."""
    first = start(limit=10_000).observe(10_000, 100.0)
    assert first.limit == pytest.approx(10_000, rel=0.2)
    assert start(limit=10_000).observe(8, 100.0).limit == 10_000
    assert first.observe(first.limit, 100.0 * first.limit / 10_000).limit < 1_000


def test_a_run_that_goes_on_has_a_small_batch_first_and_then_the_limit_of_the_run_before() -> None:
    first = start(limit=10_000).resumed(1_000_000)
    assert first.limit == 100_000
    assert first.observe(100_000, 8.0).limit == 1_000_000
    assert start(limit=10_000).resumed(50_000).limit == 10_000
    assert start(limit=10_000).resumed(5_000).limit == 5_000
    assert start(limit=10_000).resumed(10).limit == 100


def test_only_where_enough_rows_wait_is_a_longer_batch_needed() -> None:
    busy, _ = overloaded(start(), lambda rows: 0.8 + rows * 1e-6, 30)
    assert busy.catching_up(busy.limit) == busy.seconds > 0.9
    assert busy.catching_up(busy.limit / 10) is None
    quick, _ = overloaded(start(), lambda rows: rows * 1e-6, 30)
    assert quick.catching_up(quick.limit) is None
