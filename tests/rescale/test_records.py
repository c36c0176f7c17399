"""Rescales on record, in a folder and in a store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.rescale.test_history import asked, batch
from tidegate.rescale import history
from tidegate.rescale.history import STRETCH, History
from tidegate.rescale.records import Records, load
from tidegate.storage.memory import Memory


def test_what_was_kept_is_loaded_as_it_was_last() -> None:
    storage = Memory()
    with Records(storage) as records:
        kept = History(keep=records.keep)
        for number in range(3):
            kept.batch(batch(number, 100.0 + number))
        asked(kept, 103.0)
        kept.switched(1, 3, hold=False)
        kept.settled(1, now=104.0)
        for number in range(3, 3 + STRETCH):
            kept.batch(batch(number, 100.0 + number, latency=2.0))
    assert load(storage) == list(kept.all())
    assert kept.get(1).after.p50 == 2.0


def test_one_whose_driver_ended_has_failed_and_numbers_go_on() -> None:
    storage = Memory()
    with Records(storage) as records:
        asked(History(keep=records.keep), 100.0)
    (past,) = load(storage)
    assert (past.phase, past.why) == (
        "failed",
        "its driver ended; the next one went on with the route of the latest batch",
    )
    following = History(load(storage))
    assert asked(following, 200.0).number == 2
    assert [each.number for each in following.all()] == [1, 2]


def test_a_damaged_record_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    storage = Memory()
    with Records(storage) as records:
        kept = History(keep=records.keep)
        asked(kept, 100.0)
        asked(kept, 101.0)
    first, second = storage.names()
    storage.write(first, [storage.open(first).to_pybytes().replace(b"hybrid", b"hybrie")])
    assert [each.number for each in load(storage)] == [2]
    assert f"{first} in {storage} cannot be read" in caplog.text
    assert second in storage.names()


@pytest.mark.parametrize("count", [3, 5])
def test_only_the_latest_are_kept(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "KEPT", 3)
    monkeypatch.setattr("tidegate.rescale.records.KEPT", 3)
    storage = Memory()
    with Records(storage) as records:
        first = asked(History(), 100.0)
        for number in range(1, count + 1):
            records.keep(replace(first, number=number))
    assert [each.number for each in load(storage)] == list(range(1, count + 1))[-3:]
    assert len(storage.names()) == 3


def test_a_place_that_is_away_ends_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Memory()
    monkeypatch.setattr(storage, "write", away)
    with Records(storage) as records:
        records.keep(asked(History(), 100.0))
    assert "rescale 1 cannot be put on record: it is away" in caplog.text


def away(*_: object) -> None:
    raise OSError("it is away")
