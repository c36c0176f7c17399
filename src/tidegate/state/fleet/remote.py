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
_PATIENCE = 1.0
"""Seconds that a registry has to answer; after that it is taken as it last was."""


class RemoteHosts:
    """Supervisors come and go as their registrations do. A host is the address of one: several on one machine
    are several hosts."""

    def __init__(self, registry: Registry, *, security: Security) -> None:
        self._registry = registry
        self._security = security
        self._clients: dict[str, SupervisorClient] = {}
        self._registered: dict[str, Registration] = {}
        self._read_at: float | None = None
        """When it was last seen what the registry says, or that it says nothing."""
        self._began = 0.0
        self._reading: threading.Event | None = None
        """Set when the reading that began last has come to an end."""
        self._change = threading.Lock()

    def names(self) -> Sequence[str]:
        """The first time this waits for the registry as long as that takes."""
        return list(self._read(first=True))

    def leaving(self) -> frozenset[str]:
        return frozenset(host for host, found in self._read().items() if found.leaving)

    def known(self, host: str) -> SupervisorClient | None:
        found = self._read().get(host)
        return None if found is None else self._client(found)

    def supervisor(self, host: str) -> SupervisorClient:
        client = self.known(host)
        if client is None:
            raise HostError(f"no supervisor of state nodes is registered at {host}", host=host)
        client.look()
        return client

    def renew(self) -> None:
        """They go on by themselves."""

    def lost(self, host: str) -> None:
        """Whether its supervisor answers is seen when a node is to be placed."""

    def close(self) -> None:
        """They go on for others."""

    def _client(self, found: Registration) -> SupervisorClient:
        with self._change:
            client = self._clients.get(found.address)
            if client is None:
                client = SupervisorClient(found.address, found.host, security=self._security)
                self._clients[found.address] = client
            return client

    def _read(self, *, first: bool = False) -> dict[str, Registration]:
        """By address. As it last was when the registry cannot be read, or not soon."""
        with self._change:
            now = time.monotonic()
            over = self._reading is None or self._reading.is_set()
            if over and (self._read_at is None or now > self._read_at + _FRESH):
                self._began, self._reading = now, threading.Event()
                # A store that is away may be asked for minutes; whoever renews leases cannot wait for it.
                threading.Thread(
                    target=self._read_now, args=(self._reading,), name="registry", daemon=True
                ).start()
            assert self._reading is not None
            reading, wait_for_it = self._reading, first and self._read_at is None
            patience = None if wait_for_it else max(0.0, self._began + _PATIENCE - now)
        reading.wait(patience)
        with self._change:
            return self._registered

    def _read_now(self, reading: threading.Event) -> None:
        found = None
        try:
            found = {each.address: each for each in self._registry.all()}
        except StorageError as error:
            _log.warning("the registry of supervisors cannot be read: %s", error)
        finally:
            with self._change:
                self._registered = self._registered if found is None else found
                self._read_at = time.monotonic()
                reading.set()
