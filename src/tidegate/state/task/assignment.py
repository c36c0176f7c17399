"""What a task is given besides its rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.batch.ticket import Ticket
from tidegate.batch.time import Time
from tidegate.rescale.route import Route
from tidegate.state.wire.access import Identity
from tidegate.state.wire.commands import Nonces


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a task of one batch has to know. It is pickled into every task."""

    pipeline: str
    token: str = field(repr=False)
    ticket: Ticket
    nonces: Nonces
    """What the batch before has written in this run; empty for the first one."""
    time: Time
    route: Route
    addresses: tuple[str, ...]
    """By node."""
    timeout: float
    identity: Identity | None = field(default=None, repr=False)
    faults: str | None = None
