"""The shell carries out the protocol without Spark: what it does when the job, a sink or the ledger fails."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.rescale.test_rescaler import opened as desk
from tidegate.batch import protocol
from tidegate.batch.garbage import Garbage
from tidegate.batch.outcome import Written
from tidegate.batch.shell import Batches, side_by_side
from tidegate.batch.ticket import Ticket
from tidegate.batch.watermark import Watermark
from tidegate.errors import BatchError, CheckpointError, FencedError, StateLostError, StepError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Cut
from tidegate.sinks.sink import Receipt
from tidegate.sources.source import Seen

CUT = {"source-1": Cut(0, 10)}


@dataclass
class World:
    """A pipeline without state whose job and sink can be told to fail."""

    folder: Path
    job_fails: int = 0
    publish_fails: int = 0
    watermark: Watermark = field(default_factory=lambda: Watermark({"source-1": 1.0}, {}))
    attempts: list[Ticket] = field(default_factory=list)
    published: list[tuple[int, str]] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    before_publish: Callable[[], None] = lambda: None

    def batches(self) -> Batches:
        ledger = Ledger(self.folder)
        ledger.take_over()
        return Batches(
            ledger=ledger,
            nodes=None,
            watermark=self.watermark,
            garbage=Garbage(ledger, None, 3),
            publish=self.publish,
            tries=3,
            retry_wait=0.5,
            sleep=self.slept.append,
            clock=lambda: 1000.0,
        )

    def job(self, ticket: Ticket, assignment: object) -> Written:
        assert assignment is None
        self.attempts.append(ticket)
        if len(self.attempts) <= self.job_fails:
            raise OSError(f"disk full at attempt {ticket.attempt}.")
        return Written({"out": {"rows": 10}}, {"sink-1": 10}, {"source-1": Seen(10, newest=5_000_000)})

    def publish(self, batch_id: int, place: str, receipt: Receipt) -> None:
        self.before_publish()
        if self.publish_fails:
            self.publish_fails -= 1
            raise OSError("no route to host")
        self.published.append((batch_id, place))


def test_a_batch_is_written_committed_and_published(tmp_path: Path) -> None:
    world = World(tmp_path)
    batches = world.batches()
    outcome = batches.run(0, CUT, world.job)
    assert outcome is not None
    assert (outcome.rows_in, outcome.rows_out, outcome.tries) == ({"source-1": 10}, {"sink-1": 10}, 1)
    assert outcome.visible_at == 1000.0
    assert world.published == [(0, "out")]
    last = Ledger(tmp_path).last
    assert last is not None
    assert (last.cut, last.event_times) == (CUT, {"source-1": 5_000_000})
    assert last.receipts == {"out": {"rows": 10}}
    assert batches.time.watermark == 4_000_000


def test_a_job_that_fails_is_tried_again_after_a_wait(tmp_path: Path) -> None:
    world = World(tmp_path, job_fails=2)
    outcome = world.batches().run(0, CUT, world.job)
    assert outcome is not None
    assert outcome.tries == 3
    assert [ticket.attempt for ticket in world.attempts] == [1, 2, 3]
    assert world.slept == [0.5, 0.5]


def test_a_node_that_tasks_cannot_reach_gets_longer_until_the_last_try(tmp_path: Path) -> None:
    world = World(tmp_path)
    with desk(tmp_path / "state") as nodes:

        def job(ticket: Ticket, assignment: object) -> Written:
            world.attempts.append(ticket)
            raise OSError("state node 10.0.0.5:4711 does not answer: connection timed out")

        batches = world.batches()
        batches.nodes = nodes.nodes
        with pytest.raises(BatchError, match="3 of 3 tries failed"):
            batches.run(0, CUT, job)
        assert world.slept == [0.5, nodes.nodes.timeout]


def test_a_batch_that_is_given_up_tells_its_story(tmp_path: Path) -> None:
    world = World(tmp_path, job_fails=9)
    with pytest.raises(BatchError, match="3 of 3 tries failed; the last: disk full at attempt 3") as caught:
        world.batches().run(0, CUT, world.job)
    error = caught.value
    assert (error.batch_id, error.tries) == (0, 3)
    assert error.story == (
        "batch 0 starts",
        "attempt 1: failed: disk full at attempt 1",
        "attempt 1: lost nodes have been replaced",
        "attempt 2: failed: disk full at attempt 2",
        "attempt 2: lost nodes have been replaced",
        "attempt 3: failed: disk full at attempt 3",
    )
    shown = "".join(traceback.format_exception(error)).splitlines()
    assert "  attempt 1: failed: disk full at attempt 1" in shown
    assert shown[-1] == f"BatchError: {error}", "the cause comes last"
    assert isinstance(error.__cause__, OSError)
    assert Ledger(tmp_path).last is None


def test_a_mistake_in_the_users_code_is_not_tried_again(tmp_path: Path) -> None:
    world = World(tmp_path)

    def job(ticket: Ticket, assignment: object) -> Written:
        world.attempts.append(ticket)
        raise StepError("map_arrow-1 (declared at p.py:3): ZeroDivisionError: by nothing")

    expected = (
        r"^batch 0: map_arrow-1 \(declared at p.py:3\): ZeroDivisionError: by nothing. "
        "Correct it and start the pipeline again to resume with batch 0$"
    )
    with pytest.raises(BatchError, match=expected):
        world.batches().run(0, CUT, job)
    assert len(world.attempts) == 1
    assert not world.slept


def test_state_that_is_lost_is_neither_tried_again_nor_to_be_resumed(tmp_path: Path) -> None:
    world = World(tmp_path)

    def job(ticket: Ticket, assignment: object) -> Written:
        world.attempts.append(ticket)
        raise StateLostError("the state of key groups 0-7 is lost; start with a new checkpoint")

    with pytest.raises(
        BatchError, match=r"batch 0: the state .* is lost; start with a new checkpoint$"
    ) as caught:
        world.batches().run(0, CUT, job)
    assert len(world.attempts) == 1
    lost = "the state of key groups 0-7 is lost; start with a new checkpoint"
    assert caught.value.story == ("batch 0 starts", f"attempt 1: failed: {lost}")


def test_publishing_is_tried_again_and_the_batch_stays_committed(tmp_path: Path) -> None:
    world = World(tmp_path, publish_fails=9)
    with pytest.raises(BatchError, match="publishing to out failed: no route to host") as caught:
        world.batches().run(0, CUT, world.job)
    assert caught.value.story[-1] == "publishing to out failed: no route to host"
    assert world.published == []
    world.publish_fails = 1
    assert world.batches().run(0, CUT, world.job) is None, "it was committed before"
    assert world.published == [(0, "out")]
    assert len(world.attempts) == 1


def test_a_place_that_is_gone_is_not_tried_again(tmp_path: Path) -> None:
    def gone() -> None:
        raise CheckpointError("no longer in the pipeline")

    world = World(tmp_path, before_publish=gone)
    with pytest.raises(CheckpointError):
        world.batches().run(0, CUT, world.job)
    assert world.slept == []


def test_a_driver_that_was_replaced_publishes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    old = world.batches()
    world.batches()
    with pytest.raises(FencedError):
        old.run(0, CUT, world.job)
    assert world.published == []


def test_any_number_of_instructions_run_at_once() -> None:
    count = 40
    together = threading.Barrier(count, timeout=30)

    def do(instruction: protocol.Instruction) -> protocol.Event:
        together.wait()
        return protocol.Published(0)

    with ThreadPoolExecutor(count) as pool:
        done = side_by_side(pool)(do, [protocol.Publish(number) for number in range(count)])
    assert len([*done]) == count


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_instruction_that_raises_waits_for_the_others(failing: int) -> None:
    raised, done = threading.Event(), []

    def do(instruction: protocol.Instruction) -> protocol.Event:
        assert isinstance(instruction, protocol.Publish)
        if instruction.batch_id == failing:
            raised.set()
            raise FencedError("another driver has taken over")
        raised.wait(30)
        done.append(instruction.batch_id)
        return protocol.Published(instruction.batch_id)

    with ThreadPoolExecutor(3) as pool:
        with pytest.raises(FencedError):
            side_by_side(pool)(do, [protocol.Publish(number) for number in range(3)])
        assert len(done) == 2


def test_a_batch_without_rows_closes_all_that_is_open(tmp_path: Path) -> None:
    def closing(seen: Mapping[str, int]) -> int | None:
        return max(seen.values()) + 4_000_000 if seen else None

    world = World(tmp_path, watermark=Watermark({"source-1": 1.0}, {}, closing=closing))
    batches = world.batches()
    found = [batches.open]
    batches.run(0, CUT, world.job)
    found.append(batches.open)
    outcome = batches.run(1, {"source-1": Cut(10, 10)}, world.job)
    assert outcome is not None
    assert (outcome.watermark, outcome.idle) == (9_000_000, ("source-1",))
    assert [*found, batches.open] == [False, True, False]
    batches.watermark = batches.watermark.advance({}, furthest=20_000_000)
    found.append(batches.open)
    assert not found[-1], "a timer that sets another one is not waited for"
    assert (batches.time.closed, batches.time.watermark) == (9_000_000, 9_000_000), "and stays there"


def test_silence_is_counted_by_planned_times_while_one_driver_runs(tmp_path: Path) -> None:
    def silent(batches: Batches, batch_id: int, planned_at: int) -> float:
        cut, at = {"source-1": Cut(batch_id, batch_id + 1)}, datetime.fromtimestamp(planned_at / 1000, UTC)
        batches.run(batch_id, cut, world.job, planned_at=at)
        last = Ledger(tmp_path).last
        assert last is not None
        assert last.planned_at == planned_at
        return last.silent["quiet"]

    world = World(tmp_path, watermark=Watermark({"source-1": 1.0, "quiet": 0.0}, {}))
    first = world.batches()
    assert [silent(first, number, 1000 * number) for number in range(3)] == [0.0, 1.0, 2.0]
    world.watermark = first.watermark
    second = world.batches()
    assert silent(second, 3, 900_000) == 2.0, "nobody listened meanwhile"
    assert silent(second, 4, 900_500) == 2.5
