from __future__ import annotations

from tidegate.lab.exchange import Exchange
from tidegate.lab.link import Link

A, B, C = b"\x0a\x4d\x00\x01", b"\x0a\x4d\x00\x02", b"\x0a\x4d\x00\x03"


def exchange(**delays: float) -> Exchange:
    made = Exchange(seed=0)
    ends = {"ab": (A, B), "ba": (B, A), "cb": (C, B)}
    for name, delay in delays.items():
        made.shape(*ends[name], Link(delay=delay))
    return made


def test_packets_are_released_when_due_and_not_before() -> None:
    made = exchange(ab=0.01)
    made.take(1.0, A, B, b"first")
    assert made.next == 1.01
    assert made.release(1.009) == []
    assert made.release(1.01) == [(B, b"first")]
    assert made.next is None


def test_each_direction_has_its_own_link() -> None:
    made = exchange(ab=0.01, ba=0.0, cb=0.005)
    made.take(0.0, A, B, b"far")
    made.take(0.0, B, A, b"back")
    made.take(0.0, C, B, b"near")
    assert made.release(1.0) == [(A, b"back"), (B, b"near"), (B, b"far")]


def test_what_was_sent_first_arrives_first() -> None:
    made = exchange(ab=0.01)
    for number in range(10):
        made.take(0.0, A, B, bytes([number]))
    assert [packet[0] for _, packet in made.release(1.0)] == list(range(10))


def test_a_change_is_for_packets_to_come() -> None:
    made = exchange(ab=0.01)
    made.take(0.0, A, B, b"before")
    made.shape(A, B, Link(cut=True))
    made.take(0.0, A, B, b"after")
    assert made.release(1.0) == [(B, b"before")]


def test_what_no_link_leads_to_is_dropped() -> None:
    made = exchange(ab=0.0)
    made.take(0.0, A, C, b"?")
    made.take(0.0, A, b"\xff\xff\xff\xff", b"to all")
    assert made.next is None


def test_one_link_that_needs_whole_packets_is_enough() -> None:
    made = exchange(ab=0.01, ba=0.0)
    made.shape(A, C, Link(loss=0.1))
    assert made.whole(A)
    assert not made.whole(B)
