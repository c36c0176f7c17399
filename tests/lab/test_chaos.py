from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab.kit import await_that, running
from tidegate.lab import Chaos, Deed, Lab

pytestmark = pytest.mark.lab


def told(chaos: Chaos) -> list[str]:
    return [deed.what for deed in chaos.deeds]


def event(do: str, host: str = "a", **more: Any) -> dict[str, Any]:
    return {"do": do, "host": host, "at": "0 s", **more}


def test_a_schedule_is_carried_out_and_undone_in_time(lab: Lab) -> None:
    schedule = [
        event("kill", "near", **{"for": "100 ms"}),
        event("partition", "a", **{"from": ["b"], "one_way": "out", "for": "200 ms"}),
        event("delay", "b", delay="50 ms", **{"for": "300 ms"}),
    ]
    heard: list[Deed] = []
    with lab.chaos(schedule, tell=heard.append) as chaos:
        assert chaos.wait(60)
    assert heard == chaos.deeds
    assert sorted(told(chaos)) == [
        "a cut off from b, outbound",
        "b delayed by 50 ms",
        "near killed",
        "over: a cut off from b, outbound",
        "over: b delayed by 50 ms",
        "over: near killed",
    ]
    assert up(lab) == ["near", "a", "b"]
    assert not lab.links["a", "b"].cut
    assert lab.links["a", "b"].delay == 0.0125


def test_what_is_wrong_at_the_end_is_put_right(lab: Lab) -> None:
    schedule = [
        event("kill", "near", **{"for": "1 hour"}),
        event("partition"),
        event("disk-full"),
        event("slow-disk", "b", rate="1m"),
        event("freeze", "b"),
    ]
    with running(lab["b"], "import time; time.sleep(99)") as process:
        await_that(lambda: lab["b"].processes("sleep(99)"), "it runs")
        with lab.chaos(schedule) as chaos:
            await_that(lambda: len(chaos.deeds) == 5, "all has happened")
            assert up(lab) == ["a", "b"]
            assert lab.links["a", "b"].cut
            assert lab.links["near", "a"].cut
            assert lab["a"].path("/.full").exists()
            (frozen,) = lab["b"].processes("sleep(99)")
            await_that(lambda: state(frozen) == "T", "it stands still")
        assert up(lab) == ["near", "a", "b"]
        assert not any(link.cut for link in lab.links.values())
        assert not lab["a"].path("/.full").exists()
        await_that(lambda: state(frozen) == "S", "it goes on")
        process.kill()


def test_processes_are_killed_by_what_they_are(lab: Lab) -> None:
    with (
        running(lab["a"], "import time; time.sleep(1111)") as one,
        running(lab["a"], "import time; time.sleep(2222)") as other,
    ):
        await_that(lambda: len(lab["a"].processes("time.sleep")) == 2, "both run")
        with lab.chaos([event("kill", process="sleep(1111)")]) as chaos:
            assert one.wait(60) == -9
            assert chaos.wait(60)
        assert other.poll() is None
        other.kill()
    assert told(chaos) == ["a: 1 killed with 'sleep(1111)' in their command line"]


def test_what_is_not_possible_just_then_is_told_and_the_rest_goes_on(lab: Lab) -> None:
    lab["a"].kill()
    with lab.chaos([event("disk-full"), event("freeze", process="java"), event("partition")]) as chaos:
        assert chaos.wait(60)
    assert told(chaos) == [
        "not done: disk-full a: host a is down; boot() starts it",
        "not done: freeze a: host a is down; boot() starts it",
        "a cut off from all",
        "over: a cut off from all",
    ]
    lab["a"].boot()


def test_what_overlaps_goes_on_until_the_last_of_it_is_over(lab: Lab) -> None:
    long, short = {"for": "1 hour"}, {"for": "300 ms"}
    schedule = [
        event("disk-full", **short),
        event("disk-full", **long),
        event("kill", "near", **short),
        event("kill", "near", **long),
        event("freeze", "b", process="sleep(9", **short),
        event("freeze", "b", process="sleep(99)", **long),
        event("delay", "a", delay="20 ms", **short),
        event("delay", "a", delay="40 ms", **long),
        event("slow-disk", "b", rate="2m", **short),
        event("slow-disk", "b", rate="1m", **long),
    ]
    with (
        running(lab["b"], "import time; time.sleep(99)") as one,
        running(lab["b"], "import time; time.sleep(98)") as other,
    ):
        await_that(lambda: len(lab["b"].processes("sleep(9")) == 2, "both run")
        (stays,), (goes_on,) = lab["b"].processes("sleep(99)"), lab["b"].processes("sleep(98)")
        with lab.chaos(schedule) as chaos:
            await_that(lambda: sum(what.startswith("over") for what in told(chaos)) == 5, "half is over")
            assert "b: 2 frozen with 'sleep(9' in their command line" in told(chaos)
            assert lab["a"].path("/.full").exists()
            assert up(lab) == ["a", "b"]
            await_that(lambda: state(goes_on) == "S", "what nothing freezes any more goes on")
            assert state(stays) == "T"
            assert lab.links["b", "a"].delay == 0.04
        assert not lab["a"].path("/.full").exists()
        assert up(lab) == ["near", "a", "b"]
        await_that(lambda: state(stays) == "S", "it goes on, too")
        assert lab.links["b", "a"].delay == 0.0125
        for process in (one, other):
            process.kill()


def test_a_host_that_is_killed_for_good_stays_down(lab: Lab) -> None:
    with lab.chaos([event("kill", **{"for": "100 ms"}), event("kill")]) as chaos:
        assert chaos.wait(60)
    assert not lab["a"].alive
    lab["a"].boot()


def test_a_lab_has_a_schedule_of_its_own_or_one_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chaos.toml"
    file.write_text('[[chaos]]\ndo = "kill"\nhost = "b"\nat = "0 s"\n')
    with Lab({"hosts": {"a": {}, "b": {}}, "chaos": [event("kill")]}) as lab:
        with lab.chaos() as own:
            assert own.wait(60)
        assert up(lab) == ["b"]
        with lab.chaos(file) as other:
            assert other.wait(60)
        assert up(lab) == []


def up(lab: Lab) -> list[str]:
    return [name for name, host in lab.hosts.items() if host.alive]


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
