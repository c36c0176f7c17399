"""The watermark is the least over sources, trails by the grace and never goes back."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tidegate.batch.watermark import Watermark

SECOND = 1_000_000


def test_unknown_until_every_source_was_heard() -> None:
    mark = Watermark({"a": 0.0, "b": 0.0}, {})
    assert mark.advance({"a": SECOND}).micros is None
    assert mark.advance({"a": SECOND, "b": 3 * SECOND}).micros == SECOND


def test_the_grace_is_taken_off_per_source() -> None:
    mark = Watermark({"a": 2.0, "b": 0.5}, {"a": 10 * SECOND, "b": 9 * SECOND})
    assert mark.micros == 8 * SECOND


def test_sources_without_event_time_do_not_count() -> None:
    assert Watermark({}, {}).advance({"a": SECOND}).micros is None


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1))
def test_it_never_goes_back(newest: list[int]) -> None:
    mark, before = Watermark({"a": 1.0}, {}), None
    for micros in newest:
        mark = mark.advance({"a": micros})
        assert mark.micros is not None
        assert before is None or mark.micros >= before
        before = mark.micros
    assert before == max(newest) - SECOND


def test_a_silent_source_is_not_waited_for_until_it_speaks_again() -> None:
    mark = Watermark({"a": 0.0, "b": 0.0}, {"a": SECOND, "b": SECOND}, idle=30.0)
    for number in range(1, 4):
        assert (mark.micros, mark.idle_sources) == (SECOND, ())
        mark = mark.advance({"a": number * 10 * SECOND}, passed=10.0)
    assert (mark.micros, mark.idle_sources) == (30 * SECOND, ("b",))
    mark = mark.advance({"b": 2 * SECOND}, passed=10.0)
    assert (mark.micros, mark.idle_sources) == (2 * SECOND, ())


def test_a_source_that_was_never_heard_is_not_waited_for_either() -> None:
    mark = Watermark({"a": 0.0, "b": 0.0}, {}, idle=10.0)
    mark = mark.advance({"a": SECOND}, passed=5.0)
    assert mark.micros is None
    assert mark.advance({"a": 2 * SECOND}, passed=5.0).micros == 2 * SECOND


def later(seen: Mapping[str, int]) -> int:
    """What closes windows of 4 s."""
    return max(seen.values()) + 4 * SECOND


def test_when_all_are_silent_everything_is_closed() -> None:
    mark = Watermark({"a": 5.0, "b": 0.0}, {"a": 9 * SECOND, "b": SECOND}, idle=10.0, closing=later)
    mark = mark.advance({}, passed=10.0)
    assert mark.idle_sources == ("a", "b")
    assert mark.micros == mark.end == 13 * SECOND
    mark = mark.advance({}, furthest=99 * SECOND)
    assert (mark.micros, mark.end) == (13 * SECOND, 99 * SECOND), "timers may go on for ever"


def test_the_end_is_past_every_window_and_timer() -> None:
    mark = Watermark({"a": 5.0, "b": 0.0}, {"a": 9 * SECOND, "untimed": 99 * SECOND}, closing=later)
    assert mark.end == 13 * SECOND, "b was never heard"
    assert mark.advance({}, furthest=20 * SECOND).advance({}, furthest=SECOND).end == 20 * SECOND
    assert Watermark({"a": 0.0}, {"a": SECOND}).end is None, "nothing waits"
