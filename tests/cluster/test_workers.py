"""Who stays, goes and is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.cluster.workers import PATIENCE, SETTLING, Moves, Seat, moves


def seat(name: str, *, alive: bool = True, left: float | None = None, seen: str = "", live: str = "") -> Seat:
    return Seat(name, alive, left, frozenset(seen), frozenset(seen), frozenset(live))


def test_missing_seats_are_started() -> None:
    assert moves(3, [seat("a", seen="0", live="0")]) == Moves(2, (), (), ())


def test_the_right_number_of_seats_is_left_alone() -> None:
    assert moves(1, [seat("a", seen="01", live="1")]) == Moves(0, (), (), ())


def test_a_dead_seat_is_ended_and_replaced() -> None:
    assert moves(2, [seat("a", alive=False), seat("b")]) == Moves(1, (), (), ("a",))


def test_the_youngest_leave_with_their_executors() -> None:
    seats = [seat("a", seen="0", live="0"), seat("b", seen="1", live="1"), seat("c", seen="2", live="2")]
    assert moves(1, seats) == Moves(0, ("b", "c"), ("1", "2"), ())


def test_a_seat_that_leaves_is_ended_when_its_executor_is_gone() -> None:
    staying = seat("a", seen="0", live="0")
    assert moves(1, [staying, seat("b", left=SETTLING, seen="1", live="1")]) == Moves(0, (), ("1",), ())
    assert moves(1, [staying, seat("b", left=SETTLING, seen="1")]) == Moves(0, (), (), ("b",))


def test_a_seat_that_leaves_is_not_counted_as_there() -> None:
    assert moves(2, [seat("a"), seat("b", left=0.0, seen="1", live="1")]).start == 1


def test_an_executor_that_is_on_its_way_is_waited_for() -> None:
    coming = Seat("b", True, SETTLING, frozenset("1"), frozenset(), frozenset())
    assert moves(1, [seat("a"), coming]).end == ()
    never = Seat("b", True, PATIENCE, frozenset("1"), frozenset(), frozenset())
    assert moves(1, [seat("a"), never]).end == ("b",)


def test_the_master_gets_a_moment_to_hear_of_it() -> None:
    assert moves(1, [seat("a"), seat("b", left=0.0)]).end == ()
    assert moves(1, [seat("a"), seat("b", left=SETTLING)]).end == ("b",)


_IDS = st.frozensets(st.sampled_from("0123456789"), max_size=3)


@st.composite
def _seats(draw: st.DrawFn) -> list[Seat]:
    found = []
    for index in range(draw(st.integers(0, 6))):
        launched = draw(_IDS)
        seen = launched & draw(_IDS)
        left = draw(st.none() | st.floats(0, 2 * PATIENCE))
        found.append(Seat(str(index), draw(st.booleans()), left, launched, seen, seen & draw(_IDS)))
    return found


@given(target=st.integers(1, 6), seats=_seats())
def test_no_living_seat_is_ended_under_an_executor(target: int, seats: list[Seat]) -> None:
    todo = moves(target, seats)
    busy = {one.name for one in seats if one.alive and one.live}
    assert not busy & {*todo.end}


@given(target=st.integers(1, 6), seats=_seats())
def test_the_moves_lead_to_the_target(target: int, seats: list[Seat]) -> None:
    todo = moves(target, seats)
    staying = [one for one in seats if one.alive and one.left is None and one.name not in todo.leave]
    assert len(staying) + todo.start == target
    assert not (todo.start and todo.leave)
