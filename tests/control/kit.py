"""A pipeline in memory that can be steered like a real one, and an HTTP call without any client of ours."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from tidegate.control.controls import NodeLine, Status
from tidegate.errors import ControlError
from tidegate.rescale.model import Ask, Latency, Moved, MoveLine, PlanView, Rescale

GROUPS = 16
GROUP_BYTES = 1_000_000
GROUP_KEYS = 500


class Toy:
    """16 key groups, and rescales that go on by a part with each `tick`.

    A rescale that is `starting` is replaced by the next one; after that, the next one has to wait.
    """

    def __init__(
        self, *, name: str = "toy", nodes: int = 2, steps: Sequence[str] = ("count", "join"), parts: int = 4
    ) -> None:
        self._lock = threading.RLock()
        self._name = name
        self._owners = _spread(nodes)
        self._parallelism = 4
        self._steps = tuple(steps)
        self._parts = parts
        self._history: list[Rescale] = []
        self.stopped = threading.Event()
        self.saved: list[str] = []

    def status(self) -> Status:
        with self._lock:
            nodes = max(self._owners) + 1
            return Status(
                pipeline=self._name,
                phase="stopping" if self.stopped.is_set() else "running",
                batch_id=17,
                rows_per_second=43_210.0,
                batch_seconds=0.64,
                interval_seconds=1.0,
                latency_p50=0.82,
                lag=1_250,
                parallelism=self._parallelism,
                route=1 + len(self._history),
                nodes=tuple(self._node(index) for index in range(nodes)),
                steps=self._steps,
                rescale=self._history[-1] if self._history else None,
            )

    def plan(self, ask: Ask) -> PlanView:
        with self._lock:
            self._refuse_nonsense(ask)
            target = self._target(ask)
            before, after = max(self._owners) + 1, max(target) + 1
            moved = [group for group in range(GROUPS) if self._owners[group] != target[group]]
            ways = sorted({(self._owners[group], target[group]) for group in moved})
            lines = [_line(way, [g for g in moved if (self._owners[g], target[g]) == way]) for way in ways]
            return PlanView(
                ask=ask,
                strategy=ask.strategy or "hybrid",
                nodes=(before, after),
                parallelism=(self._parallelism, ask.parallelism or self._parallelism),
                moves=tuple(lines),
                groups_moved=len(moved),
                bytes_moved=len(moved) * GROUP_BYTES,
                busiest=(_busiest(self._owners), _busiest(target)),
                note="No batch waits for state; it follows in the background.",
            )

    def apply(self, ask: Ask) -> Rescale:
        with self._lock:
            plan = self.plan(ask)
            self._make_way()
            made = Rescale(
                number=len(self._history) + 1,
                ask=ask,
                strategy=plan.strategy,
                phase="starting",
                asked_at="2026-01-01T12:00:00+00:00",
                nodes=plan.nodes,
                parallelism=plan.parallelism,
                groups_moved=plan.groups_moved,
                groups_left=plan.groups_moved,
                before=Latency(0.4, 0.9),
                steady_gap=1.0,
            )
            self._history.append(made)
            return made

    def savepoint(self, place: str) -> str:
        if place in self.saved:
            raise ControlError(f"{place} is there already; choose another folder")
        self.saved.append(place)
        return place

    def stop(self) -> None:
        self.stopped.set()

    def history(self) -> tuple[Rescale, ...]:
        with self._lock:
            return tuple(self._history)

    def tick(self) -> None:
        """One batch goes by."""
        with self._lock:
            if self._history and not self._history[-1].over:
                self._history[-1] = self._onward(self._history[-1])

    def fail(self, why: str) -> None:
        with self._lock:
            self._history[-1] = replace(self._history[-1], phase="failed", why=why)

    def _onward(self, now: Rescale) -> Rescale:
        if now.phase == "starting":
            if now.strategy in ("eager", "restart"):
                return replace(now, phase="holding")
            return replace(now, phase="moving", first_batch=18, seconds_to_first_batch=0.82)
        step = -(-now.groups_moved // self._parts)
        left = max(0, now.groups_left - step)
        came = now.groups_moved - left
        on_demand = min(came, 2)
        moved = replace(
            now,
            groups_left=left,
            on_demand=_moved(on_demand),
            background=_moved(came - on_demand),
            during=Latency(0.45, 1.3),
            longest_gap=1.2,
        )
        if left:
            return moved
        self._owners = self._target(now.ask)
        self._parallelism = now.parallelism[1]
        return replace(
            moved,
            phase="settled",
            first_batch=18,
            seconds_to_first_batch=0.82,
            seconds_to_settled=5.5,
            after=Latency(0.3, 0.8),
        )

    def _refuse_nonsense(self, ask: Ask) -> None:
        if ask.nodes is not None and not 1 <= ask.nodes <= GROUPS:
            raise ControlError(f"{ask.nodes} nodes: there are {GROUPS} key groups, so 1 to {GROUPS} it is")
        if ask.step is not None and ask.step not in self._steps:
            raise ControlError(f"there is no keyed step {ask.step!r}")

    def _make_way(self) -> None:
        last = self._history[-1] if self._history else None
        if last is None or last.over:
            return
        if last.phase != "starting":
            raise ControlError(
                f"rescale {last.number} is under way; ask again when it has settled",
                story=(f"rescale {last.number} was asked for", "it switched to its route"),
            )
        self._history[-1] = replace(last, phase="replaced")

    def _target(self, ask: Ask) -> list[int]:
        if ask.kind == "rebalance":
            return [*self._owners[:-1], 0]
        return _spread(ask.nodes) if ask.nodes is not None else self._owners

    def _node(self, index: int) -> NodeLine:
        groups = [group for group in range(GROUPS) if self._owners[group] == index]
        return NodeLine(
            index=index,
            name=f"node-{index}",
            address=f"127.0.0.1:{7000 + index}",
            pid=100 + index,
            groups=_ranges(groups),
            load=len(groups) / GROUPS,
            bytes=len(groups) * GROUP_BYTES,
        )


@contextlib.contextmanager
def ticking(toy: Toy, seconds: float = 0.02) -> Iterator[None]:
    """Batches go by meanwhile."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            toy.tick()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def await_that(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


