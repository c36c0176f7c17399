"""The state nodes on a machine that were started for drivers elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tidegate.errors import StateError
from tidegate.state.fleet import child
from tidegate.state.fleet.child import Child
from tidegate.state.node.lease import Lease
from tidegate.state.node.spec import NodeSpec
from tidegate.state.supervisor.commands import Answer, Command, End, Listening, Look, Report, Start, Stop

_log = logging.getLogger(__name__)

_END = 5.0
"""Seconds that nodes have to end by themselves when the supervisor does."""


class Supervisor:
    """Nodes are children of this process and end with it, and each ends by itself when its lease runs out."""

    def __init__(
        self,
        *,
        host: str,
        scratch: Path,
        lease: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nodes listen at `host`. `lease`, in seconds, is how long the supervisor goes on without a command,
        if it belongs to one driver; None: until it is ended."""
        self._host = host
        self._scratch = scratch
        self._clock = clock
        self._lease = Lease.starting(lease, clock())
        self._children: dict[str, Child] = {}
        self._change = threading.Lock()
        self._leaving = False
        self.stopped = threading.Event()
        """Whether its driver wants it to end."""
        self._starting = 0
        scratch.mkdir(parents=True, exist_ok=True)

    @property
    def lease_left(self) -> float | None:
        """Seconds until the supervisor has to give up, 0 or less when it has to now; None: never."""
        return self._lease.left(self._clock())

    @property
    def is_empty(self) -> bool:
        """Whether there is no node, and none is being started."""
        with self._change:
            return not self._children and not self._starting

    def handle(self, command: Command) -> Answer:
        """Carry out a command; from any thread."""
        with self._change:
            self._lease = self._lease.renewed(0, self._clock())
        match command:
            case Start(name, spec, gently):
                return self._start(name, spec, gently=gently)
            case End(name, milliseconds):
                self._end(name, milliseconds / 1000)
            case Stop():
                self._stop()
            case Look():
                pass
        return self.report()

    def report(self) -> Report:
        self.tidy()
        with self._change:
            return Report(tuple(sorted(self._children)), self._leaving)

    def tidy(self) -> None:
        """Forget nodes that have ended by themselves, and remove what they left."""
        with self._change:
            ended = [name for name, node in self._children.items() if not node.alive]
        for name in ended:
            self._end(name, 0.0)

    def leave(self) -> None:
        """Take no more nodes: their drivers see it, and move them away."""
        with self._change:
            self._leaving = True

    def close(self) -> None:
        """End all nodes, and start no more."""
        self.leave()
        with self._change:
            children = list(self._children.values())
        for node in children:
            node.request_end()
        until = time.monotonic() + _END
        for node in children:
            self._end(node.name, max(0.0, until - time.monotonic()))

    def _stop(self) -> None:
        if self._lease.seconds is None:
            raise StateError("this supervisor serves several drivers and does not end for one of them")
        self.stopped.set()

    def _start(self, name: str, spec: NodeSpec, *, gently: bool) -> Listening:
        with self._change:
            if self._leaving:
                raise StateError(f"the supervisor on {self._host} is leaving and starts no more nodes")
            self._starting += 1
        try:
            # It is reached where the supervisor is.
            node = child.start(spec, name=name, scratch=self._scratch, bind=self._host, gently=gently)
            with self._change:
                self._children[name] = node
        finally:
            with self._change:
                self._starting -= 1
        _log.info("%s of %s listens at %s", name, spec.pipeline, node.address)
        return Listening(node.address, node.pid)

    def _end(self, name: str, seconds: float) -> None:
        with self._change:
            node = self._children.get(name)
        if node is None:
            return
        node.end(seconds)
        with self._change:
            self._children.pop(name, None)
        child.log_of(self._scratch, name).unlink(missing_ok=True)
        _log.info("%s has ended", name)
