from __future__ import annotations

import os

import pytest

from tests.lab.kit import await_that, left_behind, loops, python, received, receiver, send
from tidegate.errors import ConfigError, LabError
from tidegate.lab import Lab, Link

pytestmark = pytest.mark.lab

TRANSFER = """
import socket, sys, threading, time
port = socket.create_server(("0.0.0.0", 9))
open("/ready", "w").close()
peer, _ = port.accept()
size = 0
while part := peer.recv(1 << 20):
    size += len(part)
peer.send(b"%d" % size)
"""
SEND_ALL = """
import socket, sys, time
start = time.monotonic()
peer = socket.create_connection((sys.argv[1], 9))
peer.sendall(bytes(int(sys.argv[2])))
peer.shutdown(socket.SHUT_WR)
assert int(peer.recv(100)) == int(sys.argv[2])
print(time.monotonic() - start)
"""


def test_round_trips_take_what_the_links_say_even_if_the_machine_is_busy(lab: Lab) -> None:
    # Other tests may keep even the switch from its CPU for a moment.
    found = next((found for found in (lab.check() for _ in range(5)) if found.good), None)
    assert found is not None, "round trips are off by a millisecond or more, each time"
    assert found.expected["near", "a"] == found.expected["b", "near"] == 0.0125
    assert found.expected["a", "b"] == 0.025
    for pair, trip in found.measured.items():
        assert trip is not None
        assert trip >= (found.expected[pair] or 0.0)


def test_a_delay_changes_while_the_lab_runs(lab: Lab) -> None:
    back = lab.delay("a", "40 ms")
    found = lab.check()
    assert found.expected["near", "a"] == 0.04
    assert (found.measured["near", "a"] or 0.0) >= 0.04
    back()
    assert lab.links["near", "a"] == lab.links["b", "a"] == Link(delay=0.0125)


def test_of_delays_that_overlap_the_latest_holds(lab: Lab) -> None:
    first, second = lab.delay("a", "20 ms"), lab.delay("a", "40 ms")
    first()
    assert lab.links["b", "a"].delay == 0.04
    first = lab.delay("a", "30 ms")
    first()
    assert lab.links["b", "a"].delay == 0.04
    second()
    second()
    assert lab.links["b", "a"].delay == 0.0125


def test_a_cut_may_be_one_way(lab: Lab) -> None:
    with receiver(lab["a"]) as a, receiver(lab["b"]) as b:
        with lab.partition("a", "b", one_way="in"):
            send(lab["b"], "a", "lost")
            send(lab["near"], "a", "from near")
            send(lab["a"], "b", "from a")
            await_that(lambda: received(lab["b"]) == ["from a"], "what a sends arrives")
            await_that(lambda: received(lab["a"]) == ["from near"], "what others send arrives")
        send(lab["b"], "a", "from b")
        await_that(lambda: received(lab["a"]) == ["from near", "from b"], "it is healed")
        a.kill()
        b.kill()


def test_cuts_may_overlap(lab: Lab) -> None:
    def cut() -> set[tuple[str, str]]:
        return {pair for pair, link in lab.links.items() if link.cut and "late" not in pair}

    whole = lab.partition("a", one_way="out")
    part = lab.partition("b", ["a", "near"])
    assert cut() == {("a", "near"), ("a", "b"), ("b", "a"), ("b", "near"), ("near", "b")}
    whole.heal()
    whole.heal()
    assert cut() == {("a", "b"), ("b", "a"), ("b", "near"), ("near", "b")}
    part.heal()
    assert not cut()


def test_a_link_carries_no_more_than_its_bandwidth(lab: Lab) -> None:
    for rate, least in ((None, 0.0), ("16 Mbit", 0.4)):
        if rate:
            lab.shape("near", "b", rate=rate)
        lab["b"].path("/ready").unlink(missing_ok=True)
        with lab["b"].start(["python3", "-I", "-S", "-c", TRANSFER]):
            await_that(lambda: lab["b"].path("/ready").exists(), "b listens")
            took = float(python(lab["near"], SEND_ALL, lab["b"].address, "1000000"))
        assert took > least
    lab.shape("near", "b", rate="unlimited")
    assert lab.links["near", "b"] == Link(delay=0.0125)


def test_what_is_lost_does_not_come_back(lab: Lab) -> None:
    with receiver(lab["near"]) as process:
        lab.shape("a", "near", loss=1.0)
        send(lab["a"], "near", "lost")
        send(lab["b"], "near", "from b")
        await_that(lambda: received(lab["near"]) == ["from b"], "only that of b arrives")
        lab.shape("a", "near", loss=0.0)
        process.kill()


def test_a_host_that_comes_back_has_its_links_as_they_are_now(lab: Lab) -> None:
    lab["a"].kill()
    back = lab.delay("a", "30 ms")
    lab["a"].boot()
    assert (lab.check().measured["near", "a"] or 0.0) >= 0.03
    back()


def test_unknown_hosts_and_links_are_told(lab: Lab) -> None:
    with pytest.raises(LabError, match="there is no host 'aa'; did you mean a"):
        lab.partition("aa")
    with pytest.raises(LabError, match="there is no link from a to itself"):
        lab.shape("a", "a", loss=0.1)
    with pytest.raises(LabError, match="one way 'in' or 'out', not True"):
        lab.partition("a", one_way=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"link.loss \(argument\): expected a number from 0 to 1, got 2"):
        lab.shape("a", "b", loss=2)
    with pytest.raises(ConfigError, match=r"link.delay \(argument\): expected a duration"):
        lab.delay("a", "soon")


def test_before_and_after_it_is_up_it_has_no_hosts() -> None:
    lab = Lab({"hosts": {"a": {}, "b": {}}})
    with pytest.raises(LabError, match="the lab is not up"):
        lab.partition("a")
    with lab:
        assert lab["a"].alive
    with pytest.raises(LabError, match="the lab is not up"):
        lab["a"]


def test_two_labs_do_not_see_each_other_and_nothing_is_left_of_one() -> None:
    declared = {"hosts": {"a": {}, "b": {"disk": "64m", "disk_in": "file"}}}
    with Lab(declared) as one:
        with Lab(declared) as other:
            assert one["a"].address == other["a"].address
            one.partition("a")
            assert other.check().measured["a", "b"] is not None
            assert one.check().measured["a", "b"] is None
        assert left_behind(one.name)
        disk = one["b"].disk
        (file,) = loops([disk])
    assert not left_behind(one.name) + left_behind(other.name)
    await_that(lambda: file not in loops([disk]), "the kernel let go of the disk")


def test_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"the lab needs root, .*: start it with sudo"):
        Lab({"hosts": {"a": {}}}).__enter__()


def test_a_host_that_cannot_start_leaves_nothing() -> None:
    lab = Lab({"hosts": {"a": {}, "b": {"disk": "1k", "disk_in": "file"}}})
    with pytest.raises(LabError, match=r"host b does not start: mkfs\.ext4: "), lab:
        pass
    assert not left_behind(lab.name)
