"""Fault points: named places in the batch protocol where a test can make something go wrong.

The code calls `reach` where it passes one. What is to happen there is planned by `tidegate.testing.faults`
and found by every process of a run through its environment. Without a plan a point costs one comparison.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidegate.errors import TidegateError

POINTS = (
    "driver.begin",
    "driver.begun",
    "driver.written",
    "driver.prepared",
    "driver.appended",
    "driver.committed",
    "driver.published",
    "node.begin",
    "node.get",
    "node.stage",
    "node.prepare",
    "node.prepared",
    "node.commit",
    "node.committed",
    "node.compaction",
    "task.begin",
    "task.fetched",
    "task.staged",
)
"""In the order in which a batch passes them; the first word is the kind of process."""

ProcessKind = Literal["driver", "node", "executor"]
Action = Literal["crash", "error", "hang"]
VARIABLE = "TIDEGATE_FAULTS"


class InjectedError(TidegateError, RuntimeError):
    """The error of a fault point. Operator action: none; a test asked for it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`crash` kills the process with SIGKILL, or every process of the kind `victim` when one is named; `hang`
    holds the thread for `seconds`, or until `release`; `error` raises."""

    point: str
    action: Action
    batch_id: int | None = None
    """None: the first batch that comes by."""
    victim: ProcessKind | None = None
    seconds: float = 3600.0

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise ValueError(f"unknown fault point {self.point!r}; known: {', '.join(POINTS)}")

    @property
    def name(self) -> str:
        return "-".join(
            str(part) for part in (self.point, self.action, self.victim, self.batch_id) if part is not None
        )


def place() -> str | None:
    """Where the plan of this process is, for one that does not inherit its environment: a Spark task."""
    return os.environ.get(VARIABLE)


def adopt(place: str | None) -> None:
    """Take over the plan of another process."""
    if place == os.environ.get(VARIABLE):
        return
    if place is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = place
    load()


def enter(kind: ProcessKind) -> None:
    """Tell which kind of process this is, so that a fault elsewhere can make it its victim."""
    if _plan:
        me = os.getpid()
        (_folder() / f"{kind}-{me}.pid").write_text(_birth(me))


def reach(point: str, batch_id: int) -> None:
    """Called where the protocol passes a point."""
    if _plan:
        _strike(point, batch_id)


def _strike(point: str, batch_id: int) -> None:
    for fault in _plan:
        if fault.point != point or fault.batch_id not in (None, batch_id):
            continue
        try:
            (_folder() / f"{fault.name}.struck").touch(exist_ok=False)
        except FileExistsError:
            continue
        if fault.action == "error":
            raise InjectedError(f"injected at {point} in batch {batch_id}")
        if fault.action == "hang":
            _hang(fault)
        elif fault.victim is None:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            _kill_all(fault.victim)


def _hang(fault: Fault) -> None:
    until, released = time.monotonic() + fault.seconds, _folder() / f"{fault.name}.released"
    while time.monotonic() < until and not released.exists():
        time.sleep(min(0.05, fault.seconds))


def _kill_all(kind: ProcessKind) -> None:
    found = {int(path.stem.rpartition("-")[2]): path for path in _folder().glob(f"{kind}-*.pid")}
    # This process, when it is one of them, comes last: nobody would kill the others after it.
    for pid in sorted(found, key=lambda pid: pid == os.getpid()):
        try:
            born = found[pid].read_text()
            found[pid].unlink()
        except FileNotFoundError:
            continue
        if born == _birth(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _birth(pid: int) -> str:
    """When a process began, where the system tells: another one may have got the number of one that ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _folder() -> Path:
    return Path(os.environ[VARIABLE]).parent


def load() -> None:
    """Take up the plan that the environment names."""
    global _plan
    file = place()
    _plan = tuple(Fault(**fault) for fault in json.loads(Path(file).read_text())) if file else ()


_plan: tuple[Fault, ...] = ()
load()
