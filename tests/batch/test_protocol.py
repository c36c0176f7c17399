"""The batch protocol and a node's fence, one decision at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidegate.batch.protocol import (
    Append,
    Appended,
    BatchProtocol,
    Begin,
    Begun,
    Commit,
    Committed,
    Event,
    Failed,
    GiveUp,
    Heal,
    Healed,
    Instruction,
    JobDone,
    Prepare,
    Prepared,
    Publish,
    Published,
    RunJob,
    Start,
)
from tidegate.batch.ticket import Ticket
from tidegate.errors import FencedError, StaleError
from tidegate.state.node.fence import Fence

PARTS = {0: frozenset({("sum-1", 0)}), 1: frozenset({("sum-1", 0), ("sum-1", 1)})}
FIRST, SECOND = Ticket(4, 7, 1), Ticket(4, 7, 2)


def machine(tries: int = 2) -> BatchProtocol:
    return BatchProtocol(generation=4, expected=PARTS, tries=tries)


def told(protocol: BatchProtocol, *events: Event) -> list[Instruction]:
    """What the last of the events leads to."""
    instructions: list[Instruction] = []
    for event in events:
        instructions = protocol.handle(event)
    return instructions


BEGUN = (Start(7, committed=False), Begun(FIRST, 0), Begun(FIRST, 1))
PREPARED = (*BEGUN, JobDone(FIRST), Prepared(FIRST, 0, PARTS[0]), Prepared(FIRST, 1, PARTS[1]))


def test_a_batch_from_start_to_end() -> None:
    protocol = machine()
    assert told(protocol, Start(7, committed=False)) == [Begin(FIRST, 0), Begin(FIRST, 1)]
    assert told(protocol, Begun(FIRST, 1)) == []
    assert told(protocol, Begun(FIRST, 0)) == [RunJob(FIRST)]
    assert told(protocol, JobDone(FIRST)) == [Prepare(FIRST, 0), Prepare(FIRST, 1)]
    assert told(protocol, Prepared(FIRST, 0, PARTS[0])) == []
    assert told(protocol, Prepared(FIRST, 1, PARTS[1])) == [Append(FIRST)]
    assert told(protocol, Appended(FIRST)) == [Commit(FIRST, 0), Commit(FIRST, 1), Publish(7)]
    assert told(protocol, Committed(FIRST, 0), Published(7), Committed(FIRST, 1)) == []
    assert protocol.phase == "done"


@pytest.mark.parametrize("missing", [Committed(FIRST, 0), Committed(FIRST, 1), Published(7)], ids=str)
def test_a_batch_is_done_when_all_have_committed_and_it_is_published(missing: Event) -> None:
    protocol = machine()
    ends = (Committed(FIRST, 0), Committed(FIRST, 1), Published(7))
    told(protocol, *PREPARED, Appended(FIRST), *(event for event in ends if event != missing))
    assert protocol.phase == "finishing"


def test_a_batch_in_the_ledger_is_only_published() -> None:
    protocol = machine()
    assert told(protocol, Start(7, committed=True)) == [Publish(7)]
    told(protocol, Published(7))
    assert protocol.phase == "done"


def test_without_nodes_there_is_nobody_to_ask() -> None:
    protocol = BatchProtocol(generation=4, expected={}, tries=1)
    assert told(protocol, Start(7, committed=False)) == [RunJob(FIRST)]
    assert told(protocol, JobDone(FIRST)) == [Append(FIRST)]
    assert told(protocol, Appended(FIRST)) == [Publish(7)]
    told(protocol, Published(7))
    assert protocol.phase == "done"


@pytest.mark.parametrize(
    "before",
    [BEGUN[:1], BEGUN, (*BEGUN, JobDone(FIRST))],
    ids=["beginning", "running", "preparing"],
)
def test_a_failure_before_the_commit_point_ends_the_attempt(before: tuple[Event, ...]) -> None:
    protocol = machine()
    assert told(protocol, *before, Failed(FIRST, "lost")) == [Heal(FIRST)]
    assert told(protocol, Healed(FIRST)) == [Begin(SECOND, 0), Begin(SECOND, 1)]
    assert told(protocol, Failed(SECOND, "lost again")) == [GiveUp(7, 2, "lost again")]
    assert protocol.phase == "failed"


def test_what_is_sure_to_fail_again_is_not_tried_again() -> None:
    protocol = machine(tries=3)
    assert told(protocol, *BEGUN, Failed(FIRST, "1 / 0", lasting=True)) == [GiveUp(7, 1, "1 / 0")]
    assert protocol.phase == "failed"


@pytest.mark.parametrize("after", [PREPARED, (*PREPARED, Appended(FIRST))], ids=["appending", "finishing"])
def test_nothing_is_taken_back_from_the_commit_point_on(after: tuple[Event, ...]) -> None:
    protocol = machine()
    told(protocol, *after)
    phase = protocol.phase
    assert told(protocol, Failed(FIRST, "late")) == []
    assert protocol.phase == phase


def test_a_part_that_was_not_staged_ends_the_attempt() -> None:
    protocol = machine(tries=1)
    less = Prepared(FIRST, 1, frozenset({("sum-1", 0)}))
    (end,) = told(protocol, *BEGUN, JobDone(FIRST), Prepared(FIRST, 0, PARTS[0]), less)
    assert isinstance(end, GiveUp)
    assert "partition 1 of sum-1 was not staged on node 1" in end.why


@pytest.mark.parametrize(
    "late",
    [
        Begun(FIRST, 0),
        JobDone(FIRST),
        Prepared(FIRST, 0, PARTS[0]),
        Failed(FIRST, "late"),
        Healed(FIRST),
        Appended(FIRST),
        Committed(FIRST, 0),
        Failed(Ticket(3, 7, 2), "of another driver"),
    ],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("phase", ["beginning", "running", "preparing", "appending", "finishing"])
def test_what_belongs_to_an_earlier_attempt_changes_nothing(late: Event, phase: str) -> None:
    protocol = machine()
    told(protocol, *BEGUN, Failed(FIRST, "lost"), Healed(FIRST))
    ahead: tuple[Event, ...] = (
        Begun(SECOND, 0),
        Begun(SECOND, 1),
        JobDone(SECOND),
        Prepared(SECOND, 0, PARTS[0]),
        Prepared(SECOND, 1, PARTS[1]),
        Appended(SECOND),
    )
    steps = iter(ahead)
    while protocol.phase != phase:
        told(protocol, next(steps))
    assert told(protocol, late) == []
    assert protocol.phase == phase
    for event in steps:
        told(protocol, event)
    told(protocol, Committed(SECOND, 0), Committed(SECOND, 1), Published(7))
    assert protocol.phase == "done"


def test_events_that_come_twice_change_nothing() -> None:
    once, twice = machine(), machine()
    events = (*PREPARED, Appended(FIRST), Committed(FIRST, 0), Committed(FIRST, 1), Published(7))
    for event in events:
        assert told(once, event) == told(twice, event)
        assert told(twice, event) == []
    assert twice.phase == "done"


def test_the_story_is_kept() -> None:
    protocol = machine()
    told(protocol, *BEGUN, Failed(SECOND, "of no attempt"))
    assert protocol.story == [*BEGUN, Failed(SECOND, "of no attempt")]


# --- fence ------------------------------------------------------------------------------------------


def test_an_older_generation_is_refused_for_good() -> None:
    fence = Fence().begin(FIRST)
    old = Ticket(3, 8, 1)
    for request in (
        fence.begin,
        fence.read,
        fence.stage,
        fence.prepare,
        fence.commit,
    ):
        with pytest.raises(FencedError, match="generation 4 has taken over"):
            request(old)


def test_a_straggler_of_an_earlier_attempt_is_refused() -> None:
    fence = Fence().begin(SECOND)
    for request in (fence.begin, fence.read, fence.stage, fence.prepare, fence.commit):
        with pytest.raises(StaleError):
            request(FIRST)


def test_nothing_is_read_or_staged_after_prepare() -> None:
    fence = Fence().begin(FIRST).prepare(FIRST)
    for request in (fence.read, fence.stage):
        with pytest.raises(StaleError, match="prepared"):
            request(FIRST)


def test_commit_needs_prepare() -> None:
    with pytest.raises(StaleError, match="open"):
        Fence().begin(FIRST).commit(FIRST)


def test_repetitions_change_nothing() -> None:
    prepared = Fence().begin(FIRST).prepare(FIRST)
    assert prepared.begin(FIRST) is prepared
    assert prepared.prepare(FIRST) is prepared
    committed = prepared.commit(FIRST)
    assert committed.commit(FIRST) == committed.prepare(FIRST) == committed.begin(FIRST) == committed


def test_a_node_that_missed_its_commit_begins_the_next_batch() -> None:
    prepared = Fence().begin(FIRST).prepare(FIRST)
    assert prepared.begin(Ticket(4, 8, 1)) == Fence(Ticket(4, 8, 1), "open")


def test_a_new_driver_may_begin_an_earlier_batch() -> None:
    """The one before had begun it in vain."""
    assert Fence().begin(FIRST).begin(Ticket(5, 6, 1)).ticket == Ticket(5, 6, 1)


def test_the_machine_needs_no_spark() -> None:
    program = "import sys, tidegate.batch.protocol, tidegate.sim.outcome; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
