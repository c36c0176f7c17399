"""Which workers are started, retired and stopped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.cluster.workers import (
    MASTER_DELAY,
    REGISTRATION_TIMEOUT,
    WorkerChanges,
    WorkerState,
    reconcile,
)


def worker(name: str, executors: str = "", *, retired_for: float | None = None) -> WorkerState:
    return WorkerState(name, alive=True, executors=frozenset(executors), retired_for=retired_for)


def test_missing_workers_are_started() -> None:
    assert reconcile(3, [worker("a", "0")]) == WorkerChanges(start=2)


def test_the_right_number_of_workers_is_left_alone() -> None:
    assert reconcile(1, [worker("a", "1")]) == WorkerChanges()


def test_a_dead_worker_is_stopped_and_replaced() -> None:
    dead = WorkerState("a", alive=False)
    assert reconcile(2, [dead, worker("b")]) == WorkerChanges(start=1, stop=("a",))


def test_the_youngest_are_retired_with_their_executors() -> None:
    workers = [worker("a", "0"), worker("b", "1"), worker("c", "2")]
    assert reconcile(1, workers) == WorkerChanges(retire=("b", "c"), decommission=("1", "2"))


def test_a_retired_worker_is_stopped_when_its_executor_is_gone() -> None:
    staying = worker("a", "0")
    busy, empty = (worker("b", executors, retired_for=MASTER_DELAY) for executors in ("1", ""))
    assert reconcile(1, [staying, busy]) == WorkerChanges(decommission=("1",))
    assert reconcile(1, [staying, empty]) == WorkerChanges(stop=("b",))


def test_a_retired_worker_is_not_counted_as_there() -> None:
    assert reconcile(2, [worker("a"), worker("b", "1", retired_for=0.0)]).start == 1


def test_an_executor_that_is_starting_is_waited_for() -> None:
    def retired(seconds: float) -> WorkerState:
        return WorkerState("b", alive=True, starting=True, retired_for=seconds)

    assert reconcile(1, [worker("a"), retired(MASTER_DELAY)]).stop == ()
    assert reconcile(1, [worker("a"), retired(REGISTRATION_TIMEOUT)]).stop == ("b",)


def test_the_master_gets_a_moment_to_hear_of_it() -> None:
    assert reconcile(1, [worker("a"), worker("b", retired_for=0.0)]).stop == ()
    assert reconcile(1, [worker("a"), worker("b", retired_for=MASTER_DELAY)]).stop == ("b",)


@st.composite
def _worker_states(draw: st.DrawFn) -> list[WorkerState]:
    return [
        WorkerState(
            str(index),
            alive=draw(st.booleans()),
            executors=draw(st.frozensets(st.sampled_from("0123456789"), max_size=3)),
            starting=draw(st.booleans()),
            retired_for=draw(st.none() | st.floats(0, 2 * REGISTRATION_TIMEOUT)),
        )
        for index in range(draw(st.integers(0, 6)))
    ]


@given(target=st.integers(1, 6), workers=_worker_states())
def test_no_living_worker_is_stopped_under_an_executor(target: int, workers: list[WorkerState]) -> None:
    changes = reconcile(target, workers)
    busy = {one.name for one in workers if one.alive and one.executors}
    assert not busy & {*changes.stop}


@given(target=st.integers(1, 6), workers=_worker_states())
def test_the_changes_lead_to_the_target(target: int, workers: list[WorkerState]) -> None:
    changes = reconcile(target, workers)
    staying = [
        one for one in workers if one.alive and one.retired_for is None and one.name not in changes.retire
    ]
    assert len(staying) + changes.start == target
    assert not (changes.start and changes.retire)
