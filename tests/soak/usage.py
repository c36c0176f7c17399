"""What a run has of the machine, and whether that grows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Use:
    """One look at it."""

    descriptors: int
    """Open files of this process and of its state nodes."""
    threads: int
    processes: int
    """That this one has started and that still run."""
    memory: int
    """Resident bytes of this process and of its state nodes."""
    files: int
    """In the checkpoint."""
    disk: int
    """Bytes of those."""


def use(checkpoint: Path) -> Use:
    children = started()
    processes = with_nodes(children)
    # Of Spark's own records the last hundred stay, which takes longer than most runs.
    kept = [
        Path(place, name)
        for folder in ("ledger", "nodes", "state", "out")
        for place, _, names in os.walk(checkpoint / folder)
        for name in names
    ]
    sizes = [found.st_size for file in kept if (found := known(file.stat))]
    return Use(
        descriptors=sum(map(descriptors, processes)),
        threads=threading.active_count(),
        processes=len(children),
        memory=sum(map(resident, processes)),
        files=len(sizes),
        disk=sum(sizes),
    )


def cpu_seconds() -> float:
    """That this process and its state nodes have used: unlike the clock, whatever else the machine does."""
    ticks = [
        (known((process / "stat").read_text) or ") " + "0 " * 13).rpartition(")")[2].split()[11:13]
        for process in with_nodes(started())
    ]
    return sum(int(tick) for both in ticks for tick in both) / os.sysconf("SC_CLK_TCK")


def started() -> list[str]:
    """The processes that this one has started and that still run."""
    return " ".join(
        known(task.read_text) or "" for task in Path("/proc/self").glob("task/*/children")
    ).split()


def with_nodes(children: Sequence[str]) -> list[Path]:
    """This process, and those of its children that are state nodes."""
    return [Path("/proc/self"), *(Path("/proc") / child for child in children if is_node(child))]


def assert_bounded(uses: Sequence[Use], *, slack: Use) -> dict[str, float]:
    """The last quarter needs no more than the first, but for `slack`; the ratio of both, by what it is of."""
    assert len(uses) >= 8, "too few looks to compare"
    quarter = len(uses) // 4
    grown: dict[str, float] = {}
    for what in (field.name for field in fields(Use)):
        early, late = ([getattr(use, what) for use in part] for part in (uses[:quarter], uses[-quarter:]))
        grown[what] = round(median(late) / max(*early, 1), 2)
        assert median(late) <= max(early) + getattr(slack, what), f"{what}: {early} at first, {late} at last"
    return grown


def descriptors(process: Path) -> int:
    """Open ones; of a process that has ended, none."""
    return len(known(lambda: list((process / "fd").iterdir())) or ())


def resident(process: Path) -> int:
    """Bytes; of one that has ended, 0."""
    return int((known((process / "statm").read_text) or "0 0").split()[1]) * os.sysconf("SC_PAGESIZE")


def is_node(pid: str) -> bool:
    return b"tidegate.state.node.process" in (known(Path(f"/proc/{pid}/cmdline").read_bytes) or b"")


def known(ask: Callable[[], T]) -> T | None:
    """The answer, if what is asked about is still there."""
    try:
        return ask()
    except (FileNotFoundError, ProcessLookupError):
        return None
