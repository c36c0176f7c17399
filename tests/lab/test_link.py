from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.lab.link import Line, Link

SENDS = st.lists(st.floats(0, 1), min_size=1, max_size=50).map(sorted)


def arrivals(link: Link, sends: list[float], size: int = 1500, seed: int = 0) -> list[float | None]:
    line, chance = Line(link), Random(seed)
    return [line.arrival(sent, size, chance) for sent in sends]


def test_a_packet_takes_the_delay() -> None:
    assert arrivals(Link(delay=0.0125), [1.0, 1.5]) == [1.0125, 1.5125]


def test_with_a_bandwidth_packets_leave_one_after_the_other() -> None:
    # 1000 bytes at 8 Mbit/s take a millisecond.
    assert arrivals(Link(rate=8_000_000), [0.0, 0.0, 5.0], size=1000) == pytest.approx([0.001, 0.002, 5.001])


def test_what_would_wait_too_long_for_its_turn_is_dropped() -> None:
    found = arrivals(Link(rate=8_000_000), [0.0] * 400, size=1000)
    carried = [at for at in found if at is not None]
    assert len(carried) < 400
    assert max(carried) <= 0.202
    assert None not in arrivals(Link(rate=8_000_000), [number / 1000 for number in range(400)], size=1000)


@given(sends=SENDS, seed=st.integers(0, 100))
def test_jitter_stays_within_its_bounds_and_keeps_the_order(sends: list[float], seed: int) -> None:
    found = arrivals(Link(delay=0.02, jitter=0.01), sends, seed=seed)
    times = [at for at in found if at is not None]
    assert times == sorted(times)
    for sent, at in zip(sends, times, strict=True):
        assert sent + 0.01 <= at + 1e-9
        assert at <= max(sends[: sends.index(sent) + 1]) + 0.03 + 1e-9


def test_jitter_varies() -> None:
    apart = [float(number) for number in range(100)]
    times = [
        at - sent
        for sent, at in zip(apart, arrivals(Link(delay=0.02, jitter=0.01), apart), strict=True)
        if at
    ]
    assert min(times) < 0.013
    assert max(times) > 0.027


def test_loss_takes_its_share() -> None:
    found = arrivals(Link(loss=0.25), [0.0] * 4000)
    assert 0.2 < found.count(None) / 4000 < 0.3
    assert arrivals(Link(loss=1.0), [0.0] * 9) == [None] * 9


def test_nothing_passes_a_cut_link() -> None:
    assert arrivals(Link(delay=0.01, cut=True), [0.0]) == [None]


@pytest.mark.parametrize(
    ("link", "whole"),
    [(Link(), False), (Link(loss=0.01), True), (Link(rate=10**9), False), (Link(rate=10**7), True)],
)
def test_packets_stay_whole_where_large_segments_would_be_wrong(link: Link, whole: bool) -> None:
    assert link.whole is whole
