from __future__ import annotations

from tidegate.lab.link import Link
from tidegate.lab.rtt import RoundTrips, expected

PAIR = ("a", "b")


def trips(measured: float | None, wanted: float | None, slack: float = 0.0) -> RoundTrips:
    return RoundTrips({PAIR: measured}, {PAIR: wanted}, {PAIR: slack})


def test_a_round_trip_takes_both_ways_and_the_bandwidth() -> None:
    links = {("a", "b"): Link(delay=0.25, rate=1344), ("b", "a"): Link(delay=0.5)}
    assert expected(links, PAIR) == expected(links, ("b", "a")) == 1.25
    links["b", "a"] = Link(loss=1.0)
    assert expected(links, PAIR) is None


def test_what_is_off_by_a_millisecond_is_not_good() -> None:
    assert trips(0.0259, 0.025).good
    assert not trips(0.0261, 0.025).good
    assert not trips(0.0239, 0.025).good
    assert trips(0.0261, 0.025, slack=0.0005).good


def test_an_answer_that_does_not_come_or_should_not_is_not_good() -> None:
    assert trips(None, None).error == 0.0
    assert trips(None, 0.025).error == float("inf")
    assert not trips(0.025, None).good
