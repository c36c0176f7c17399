"""A supervisor that drivers find in a registry, and that leaves when its nodes have moved away."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from threading import Event

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
        known.tell(leaving=False)
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
    """What the registry says of this supervisor."""

    def __init__(self, registry: Registry, host: str, address: str) -> None:
        self._registry = registry
        self._host, self._address = host, address
        self._told: tuple[bool, float] | None = None

    def tell(self, *, leaving: bool) -> None:
        """As soon as it changes, and now and then. Raises StorageError only when it was never told: a
        registry that is away later comes back."""
        if self._told is not None:
            before, told_at = self._told
            if before == leaving and time.monotonic() < told_at + HEARTBEAT:
                return
        try:
            self._registry.put(Registration(self._host, self._address, leaving, time.time()))
        except StorageError as error:
            if self._told is None:
                raise
            _log.warning("this supervisor could not make itself known: %s", error)
            return
        self._told = leaving, time.monotonic()

    def forget(self) -> None:
        try:
            self._registry.remove(self._address)
        except StorageError as error:
            _log.warning("this supervisor is still in the registry: %s", error)
