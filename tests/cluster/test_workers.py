"""Who stays, goes and is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.cluster.workers import PATIENCE, SETTLING, WorkerChanges, WorkerState, changes


def worker(
    name: str, *, alive: bool = True, left: float | None = None, seen: str = "", live: str = ""
) -> WorkerState:
    return WorkerState(name, alive, left, frozenset(seen), frozenset(seen), frozenset(live))


def test_missing_workers_are_started() -> None:
    assert changes(3, [worker("a", seen="0", live="0")]) == WorkerChanges(2, (), (), ())


def test_the_right_number_of_workers_is_left_alone() -> None:
    assert changes(1, [worker("a", seen="01", live="1")]) == WorkerChanges(0, (), (), ())


def test_a_dead_worker_is_ended_and_replaced() -> None:
    assert changes(2, [worker("a", alive=False), worker("b")]) == WorkerChanges(1, (), (), ("a",))


def test_the_youngest_leave_with_their_executors() -> None:
    workers = [
        worker("a", seen="0", live="0"),
        worker("b", seen="1", live="1"),
        worker("c", seen="2", live="2"),
    ]
    assert changes(1, workers) == WorkerChanges(0, ("b", "c"), ("1", "2"), ())


def test_a_worker_that_leaves_is_ended_when_its_executor_is_gone() -> None:
    staying = worker("a", seen="0", live="0")
    assert changes(1, [staying, worker("b", left=SETTLING, seen="1", live="1")]) == WorkerChanges(
        0, (), ("1",), ()
    )
    assert changes(1, [staying, worker("b", left=SETTLING, seen="1")]) == WorkerChanges(0, (), (), ("b",))


def test_a_worker_that_leaves_is_not_counted_as_there() -> None:
    assert changes(2, [worker("a"), worker("b", left=0.0, seen="1", live="1")]).start == 1


def test_an_executor_that_is_on_its_way_is_waited_for() -> None:
    coming = WorkerState("b", True, SETTLING, frozenset("1"), frozenset(), frozenset())
    assert changes(1, [worker("a"), coming]).end == ()
    never = WorkerState("b", True, PATIENCE, frozenset("1"), frozenset(), frozenset())
    assert changes(1, [worker("a"), never]).end == ("b",)


def test_the_master_gets_a_moment_to_hear_of_it() -> None:
    assert changes(1, [worker("a"), worker("b", left=0.0)]).end == ()
    assert changes(1, [worker("a"), worker("b", left=SETTLING)]).end == ("b",)


_IDS = st.frozensets(st.sampled_from("0123456789"), max_size=3)


@st.composite
def _worker_states(draw: st.DrawFn) -> list[WorkerState]:
    found = []
    for index in range(draw(st.integers(0, 6))):
        launched = draw(_IDS)
        seen = launched & draw(_IDS)
        left = draw(st.none() | st.floats(0, 2 * PATIENCE))
        found.append(WorkerState(str(index), draw(st.booleans()), left, launched, seen, seen & draw(_IDS)))
    return found


@given(target=st.integers(1, 6), workers=_worker_states())
def test_no_living_worker_is_ended_under_an_executor(target: int, workers: list[WorkerState]) -> None:
    todo = changes(target, workers)
    busy = {one.name for one in workers if one.alive and one.live}
    assert not busy & {*todo.end}


@given(target=st.integers(1, 6), workers=_worker_states())
def test_the_moves_lead_to_the_target(target: int, workers: list[WorkerState]) -> None:
    todo = changes(target, workers)
    staying = [one for one in workers if one.alive and one.left is None and one.name not in todo.leave]
    assert len(staying) + todo.start == target
    assert not (todo.start and todo.leave)
