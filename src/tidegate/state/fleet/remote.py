"""Machines whose supervisors somebody else has started, and that a registry tells of."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from tidegate.errors import HostError, StorageError
from tidegate.security.security import Security
from tidegate.state.supervisor.client import SupervisorClient
from tidegate.state.supervisor.registry import Registration, Registry

_log = logging.getLogger(__name__)

_FRESH = 1.0
"""Seconds for which what the registry said is taken as it is."""


class RemoteHosts:
    """Supervisors come and go as their registrations do. Several on one machine are several hosts."""

    def __init__(self, registry: Registry, *, security: Security) -> None:
        self._registry = registry
        self._security = security
        self._clients: dict[str, SupervisorClient] = {}
        self._registered: dict[str, Registration] = {}
        self._read_at: float | None = None
        self._change = threading.Lock()

    def names(self) -> Sequence[str]:
        return list(self._read())

    def leaving(self) -> frozenset[str]:
        return frozenset(host for host, found in self._read().items() if found.leaving)

    def known(self, host: str) -> SupervisorClient | None:
        found = self._read().get(host)
        return None if found is None else self._client(found)

    def supervisor(self, host: str) -> SupervisorClient:
        client = self.known(host)
        if client is None:
            raise HostError(f"no supervisor of state nodes is registered for {host}", host=host)
        client.look()
        return client

    def renew(self) -> None:
        """They go on by themselves."""

    def close(self) -> None:
        """They go on for others."""

    def _client(self, found: Registration) -> SupervisorClient:
        with self._change:
            client = self._clients.get(found.address)
            if client is None:
                client = SupervisorClient(found.address, found.host, security=self._security)
                self._clients[found.address] = client
            return client

    def _read(self) -> dict[str, Registration]:
        """By host. As it last was when the registry cannot be read."""
        with self._change:
            now = time.monotonic()
            if self._read_at is None or now > self._read_at + _FRESH:
                try:
                    self._registered = {found.host: found for found in self._registry.all()}
                except StorageError as error:
                    _log.warning("the registry of supervisors cannot be read: %s", error)
                self._read_at = now
            return self._registered
