from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigError
from tidegate.lab.schedule import Action, actions, parse, read
from tidegate.lab.spec import HostSpec

HOSTS = {"a": HostSpec(), "b": HostSpec(disk_in="file"), "c": HostSpec()}


def planned(*events: dict[str, Any], seed: int = 1, count: int = 200) -> list[Action]:
    return list(islice(actions(parse(events, HOSTS), seed), count))


def test_an_event_at_a_time_happens_once_and_is_undone() -> None:
    found = planned({"do": "kill", "host": "a", "at": "3 s", "for": "2 s"})
    assert [(action.at, action.host, action.undo) for action in found] == [
        (3.0, "a", False),
        (5.0, "a", True),
    ]
    assert found[0].number == found[1].number


def test_without_an_end_it_is_not_undone() -> None:
    assert [action.undo for action in planned({"do": "disk-full", "host": "a", "at": "0 s"})] == [False]


@given(seed=st.integers(0, 10_000), lasts=st.sampled_from(["500 ms", "9 s"]))
def test_again_and_again_within_bounds_each_undone_where_it_was_done(seed: int, lasts: str) -> None:
    again = {"do": "partition", "host": [*HOSTS], "every": ["1 s", "4 s"], "for": lasts}
    found = planned(again, {"do": "freeze", "host": "b", "every": "3 s"}, seed=seed)
    assert [action.at for action in found] == sorted(action.at for action in found)
    begun = {action.number: action for action in found if not action.undo}
    for action in found:
        if action.undo:
            assert action.host == begun[action.number].host
            assert action.at == begun[action.number].at + (0.5 if lasts == "500 ms" else 9)
    times = [action.at for action in found if not action.undo and action.number[0] == 0]
    assert all(1 <= after - before <= 4 for before, after in zip([0.0, *times], times, strict=False))
    assert {action.host for action in begun.values()} == set(HOSTS)


def test_a_seed_repeats_a_schedule_and_another_does_not() -> None:
    again = {"do": "kill", "host": [*HOSTS], "every": ["1 s", "9 s"]}
    assert planned(again, seed=3) == planned(again, seed=3)
    assert planned(again, seed=3) != planned(again, seed=4)


def test_events_do_not_disturb_each_other() -> None:
    kill = {"do": "kill", "host": [*HOSTS], "every": ["1 s", "9 s"]}
    alone = planned(kill, count=20)
    beside = planned(kill, {"do": "freeze", "host": [*HOSTS], "every": ["2 s", "3 s"]})
    assert [action for action in beside if action.number[0] == 0][:20] == alone


def test_a_file_holds_nothing_but_tables_of_chaos(tmp_path: Path) -> None:
    file = tmp_path / "chaos.toml"
    file.write_text('[[chaos]]\ndo = "kill"\nhost = "a"\nat = "1 s"\n')
    assert [event.hosts for event in read(file, HOSTS)] == [["a"]]
    file.write_text("[[chaoss]]\n")
    with pytest.raises(ConfigError, match=r"chaoss \(.*chaos.toml\): unknown table"):
        read(file, HOSTS)
    file.write_text('[chaos]\ndo = "kill"\n')
    with pytest.raises(
        ConfigError, match=r"chaos \(.*chaos.toml\): expected tables, each under \[\[chaos\]\]"
    ):
        read(file, HOSTS)


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"host": "a", "at": "1 s"}, "chaos[1].do (chaos): is missing; choose from"),
        (
            {"do": "kill", "host": "a"},
            'chaos[1] (chaos): say when: either at = "10 seconds" or every = "10 seconds"',
        ),
        ({"do": "kill", "host": "a", "at": "1 s", "every": "1 s"}, "chaos[1] (chaos): say when"),
        (
            {"do": "kill", "host": "a", "process": "java", "at": "1 s", "for": "1 s"},
            "chaos[1] (chaos): a killed program does not come back by itself: leave `for` out",
        ),
        (
            {"do": "kill", "host": "a", "every": ["2 s", "1 s"]},
            "chaos[1] (chaos): the first of every must not be longer than the second",
        ),
        (
            {"do": "kill", "host": "a", "every": "0 s"},
            "chaos[1].every (chaos): expected a duration like '10 seconds', or two to draw from between them",
        ),
        ({"do": "freeze", "at": "1 s"}, "chaos[1].host (chaos): expected the name of a host, or a list"),
        (
            {"do": "freeze", "host": [], "at": "1 s"},
            "chaos[1].host (chaos): expected the name of a host, or a",
        ),
        (
            {"do": "freeze", "host": "d", "at": "1 s"},
            "chaos[1] (chaos): there is no host 'd'; choose from a, b, c",
        ),
        (
            {"do": "partition", "host": "a", "from": ["e"], "at": "1 s"},
            "chaos[1] (chaos): there is no host 'e'; choose from a, b, c",
        ),
        (
            {"do": "partition", "host": "a", "one_way": "up", "at": "1 s"},
            "chaos[1].one_way (chaos): expected 'in' or 'out', got 'up'",
        ),
        (
            {"do": "partition", "host": ["a", "b"], "from": ["b", "c"], "at": "1 s"},
            "chaos[1].from (chaos): b cannot be cut off from itself: leave it out",
        ),
        (
            {"do": "slow-disk", "host": ["a", "b"], "rate": "1m", "at": "1 s"},
            'chaos[1] (chaos): the disk of host a is memory: set disk_in = "file" to slow it down',
        ),
        ({"do": "delay", "host": "a", "at": "1 s"}, "chaos[1].delay (chaos): expected a duration like"),
        ({"do": "slow-disk", "host": "a", "at": "1 s"}, "chaos[1].rate (chaos): expected a size like"),
        (
            {"do": "kill", "host": "a", "at": "1 s", "fro": 3},
            "chaos[1].fro (chaos): unknown key; did you mean for?",
        ),
    ],
)
def test_what_is_wrong_is_told_with_what_to_write(event: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse([event], HOSTS)
    assert str(raised.value).startswith(told)
    assert "\n" not in str(raised.value)


def test_what_befalls_the_store_needs_one() -> None:
    away = {"do": "store-away", "at": "1 s", "for": "2 s"}
    found = list(actions(parse([away], HOSTS, store=True), 1))
    assert [(action.host, action.undo) for action in found] == [("the store", False), ("the store", True)]
    with pytest.raises(ConfigError, match=r"chaos\[1\] \(chaos\): there is no store: declare it"):
        parse([away], HOSTS)
    with pytest.raises(ConfigError, match=r"chaos\[1\].host \(chaos\): unknown key"):
        parse([{**away, "host": "a"}], HOSTS, store=True)
