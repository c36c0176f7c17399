"""Which workers of a cluster to start, retire and stop: the decision, without the processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MASTER_DELAY = 1.0
"""Seconds after which a master has surely heard that it shall start no more executors."""
REGISTRATION_TIMEOUT = 60.0
"""Seconds that an executor has to register with the driver after its worker was retired."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker with room for one executor."""

    name: str
    alive: bool
    executors: frozenset[str] = frozenset()
    """The ids of its executors that are registered with the driver."""
    starting: bool = False
    """Whether it has started an executor that has not registered yet."""
    retired_for: float | None = None
    """Seconds since it was retired; None when it stays."""


@dataclass(frozen=True, slots=True)
class WorkerChanges:
    """What has to be done to have the right number of workers."""

    start: int = 0
    """How many new ones."""
    retire: tuple[str, ...] = ()
    """Workers that are to go once their executors have ended."""
    decommission: tuple[str, ...] = ()
    """Executors that are to finish their tasks and end."""
    stop: tuple[str, ...] = ()
    """Workers that are dead, or retired and empty."""


def reconcile(target: int, workers: Sequence[WorkerState]) -> WorkerChanges:
    """The next changes towards `target` workers; `workers` are in the order in which they were started.

    The youngest are retired first. A retired worker is stopped when its executor is gone, and is not taken
    back.
    """
    staying = [worker for worker in workers if worker.alive and worker.retired_for is None]
    surplus = staying[target:]
    retired = [worker for worker in workers if worker.alive and worker.retired_for is not None]
    return WorkerChanges(
        start=max(0, target - len(staying)),
        retire=tuple(worker.name for worker in surplus),
        decommission=tuple(sorted(id for worker in (*retired, *surplus) for id in worker.executors)),
        stop=tuple(worker.name for worker in workers if not worker.alive or _is_empty(worker)),
    )


def _is_empty(worker: WorkerState) -> bool:
    """Whether it is retired, and nothing runs on it or is about to."""
    if worker.retired_for is None or worker.executors or worker.retired_for < MASTER_DELAY:
        return False
    return not worker.starting or worker.retired_for >= REGISTRATION_TIMEOUT