def call(
    url: str,
    method: str,
    path: str,
    body: object = None,
    *,
    token: str | None = None,
    raw: bytes | None = None,
) -> tuple[int, Any]:
    """Status and JSON of the answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    content = raw if raw is not None else None if body is None else json.dumps(body).encode()
    if content is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, path, body=content, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        kind = answer.headers.get_content_type()
        return answer.status, json.loads(text) if kind == "application/json" else text
    finally:
        connection.close()


def terminal(*arguments: object, columns: int = 80, interrupt_at: str | None = None) -> tuple[int, str]:
    """Exit code and output of `tidegate` on a terminal; Ctrl-C once this text is seen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "tidegate.cli.main", *map(str, arguments)]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "", "LINES": ""},
        start_new_session=True,
        # A shell that starts the tests in the background has them, and so their children, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # how a terminal that nobody writes to any more is told
        while part := os.read(ours, 65_536):
            seen += part
            if interrupt_at is not None and interrupt_at.encode() in seen:
                interrupt_at = None
                process.send_signal(signal.SIGINT)
    os.close(ours)
    return process.wait(30), seen.decode()


def _spread(nodes: int) -> list[int]:
    return [group * nodes // GROUPS for group in range(GROUPS)]


def _line(way: tuple[int, int], groups: list[int]) -> MoveLine:
    return MoveLine(
        source=way[0],
        target=way[1],
        groups=_ranges(groups),
        rows=len(groups) * GROUP_KEYS,
        bytes=len(groups) * GROUP_BYTES,
        load=len(groups) / GROUPS,
    )


def _moved(groups: int) -> Moved:
    return Moved(groups * GROUP_KEYS, groups * GROUP_BYTES)


def _busiest(owners: list[int]) -> float:
    return max(owners.count(node) for node in set(owners)) / GROUPS


def _ranges(groups: list[int]) -> str:
    """As `0-3,7`."""
    spans: list[list[int]] = []
    for group in groups:
        if spans and spans[-1][1] == group - 1:
            spans[-1][1] = group
        else:
            spans.append([group, group])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
