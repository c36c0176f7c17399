"""Which driver is at work on a checkpoint in a store, as far as others can see.

A driver tells of itself in one small file, and changes it every few seconds. Whoever finds the file takes the
driver for alive when it changes, by a clock of its own. It only keeps people from mistakes: what keeps a
driver from harm that was replaced is the ledger.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from tidegate.errors import MissingFileError, StorageError
from tidegate.storage.storage import Storage

log = logging.getLogger(__name__)

_NAME = "driver.json"
_PERIOD = 3.0
"""Seconds between two changes of the file."""
_NOTICE = 1.5 * _PERIOD
"""Seconds within which a driver that is alive is usually noticed."""
_GONE = 4 * _PERIOD
"""Seconds after which a driver that has not changed its file is taken for dead."""
_POLL = 0.5


@dataclass(frozen=True, slots=True)
class Driver:
    """What a driver tells of itself."""

    pid: int
    host: str
    since: str
    home: str
    """What the folder of its machine is known by that it works in."""
    generation: int = 0
    beat: int = 0
    finished: int = -1
    """The last batch whose output is visible; -1 for none."""
    control: str | None = None
    """Where its control API answers."""
    ended: bool = False


def driver_at(storage: Storage) -> Driver | None:
    """The driver that runs on a checkpoint, or ran last; None when none has told, or cannot be understood."""
    try:
        return Driver(**json.loads(storage.open(_NAME).to_pybytes()))
    except (MissingFileError, ValueError, TypeError):
        return None


def finished_within(storage: Storage, batch_id: int, settle: float) -> bool:
    """Whether a driver has said that a batch is over; one that runs gets `settle` seconds to do so."""
    until = time.monotonic() + settle
    while (driver := driver_at(storage)) is not None:
        if driver.finished >= batch_id:
            return True
        if driver.ended or time.monotonic() >= until:
            break
        time.sleep(_POLL)
    return False


def tell(storage: Storage, driver: Driver) -> None:
    storage.write(_NAME, [json.dumps(asdict(driver)).encode()])


def this_driver(home: str) -> Driver:
    """What the driver in this process has to tell at first."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return Driver(os.getpid(), socket.gethostname(), since, home)


class Presence:
    """A driver that tells of itself from `begin` to `end`."""

    def __init__(self, storage: Storage, home: str, *, period: float = _PERIOD) -> None:
        self._storage = storage
        self._period = period
        self._driver = this_driver(home)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_replaced = False
        """Whether a newer driver has told of itself."""
        self.finished = -1
        self.control: str | None = None

    def begin(self, generation: int) -> None:
        """Tell of the driver of this generation from now on."""
        self._driver = replace(self._driver, generation=generation)
        self._tell()
        self._thread = threading.Thread(target=self._go_on, name="presence", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Say that it has ended."""
        self._over.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        try:
            if not self._has_successor():
                self._tell(ended=True)
        except StorageError as error:
            log.warning("%s is not told that the driver has ended: %s", self._storage, error)

    def _go_on(self) -> None:
        while not self._over.wait(self._period):
            try:
                if self._has_successor():
                    return
                self._tell()
            except StorageError as error:
                log.warning("the driver could not say in %s that it is alive: %s", self._storage, error)

    def _has_successor(self) -> bool:
        there = driver_at(self._storage)
        self.is_replaced = there is not None and there.generation > self._driver.generation
        return self.is_replaced

    def _tell(self, *, ended: bool = False) -> None:
        self._driver = replace(
            self._driver,
            beat=self._driver.beat + 1,
            finished=self.finished,
            control=None if ended else self.control,
            ended=ended,
        )
        tell(self._storage, self._driver)


class Watch:
    """Whether the driver that has told of itself last is alive."""

    def __init__(
        self,
        storage: Storage,
        home: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`home`: whoever worked in that folder is dead, as the one who asks has the lock of it."""
        self._storage, self._home = storage, home
        self._clock, self._sleep = clock, sleep
        self._seen: Driver | None = None
        self._since = 0.0

    @property
    def driver(self) -> Driver | None:
        """The driver that was seen last."""
        return self._seen

    def notices(self) -> bool:
        """Whether there is a driver that is alive: one that is seems dead if it is late."""
        return self._changes_within(_NOTICE)

    def is_alive(self) -> bool:
        """The same for sure, as far as a clock can tell; waits longer when nothing happens."""
        return self._changes_within(_GONE)

    def _changes_within(self, seconds: float) -> bool:
        """Whether the file changes within so many seconds from when it was seen first."""
        while True:
            asked = self._clock()
            found = driver_at(self._storage)
            if found is None or found.ended or found.home == self._home:
                self._seen = found
                return False
            if self._seen is not None and found != self._seen:
                self._seen = found
                return True
            now = self._clock()
            if self._seen is None or now - asked > _PERIOD:
                # A store that was away has kept the driver from telling, too.
                self._seen, self._since = found, now
            if now - self._since >= seconds:
                return False
            self._sleep(_POLL)
