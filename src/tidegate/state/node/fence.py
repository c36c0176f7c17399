"""Where a state node stands between two batches, and which requests it takes there. No I/O.

A node opens a batch with `begin`, takes writes for it with `stage`, makes them durable with `prepare`
and makes them current with `commit`. Every request carries (generation, batch, attempt). An older
generation is refused for good, because its driver was replaced; so is a straggler of an earlier attempt. Any
other repetition changes nothing, because a request or its answer may be lost and sent again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tidegate.batch.ticket import NO_TICKET, Ticket
from tidegate.errors import FencedError, StaleError

NodePhase = Literal["idle", "open", "prepared", "committed"]


@dataclass(frozen=True, slots=True)
class Fence:
    """What a node is at. `ticket` is that of the latest `begin`."""

    ticket: Ticket = NO_TICKET
    phase: NodePhase = "idle"

    def begin(self, ticket: Ticket) -> Fence:
        """Open a batch, whatever was open. The caller drops what was staged, and brings the state to the
        batch before this one."""
        self._fence(ticket)
        if ticket == self.ticket and self.phase in ("prepared", "committed"):
            return self  # A repetition that was held up on its way.
        if ticket < self.ticket:
            raise StaleError(f"{ticket} is over: {self.ticket} has begun")
        return Fence(ticket, "open")

    def read(self, ticket: Ticket) -> None:
        """A task wants the state before its batch: only while that batch is open."""
        self._expect(ticket, ("open",), "read")

    def stage(self, ticket: Ticket) -> None:
        """A task brings what it wrote."""
        self._expect(ticket, ("open",), "stage")

    def prepare(self, ticket: Ticket) -> Fence:
        """All tasks are through. When it is prepared already, the caller gives the same answer again."""
        self._expect(ticket, ("open", "prepared", "committed"), "prepare")
        return self if self.phase != "open" else replace(self, phase="prepared")

    def commit(self, ticket: Ticket) -> Fence:
        """The batch is in the ledger."""
        self._expect(ticket, ("prepared", "committed"), "commit")
        return replace(self, phase="committed")

    def _expect(self, ticket: Ticket, phases: tuple[NodePhase, ...], action: str) -> None:
        self._fence(ticket)
        if ticket != self.ticket or self.phase not in phases:
            raise StaleError(
                f"cannot {action} for {ticket}: the node is at {self.ticket}, {self.phase}; "
                "the request is late, or `begin` has not reached this node"
            )

    def _fence(self, ticket: Ticket) -> None:
        if ticket.generation < self.ticket.generation:
            raise FencedError(
                f"{ticket} is refused: a driver of generation {self.ticket.generation} has taken over"
            )
