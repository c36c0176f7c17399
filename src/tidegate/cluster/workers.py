"""Which workers of a cluster stay, go, are ended or are missing: the decision, without the processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SETTLING = 1.0
"""Seconds after which a master has surely heard that it shall start no more executors."""
PATIENCE = 60.0
"""Seconds that an executor which was started and never seen may still turn up."""


@dataclass(frozen=True, slots=True)
class WorkerState:
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
class WorkerChanges:
    """What has to be done to have the right number of workers."""

    start: int
    """So many new ones."""
    leave: tuple[str, ...]
    """These shall go from now on."""
    send_away: tuple[str, ...]
    """Executors that are to finish their tasks and go."""
    end: tuple[str, ...]
    """Workers that nothing runs on, or that are dead."""


def changes(target: int, workers: Sequence[WorkerState]) -> WorkerChanges:
    """The next moves towards `target` workers, where `workers` are in the order in which they were started.

    The youngest leave first. A worker that leaves is ended when its executor is gone, and does not come back.
    """
    staying = [worker for worker in workers if worker.alive and worker.left is None]
    surplus = staying[target:]
    leaving = [worker for worker in workers if worker.alive and worker.left is not None]
    return WorkerChanges(
        start=max(0, target - len(staying)),
        leave=tuple(worker.name for worker in surplus),
        send_away=tuple(sorted(id for worker in (*leaving, *surplus) for id in worker.live)),
        end=tuple(worker.name for worker in workers if not worker.alive or _is_empty(worker)),
    )


def _is_empty(worker: WorkerState) -> bool:
    """Whether it leaves, and nothing runs on it or is about to."""
    if worker.left is None or worker.live or worker.left < SETTLING:
        return False
    return worker.launched <= worker.seen or worker.left >= PATIENCE
