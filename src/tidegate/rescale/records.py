"""Rescales on record beside the ledger, so that their history outlives the driver."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Self

from pydantic import TypeAdapter, ValidationError

from tidegate.errors import MissingFileError, StorageError
from tidegate.ledger.seal import opened, sealed
from tidegate.rescale.history import KEPT
from tidegate.rescale.model import Rescale
from tidegate.storage.storage import Storage

log = logging.getLogger(__name__)

_RESCALE = TypeAdapter(Rescale)
_INTERRUPTED = "its driver ended; the next one went on with the route of the latest batch"


def load(storage: Storage) -> list[Rescale]:
    """Those on record, oldest first. One that was under way has failed: its driver is gone.

    What cannot be read is left out: a damaged record of the past is no reason not to start.
    """
    found = storage.each(partial(_load, storage), storage.names()[-KEPT:])
    return [rescale for rescale in found if rescale is not None]


def _load(storage: Storage, name: str) -> Rescale | None:
    try:
        rescale = _RESCALE.validate_python(opened(storage.open(name).to_pybytes()))
    except MissingFileError:
        return None  # An older driver has just forgotten it.
    except (ValueError, ValidationError) as error:
        log.warning("%s in %s cannot be read and is left out: %s", name, storage, error)
        return None
    return rescale if rescale.over else replace(rescale, phase="failed", why=_INTERRUPTED)


class Records:
    """Writes them, one after the other, while batches go on; until the end of a `with`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="rescales")

    def keep(self, rescale: Rescale) -> None:
        """Put it on record as it is now, in place of what it was; soon."""
        self._writing.submit(self._write, rescale)

    def _write(self, rescale: Rescale) -> None:
        try:
            self._storage.write(_name(rescale.number), [sealed(asdict(rescale))])
            if rescale.number > KEPT:
                self._storage.delete(_name(rescale.number - KEPT))
        except (StorageError, OSError) as error:
            log.warning("rescale %d cannot be put on record: %s", rescale.number, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._writing.shutdown()


def _name(number: int) -> str:
    return f"{number:012}.json"
