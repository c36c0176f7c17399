"""Where supervisors make themselves known to drivers: one small file each, in a folder or an object store."""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass

from tidegate.errors import MissingFileError, StateError
from tidegate.state.codec import decoded, encoded
from tidegate.storage.storage import Storage

_log = logging.getLogger(__name__)

_ENDING = ".supervisor"
HEARTBEAT = 10.0
"""Seconds between two times that a supervisor makes itself known."""
_STALE = 300.0
"""Seconds after which one that was not heard of counts as gone: the clocks of machines may differ by less."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A supervisor that takes nodes, or is about to go."""

    host: str
    address: str
    leaving: bool
    heartbeat: float
    """When it made itself known, in seconds since 1970."""


class Registry:
    """The supervisors that drivers may use."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def put(self, registration: Registration) -> None:
        """Make a supervisor known, or known anew."""
        text = json.dumps(encoded(registration)).encode()
        self._storage.write(_file(registration.address), [text])

    def remove(self, address: str) -> None:
        """A supervisor is gone."""
        self._storage.delete(_file(address))

    def all(self) -> list[Registration]:
        """The supervisors that were heard of lately, by address. A file that cannot be read is left out: it
        may be of a later version."""
        found = []
        for name in self._storage.names():
            if not name.endswith(_ENDING):
                continue
            try:
                form = json.loads(self._storage.open(name).to_pybytes())
                registration = decoded(Registration, form)
            except MissingFileError:
                continue  # It has gone in the meantime.
            except (ValueError, StateError) as error:
                _log.warning("%s in %s is no registration of a supervisor: %s", name, self._storage, error)
                continue
            if registration.heartbeat > time.time() - _STALE:
                found.append(registration)
        return sorted(found, key=lambda each: each.address)


def _file(address: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", address).strip(".") + _ENDING
