"""Drivers in processes of their own, what their queries note, and the processes that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_ROOT = Path(__file__).parents[2]
_PATIENCE = 240.0
"""Seconds after which something that should happen is taken not to happen."""


def await_that(condition: Callable[[], bool], what: str, *, told: Callable[[], str] = str) -> None:
    """Wait until something is so; `told` adds to the complaint that it is not."""
    until = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"it never came to be that {what}; {told()}")
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch as the query noted it."""

    id: int
    values: tuple[int, ...]
    executors: frozenset[str]
    workers: frozenset[int]
    """The Python processes that saw its rows."""
    attempts: int
    """How many attempts its most unlucky task took."""
    packages: frozenset[str]
    """Where its tasks found tidegate."""
    warm: frozenset[str]
    """The executors whose Python had been warmed up."""


class Child(ABC):
    """`python -m` something in `folder`, where its temporary files go too; a block that ends it."""

    def __init__(self, arguments: Sequence[str], folder: Path, **pipes: Any) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the child
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=folder,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)},
            **pipes,
        )

    @abstractmethod
    def batches(self) -> Sequence[object]:
        """Those that are told of by now."""

    def await_more(self, count: int = 3) -> None:
        """Wait for so many more batches."""
        first = len(self.batches())
        await_that(lambda: len(self.batches()) >= first + count, "there are more batches", told=self.said)

    def said(self) -> str:
        self._errors.seek(0)
        return f"the process said: {self._errors.read()[-5000:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()
        self._errors.close()


class Driver(Child):
    """`tests.cluster.driver` with its files in `folder`."""

    def __init__(self, folder: Path, where: str) -> None:
        self._notes = folder / "batches"
        self._notes.touch()
        arguments = ["tests.cluster.driver", str(folder), where]
        super().__init__(arguments, folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._answer() == "ready"

    def ask(self, command: str) -> Any:
        """What the driver answers."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def batches(self) -> list[Batch]:
        """Those that are noted by now."""
        lines = self._notes.read_text().split("\n")[:-1]  # Behind the last line end a batch is being written.
        return [_batch(json.loads(line)) for line in lines]

    def await_batch(self, wanted: Callable[[Batch], bool], what: str) -> Batch:
        """The first batch from now on that is as wanted."""
        seen = len(self.batches())
        await_that(lambda: any(map(wanted, self.batches()[seen:])), what, told=self.said)
        return next(filter(wanted, self.batches()[seen:]))

    def await_executors(self, count: int) -> set[str]:
        """Wait until there are so many; their ids."""
        await_that(
            lambda: len(self.ask("executors")) == count, f"there are {count} executors", told=self.said
        )
        return set(self.ask("executors"))

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.said()
        return json.loads(line)


def _batch(note: dict[str, Any]) -> Batch:
    values, executors, pids, attempts, packages, warm = zip(*note["rows"], strict=True)
    return Batch(
        id=note["id"],
        values=values,
        executors=frozenset(executors),
        workers=frozenset(pids),
        attempts=1 + max(attempts),
        packages=frozenset(packages),
        warm=frozenset(executor for executor, is_warm in zip(executors, warm, strict=True) if is_warm),
    )


def is_whole(batches: Sequence[Batch]) -> bool:
    """Whether no batch and no row is missing or there twice."""
    values = sorted(value for batch in batches for value in batch.values)
    return [batch.id for batch in batches] == list(range(len(batches))) and values == list(range(len(values)))


@dataclass(frozen=True, slots=True)
class Process:
    """One process: an id and a start, since ids are used again."""

    pid: int
    began: str
    command: str

    @property
    def alive(self) -> bool:
        return _status(self.pid)[2] == self.began and _status(self.pid)[0] != "Z"


def family(pid: int) -> list[Process]:
    """All processes that come of this one, without itself."""
    children: dict[str, list[int]] = defaultdict(list)
    for place in Path("/proc").glob("[0-9]*"):
        children[_status(int(place.name))[1]].append(int(place.name))
    found: list[Process] = []
    below = list(children[str(pid)])
    while below:
        one = below.pop()
        found.append(Process(one, _status(one)[2], _command(one)))
        below += children[str(one)]
    return [process for process in found if process.began]  # Some end while one looks.


def alive(processes: Sequence[Process]) -> list[Process]:
    return [process for process in processes if process.alive]


def _status(pid: int) -> tuple[str, str, str]:
    """State, parent and start."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", "", ""
    return fields[0], fields[1], fields[19]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""
