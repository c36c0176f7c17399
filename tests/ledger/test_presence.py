"""A driver on another machine is known by what it keeps telling, and by no clock but one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tidegate.errors import StorageError
from tidegate.ledger.presence import (
    Driver,
    Presence,
    Watch,
    driver_at,
    finished_within,
    tell,
    this_driver,
)
from tidegate.storage.memory import Memory


class Passing:
    """A clock that goes on when somebody sleeps, and what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[float], object] = lambda now: None) -> None:
        self.now = 0.0
        self.meanwhile = meanwhile

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile(self.now)


def watch(storage: Memory, clock: Passing) -> Watch:
    return Watch(storage, "mine", clock=clock, sleep=clock.sleep)


@pytest.fixture
def storage() -> Memory:
    return Memory()


def test_nobody_is_there_at_first(storage: Memory) -> None:
    clock = Passing()
    assert not watch(storage, clock).is_alive()
    assert clock.now == 0


def test_one_that_goes_on_telling_is_alive(storage: Memory) -> None:
    other = this_driver("theirs")
    tell(storage, other)
    clock = Passing(lambda now: tell(storage, replace(other, beat=int(now / 3))))
    found = watch(storage, clock)
    assert found.notices()
    assert clock.now < 5
    assert found.driver is not None
    assert (found.driver.pid, found.driver.host) == (other.pid, other.host)


def test_one_that_says_nothing_any_more_is_taken_for_dead_in_the_end(storage: Memory) -> None:
    tell(storage, this_driver("theirs"))
    clock = Passing()
    found = watch(storage, clock)
    assert not found.notices()
    soon = clock.now
    assert not found.is_alive()
    assert 0 < soon < clock.now


def test_one_that_is_late_is_noticed_before_it_is_given_up(storage: Memory) -> None:
    other = this_driver("theirs")
    tell(storage, other)
    clock = Passing(lambda now: tell(storage, replace(other, beat=int(now >= 8))))
    found = watch(storage, clock)
    assert not found.notices()
    assert found.is_alive()


@pytest.mark.parametrize("driver", [this_driver("mine"), replace(this_driver("theirs"), ended=True)])
def test_one_that_has_ended_or_had_the_lock_that_one_has_is_not_waited_for(
    storage: Memory, driver: Driver
) -> None:
    tell(storage, driver)
    clock = Passing()
    assert not watch(storage, clock).is_alive()
    assert clock.now == 0


def test_a_store_that_was_away_says_nothing_about_the_driver(storage: Memory) -> None:
    """It could not tell meanwhile, as one could not ask."""
    tell(storage, this_driver("theirs"))
    clock = Passing()
    away = [30.0]

    class Away(Memory):
        def open(self, name: str):  # type: ignore[no-untyped-def]
            if clock.now > 2 and away:
                clock.now += away.pop()
            return storage.open(name)

    assert not Watch(Away(), "mine", clock=clock, sleep=clock.sleep).is_alive()
    assert clock.now > 30 + 12


def test_a_driver_tells_of_itself_until_it_ends(storage: Memory) -> None:
    me = Presence(storage, "mine", period=0.01)
    me.begin(3)
    first = driver_at(storage)
    me.finished, me.control = 7, "http://127.0.0.1:1"
    while (now := driver_at(storage)) is None or now.finished != 7:
        pass
    assert first is not None
    assert (now.generation, now.control, now.ended) == (3, "http://127.0.0.1:1", False)
    assert now.beat > first.beat
    me.end()
    last = driver_at(storage)
    assert last is not None
    assert (last.ended, last.finished, last.control) == (True, 7, None)


def test_a_driver_that_was_replaced_says_no_more(storage: Memory) -> None:
    me = Presence(storage, "mine", period=0.01)
    me.begin(3)
    successor = replace(this_driver("theirs"), generation=4)
    while not me.is_replaced:
        tell(storage, successor)
    me.end()
    tell(storage, successor)
    assert driver_at(storage) == successor


def test_a_driver_gets_over_a_store_that_is_away(storage: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    me = Presence(storage, "mine", period=0.01)
    me.begin(3)
    failures = [StorageError("away")] * 3
    write = Memory.write

    def failing(self: Memory, name: str, parts: object) -> None:
        if failures:
            raise failures.pop()
        write(self, name, parts)  # type: ignore[arg-type]

    monkeypatch.setattr(Memory, "write", failing)
    while failures:
        pass
    me.end()
    found = driver_at(storage)
    assert found is not None
    assert found.ended


def test_what_is_over_is_known_from_the_driver(storage: Memory) -> None:
    assert not finished_within(storage, 3, 60)
    tell(storage, replace(this_driver("theirs"), finished=2, ended=True))
    assert not finished_within(storage, 3, 60)
    tell(storage, replace(this_driver("theirs"), finished=3))
    assert finished_within(storage, 3, 0)


def test_what_cannot_be_understood_is_nobody(storage: Memory) -> None:
    storage.write("driver.json", [b'{"pid": 1'])
    assert driver_at(storage) is None
