"""Named fault points: places in the batch protocol where a test can make something go wrong.

    from tidegate.testing import faults

    with faults.planned(tmp_path, [faults.Fault("node.prepare.written", "crash", batch_id=3)]):
        pipeline.run(...)

Every process of the run takes the plan from the environment. Each fault strikes once, in the first process
that reaches its point in its batch; `faults.struck(folder)` tells which did. Without a plan a point costs
one comparison.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
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
    "node.merge",
    "task.begin",
    "task.fetched",
    "task.staged",
)
"""In the order in which a batch passes them; the first word is the kind of process."""

Part = Literal["driver", "node", "executor"]
Action = Literal["crash", "error", "hang"]
_VARIABLE = "TIDEGATE_FAULTS"


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
    victim: Part | None = None
    seconds: float = 3600.0

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise ValueError(f"there is no fault point {self.point!r}; there are: {', '.join(POINTS)}")

    @property
    def name(self) -> str:
        return "-".join(
            str(part) for part in (self.point, self.action, self.victim, self.batch_id) if part is not None
        )


@contextmanager
def planned(folder: Path, plan: Sequence[Fault]) -> Iterator[None]:
    """Let these faults strike in this process and in those that it starts meanwhile."""
    os.environ.update(environment(folder, plan))
    _load()
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        _load()


def environment(folder: Path, plan: Sequence[Fault]) -> dict[str, str]:
    """The same for a process that is started with these environment variables."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "plan.json"
    file.write_text(json.dumps([asdict(fault) for fault in plan]))
    return {_VARIABLE: str(file)}


def place() -> str | None:
    """Where the plan of this process is, for one that does not inherit its environment: a Spark task."""
    return os.environ.get(_VARIABLE)


def adopt(place: str | None) -> None:
    """Take over the plan of another process."""
    if place == os.environ.get(_VARIABLE):
        return
    if place is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = place
    _load()


def struck(folder: Path) -> set[str]:
    """Names of the faults that struck."""
    return {path.stem for path in folder.glob("*.struck")}


def release(folder: Path, fault: Fault) -> None:
    """End a `hang`."""
    (folder / f"{fault.name}.released").touch()


def enter(part: Part) -> None:
    """Tell which kind of process this is, so that a fault elsewhere can make it its victim."""
    if _plan:
        me = os.getpid()
        (_folder() / f"{part}-{me}.pid").write_text(_birth(me))


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


def _kill_all(part: Part) -> None:
    found = {int(path.stem.rpartition("-")[2]): path for path in _folder().glob(f"{part}-*.pid")}
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
    return Path(os.environ[_VARIABLE]).parent


def _load() -> None:
    global _plan
    file = place()
    _plan = tuple(Fault(**fault) for fault in json.loads(Path(file).read_text())) if file else ()


_plan: tuple[Fault, ...] = ()
_load()
