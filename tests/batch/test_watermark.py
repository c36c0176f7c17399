"""The watermark is the least over sources, trails by the grace and never goes back."""

from __future__ import annotations

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
