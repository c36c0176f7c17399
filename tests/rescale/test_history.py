"""What is kept of a rescale."""

from __future__ import annotations

import pytest

from tidegate.batch.outcome import Outcome
from tidegate.rescale.history import STRETCH, History
from tidegate.rescale.model import Ask, Latency, Moved, Rescale, RescalePhase
from tidegate.sources.source import Seen
from tidegate.state.fleet.nodes import Arrived, StateResult
from tidegate.state.log.manifest import StateManifest


def batch(number: int, at: float, latency: float = 1.0, arrived: Arrived | None = None) -> Outcome:
    """A batch whose median row waited for `latency` seconds, and its slowest for twice as long."""
    seen = Seen(1, median=round((at - latency) * 1e6), oldest_percent=round((at - 2 * latency) * 1e6))
    kept = StateResult(StateManifest(number, 8, None, ()), 0, 0, 0, 0, arrived) if arrived else None
    return Outcome(number, at, {}, {"source-1": seen}, {}, None, {}, 1, kept)


def asked(history: History, now: float) -> Rescale:
    return history.asked(Ask(nodes=4), "hybrid", now=now, nodes=(2, 4), parallelism=(2, 4), groups=8)


def steady() -> History:
    history = History()
    for number in range(5):
        history.batch(batch(number, 100.0 + number))
    return history


def test_before_anything_ran_there_is_nothing_to_compare_with() -> None:
    record = asked(History(), 100.0)
    assert (record.number, record.phase, record.steady_gap, record.before) == (1, "starting", None, Latency())


def test_the_steady_distance_of_outputs_is_that_before() -> None:
    assert asked(steady(), 104.5).steady_gap == 1.0


def test_a_gap_counts_from_the_last_output_before_the_ask() -> None:
    history = steady()
    asked(history, 104.5)
    history.batch(batch(5, 107.0))
    history.batch(batch(6, 108.0))
    assert history.get(1).longest_gap == 3.0


def test_time_to_the_first_batch_on_the_new_route() -> None:
    history = steady()
    asked(history, 104.5)
    history.batch(batch(5, 105.0))
    history.switched(1, 6, hold=False)
    assert history.get(1).seconds_to_first_batch is None
    history.batch(batch(6, 106.5))
    history.batch(batch(7, 107.5))
    assert history.get(1).seconds_to_first_batch == 2.0


def test_a_batch_that_is_held_is_over_when_it_is_committed() -> None:
    history = steady()
    asked(history, 104.5)
    assert history.switched(1, 5, hold=True).phase == "holding"
    history.batch(batch(5, 109.0))
    assert history.get(1).phase == "moving"


def test_what_moved_adds_up_until_it_settles() -> None:
    history = steady()
    asked(history, 104.5)
    history.switched(1, 5, hold=False)
    for number, left in ((5, 6), (6, 2), (7, 0)):
        arrived = Arrived(Moved(3, 30), Moved(10, 100), groups_left=left)
        history.batch(batch(number, 100.0 + number, arrived=arrived))
        assert history.get(1).groups_left == left
    record = history.settled(1, now=107.0)
    assert (record.on_demand, record.background) == (Moved(9, 90), Moved(30, 300))
    assert (record.phase, record.seconds_to_settled) == ("settled", 2.5)


def test_latency_before_during_and_after() -> None:
    history = steady()
    asked(history, 104.5)
    history.switched(1, 5, hold=False)
    history.batch(batch(5, 105.0, latency=3.0))
    history.settled(1, now=105.0)
    for number in range(6, 10 + STRETCH):
        history.batch(batch(number, 100.0 + number, latency=0.5 if number < 6 + STRETCH else 99.0))
    record = history.get(1)
    assert (record.before, record.during, record.after) == (
        Latency(1.0, 2.0),
        Latency(3.0, 6.0),
        Latency(0.5, 1.0),
    )


@pytest.mark.parametrize("phase", ["failed", "replaced"])
def test_one_that_did_not_come_to_its_end_is_over(phase: RescalePhase) -> None:
    history = steady()
    asked(history, 104.5)
    history.ended(1, phase, "why")
    history.batch(batch(5, 200.0))
    record = history.get(1)
    assert record.over
    assert record.longest_gap is None


def test_a_rescale_that_never_settles_keeps_its_first_batches_alone() -> None:
    history = steady()
    asked(history, 104.5)
    history.switched(1, 5, hold=False)
    for number in range(5, 3005):
        history.batch(batch(number, 100.0 + number, latency=3.0 if number < 1005 else 99.0))
    history.batch(batch(3005, 3155.0))
    assert len(history._tracked[1].during) == 1000
    record = history.get(1)
    assert (record.during, record.longest_gap) == (Latency(3.0, 6.0), 51.0)


def test_of_one_that_is_over_only_the_record_is_kept() -> None:
    """A thousand of them are remembered."""
    history = steady()
    asked(history, 104.5)
    history.switched(1, 5, hold=False)
    history.batch(batch(5, 105.0))
    during = history.get(1).during
    assert history._tracked[1].during
    assert history.settled(1, now=106.0).during == during != Latency()
    assert not history._tracked[1].during
