"""Which workers of a cluster stay, go, are ended or are missing: the decision, without the processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SETTLING = 1.0
"""Seconds after which a master has surely heard that it shall start no more executors."""
PATIENCE = 60.0
"""Seconds that an executor which was started and never seen may still turn up."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker with room for one executor."""

    name: str
    alive: bool
    left: float | None
    """For how many seconds it has been leaving; None when it stays."""
    launched: frozenset[str]
    """The executors that it ever started."""
    seen: frozenset[str]
    """Those of them that ever registered with the driver."""
    live: frozenset[str]
    """Those of them that are there now."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What has to be done to have the right number of seats."""

    start: int
    """So many new ones."""
    leave: tuple[str, ...]
    """These shall go from now on."""
    send_away: tuple[str, ...]
    """Executors that are to finish their tasks and go."""
    end: tuple[str, ...]
    """Seats that nothing runs on, or that are dead."""


def moves(target: int, seats: Sequence[Seat]) -> Moves:
    """The next moves towards `target` seats, where `seats` are in the order in which they were started.

    The youngest leave first. A seat that leaves is ended when its executor is gone, and does not come back.
    """
    staying = [seat for seat in seats if seat.alive and seat.left is None]
    surplus = staying[target:]
    leaving = [seat for seat in seats if seat.alive and seat.left is not None]
    return Moves(
        start=max(0, target - len(staying)),
        leave=tuple(seat.name for seat in surplus),
        send_away=tuple(sorted(id for seat in (*leaving, *surplus) for id in seat.live)),
        end=tuple(seat.name for seat in seats if not seat.alive or _is_empty(seat)),
    )


def _is_empty(seat: Seat) -> bool:
    """Whether it leaves, and nothing runs on it or is about to."""
    if seat.left is None or seat.live or seat.left < SETTLING:
        return False
    return seat.launched <= seat.seen or seat.left >= PATIENCE
