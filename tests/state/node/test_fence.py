"""Where a node stands: which requests it takes, whatever is lost, repeated or late."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidegate.batch.ticket import Ticket
from tidegate.errors import FencedError, StaleError
from tidegate.state.node.fence import Fence

OPEN = Fence().begin(Ticket(1, 0))
REQUESTS: dict[str, Callable[[Fence, Ticket], object]] = {
    "begin": Fence.begin,
    "read": Fence.read,
    "stage": Fence.stage,
    "prepare": Fence.prepare,
    "commit": Fence.commit,
}


def test_a_batch_goes_from_begin_to_commit() -> None:
    ticket = Ticket(1, 0)
    OPEN.read(ticket)
    OPEN.stage(ticket)
    assert OPEN.prepare(ticket).commit(ticket).phase == "committed"


@pytest.mark.parametrize("request_name", REQUESTS)
def test_an_older_generation_is_refused_for_good(request_name: str) -> None:
    newer = Fence().begin(Ticket(2, 5))
    with pytest.raises(FencedError, match="generation 2 has taken over"):
        REQUESTS[request_name](newer, Ticket(1, 5))


@pytest.mark.parametrize("request_name", ["begin", "read", "stage", "prepare", "commit"])
def test_a_straggler_of_an_earlier_attempt_is_refused(request_name: str) -> None:
    second = OPEN.begin(Ticket(1, 0, 1))
    with pytest.raises(StaleError):
        REQUESTS[request_name](second, Ticket(1, 0, 0))


@pytest.mark.parametrize("request_name", ["read", "stage", "prepare", "commit"])
def test_a_batch_that_was_not_begun_is_refused(request_name: str) -> None:
    with pytest.raises(StaleError, match="has not reached this node"):
        REQUESTS[request_name](OPEN, Ticket(1, 1))


def test_nothing_is_read_or_staged_once_the_batch_is_prepared() -> None:
    prepared = OPEN.prepare(OPEN.ticket)
    for late in (prepared.read, prepared.stage):
        with pytest.raises(StaleError):
            late(OPEN.ticket)


def test_a_batch_that_is_not_prepared_cannot_be_committed() -> None:
    with pytest.raises(StaleError):
        OPEN.commit(OPEN.ticket)


tickets = st.builds(Ticket, st.integers(1, 3), st.integers(0, 3), st.integers(0, 2))


class AnyOrder(RuleBasedStateMachine):
    """Requests of any driver and attempt in any order, against a plain account of what happened."""

    def __init__(self) -> None:
        super().__init__()
        self.fence = Fence()
        self.begun: Ticket | None = None
        self.durable: set[Ticket] = set()
        """Prepared, in the eyes of a driver."""
        self.current: set[Ticket] = set()

    def send(self, name: str, ticket: Ticket) -> bool:
        before = self.fence
        fenced = self.begun is not None and ticket.generation < self.begun.generation
        try:
            after = REQUESTS[name](before, ticket)
        except FencedError:
            assert fenced
            return False
        except StaleError:
            assert not fenced
            return False
        assert not fenced, "a driver that was replaced was heard"
        if isinstance(after, Fence):
            self.fence = after
        assert self.fence.ticket == ticket, "taken for another batch than the one at work"
        return True

    @rule(ticket=tickets)
    def begin(self, ticket: Ticket) -> None:
        taken = self.send("begin", ticket)
        assert taken == (self.begun is None or ticket >= self.begun)
        if taken:
            self.begun = ticket
            assert self.fence.phase == "open" or ticket in self.durable

    @rule(ticket=tickets)
    def read(self, ticket: Ticket) -> None:
        if self.send("read", ticket):
            assert self.fence.phase == "open"
            assert ticket not in self.current, "its own writes would be read"

    @rule(ticket=tickets)
    def stage(self, ticket: Ticket) -> None:
        if self.send("stage", ticket):
            assert ticket not in self.current

    @rule(ticket=tickets)
    def prepare(self, ticket: Ticket) -> None:
        if self.send("prepare", ticket):
            self.durable.add(ticket)

    @rule(ticket=tickets)
    def commit(self, ticket: Ticket) -> None:
        if self.send("commit", ticket):
            assert ticket in self.durable
            self.current.add(ticket)

    @rule()
    def repeat(self) -> None:
        """A request that was taken may come again: what stands does not change by it."""
        ticket, phase = self.fence.ticket, self.fence.phase
        names = {"open": "begin", "prepared": "prepare", "committed": "commit"}
        if phase in names:
            assert REQUESTS[names[phase]](self.fence, ticket) == self.fence
        if phase in ("prepared", "committed"):
            assert self.fence.begin(ticket) == self.fence

    @invariant()
    def stands_where_the_latest_begin_put_it(self) -> None:
        if self.begun is not None:
            assert self.fence.ticket == self.begun

    @invariant()
    def phase_tells_what_is_durable(self) -> None:
        if self.fence.phase in ("prepared", "committed"):
            assert self.fence.ticket in self.durable
        assert (self.fence.phase == "committed") == (self.fence.ticket in self.current)


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
