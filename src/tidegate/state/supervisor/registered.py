"""A supervisor that drivers find in a registry, and that leaves when its nodes have moved away."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread

from tidegate.errors import StorageError
from tidegate.security.security import Security
from tidegate.state.fleet.sockets import SocketFolder
from tidegate.state.supervisor.registry import HEARTBEAT, Registration, Registry
from tidegate.state.supervisor.service import SupervisorService
from tidegate.state.supervisor.supervisor import Supervisor
from tidegate.state.wire.access import at
from tidegate.state.wire.serving import announce

_log = logging.getLogger(__name__)

_TIDY = 1.0
"""Seconds between two looks at the nodes."""
_FORGET = 5.0
"""Seconds that the registry has to forget this supervisor."""


def serve(
    host: str,
    port: int,
    *,
    registry: Registry,
    security: Security,
    scratch: Path | None,
    leave: Event,
    end: Event,
) -> None:
    """Serve drivers until `end`, or until `leave` and no node is left. Prints a JSON line when it is known to
    them. Port 0 is any that is free."""
    folder = SocketFolder(scratch)
    try:
        supervisor = Supervisor(host=host, scratch=folder.path())
        service = SupervisorService(supervisor, security=security, bind=at(host, port))
        address = at(host, service.port)
        known = _Known(registry, host, address)
        if known.begin(end):
            announce({"address": address, "pid": os.getpid()})
        while not end.wait(_TIDY):
            supervisor.tidy()
            if leave.is_set():
                supervisor.leave()
                if supervisor.is_empty:
                    break
            known.tell(leaving=leave.is_set())
        service.shutdown()
        supervisor.close()
        known.forget()
    finally:
        folder.close()


class _Known:
    """What the registry says of this supervisor. A thread of its own writes that: a registry that is away
    holds up nothing else."""

    def __init__(self, registry: Registry, host: str, address: str) -> None:
        self._registry = registry
        self._host, self._address = host, address
        self._told: tuple[bool, float] | None = None
        self._problem: Exception | None = None
        """Why it was never told."""
        self._telling: Thread | None = None

    def begin(self, end: Event) -> bool:
        """For the first time; whether it was told before `end`. Raises StorageError when that fails."""
        self.tell(leaving=False)
        assert self._telling is not None
        while self._telling.is_alive() and not end.is_set():
            self._telling.join(_TIDY)
        if self._problem is not None:
            raise self._problem
        return self._told is not None

    def tell(self, *, leaving: bool) -> None:
        """As soon as it changes, and now and then. A registry that is away comes back."""
        if self._telling is not None and self._telling.is_alive():
            return
        if self._told is not None:
            before, told_at = self._told
            if before == leaving and time.monotonic() < told_at + HEARTBEAT:
                return
        self._telling = _beside(partial(self._put, leaving=leaving))

    def forget(self) -> None:
        """What is being told comes first, so that it does not stay."""
        forgetting = _beside(self._remove)
        forgetting.join(_FORGET)
        if forgetting.is_alive():
            _log.warning("this supervisor is still in the registry, which is away")

    def _put(self, *, leaving: bool) -> None:
        try:
            self._registry.put(Registration(self._host, self._address, leaving, time.time()))
        except Exception as error:
            if self._told is None:
                self._problem = error
            else:
                _log.warning("this supervisor could not make itself known: %s", error)
        else:
            self._told = leaving, time.monotonic()

    def _remove(self) -> None:
        if self._telling is not None:
            self._telling.join()
        try:
            self._registry.remove(self._address)
        except StorageError as error:
            _log.warning("this supervisor is still in the registry: %s", error)


def _beside(work: Callable[[], None]) -> Thread:
    """Set going; it does not keep the process alive."""
    thread = Thread(target=work, name="registry", daemon=True)
    thread.start()
    return thread
