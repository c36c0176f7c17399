"""Rescales at set times of a run."""

from __future__ import annotations

import time

import pytest

from tests.control.kit import Toy
from tests.view.batches import batch
from tidegate.cli.schedule import Schedule, ScheduledRescale, parse
from tidegate.errors import ConfigError, DurationError
from tidegate.rescale.model import Ask


@pytest.mark.parametrize(
    ("text", "rescale"),
    [
        ("20 seconds: nodes=4", ScheduledRescale(20.0, Ask(nodes=4))),
        ("1.5 min: nodes=2, parallelism=8", ScheduledRescale(90.0, Ask(nodes=2, parallelism=8))),
        ("0 s:strategy=lazy nodes=1", ScheduledRescale(0.0, Ask(nodes=1, strategy="lazy"))),
    ],
)
def test_a_scheduled_rescale_is_a_time_and_what_to_ask_for(text: str, rescale: ScheduledRescale) -> None:
    assert parse(text) == rescale


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nodes=4", "write it like"),
        ("20 s:", "write it like"),
        ("20 s: nodes=4 colour=red", "write it like"),
        ("20 s: nodes=0", "must be a number of at least 1"),
        ("20 s: nodes=many", "must be a number of at least 1"),
        ("20 s: strategy=slow nodes=2", "is not a strategy"),
    ],
)
def test_anything_else_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(text)


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(DurationError):
        parse("soon: nodes=4")


def test_it_asks_in_the_order_of_time_once_the_first_batch_is_there() -> None:
    toy = Toy()
    rescales = [ScheduledRescale(0.05, Ask(nodes=0)), ScheduledRescale(0.0, Ask(nodes=4))]
    with Schedule(rescales) as schedule:
        schedule.attach(toy)
        assert toy.history() == ()
        schedule(batch(0))
        until = time.monotonic() + 30
        while not toy.history() and time.monotonic() < until:
            time.sleep(0.01)
    # What makes no sense is refused there, and told in the log.
    assert [rescale.ask.nodes for rescale in toy.history()] == [4]


def test_what_is_not_due_by_the_end_does_not_keep_the_run() -> None:
    toy = Toy()
    with Schedule([ScheduledRescale(3600, Ask(nodes=4))]) as schedule:
        schedule.attach(toy)
        schedule(batch(0))
    assert toy.history() == ()
