"""What a task is given besides its rows."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.batch.ticket import Ticket
from tidegate.batch.time import Time
from tidegate.rescale.route import Route
from tidegate.security.security import Security
from tidegate.state.wire.commands import Nonces


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a task of one batch has to know. It is pickled into every task."""

    pipeline: str
    security: Security
    ticket: Ticket
    nonces: Nonces
    """What the batch before has written in this run; empty for the first one."""
    time: Time
    route: Route
    addresses: tuple[str, ...]
    """By node."""
    hosts: tuple[str, ...]
    """By node: the machine that it runs on."""
    timeout: float
    faults: str | None = None
