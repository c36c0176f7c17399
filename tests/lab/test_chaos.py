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
    with lab.chaos([event("disk-full"), event("slow-disk", "near", rate="1m"), event("partition")]) as chaos:
        assert chaos.wait(60)
    assert told(chaos) == [
        "not done: disk-full a: host a is down; boot() starts it",
        'not done: slow-disk near: the disk of host near is memory: set disk_in = "file" to slow it down',
        "a cut off from all",
        "over: a cut off from all",
    ]
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
