"""The lock of a checkpoint, so that nobody ends a driver that is alive by starting another one.

The operating system holds it for the process, and gives it up however that ends. It only keeps people from
mistakes: what keeps a driver from harm that was replaced, or hangs, is the ledger.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from tidegate.errors import CheckpointError, InUseError
from tidegate.ledger.ledger import Ledger

log = logging.getLogger(__name__)

_NAME = "driver.lock"


class DriverLock:
    """The lock of one run. With `take_over`, `claim` takes it from whoever has it."""

    def __init__(self, folder: Path, *, take_over: bool = False) -> None:
        self._folder = folder
        self._take_over = take_over
        self._path = folder / _NAME
        self._file: BinaryIO | None = None

    def acquire(self) -> bool:
        """Hold the lock; False when another driver does."""
        if not self.is_held():
            self.release()
        while self._file is None:
            file = self._path.open("a+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return False
            except OSError as error:
                log.warning("%s cannot be locked, so a second driver is not refused: %s", self._path, error)
            if self._is_current(file):
                self._file = file
                self._sign(file)
            else:  # Somebody has claimed it between the two steps.
                file.close()
        return True

    def claim(self) -> None:
        """Hold the lock from now on, right before the ledger shuts out other drivers. Whoever had it keeps a
        file that is no longer the lock.

        Raises InUseError when another driver has it, as one that insists may have since `acquire`.
        """
        while not self.acquire():
            if not self._take_over:
                raise self._in_use()
            self._path.unlink(missing_ok=True)

    def is_held(self) -> bool:
        """Whether this run has the lock, and nobody has taken it as far as one can see."""
        try:
            return self._file is not None and self._is_current(self._file)
        except OSError:
            return True

    def release(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # To close it is not enough if a process was forked meanwhile.
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None

    def holder(self) -> tuple[int, str, str] | None:
        """Process, host and start of the driver that has the lock; None when it has not said yet."""
        try:
            said = json.loads(self._path.read_bytes())
            return said["pid"], said["host"], said["since"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _is_current(self, file: BinaryIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def _sign(self, file: BinaryIO) -> None:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}).encode())
        file.flush()

    def _in_use(self) -> InUseError:
        pid, host, since = self.holder() or (None, None, None)
        who = f"process {pid} on {host}, since {since}" if pid else "it has not named its process yet"
        return InUseError(
            f"a driver is running on the checkpoint {self._folder}: {who}. Stop it first "
            f"(`tidegate stop {self._folder}`), or start with --take-over to put this one in its place",
            pid=pid,
            host=host,
        )


@contextmanager
def locked(folder: Path, *, take_over: bool) -> Iterator[DriverLock]:
    """The lock of a checkpoint until the end of the block.

    When another driver has it, raises InUseError; with `take_over` that one keeps it until `claim`, so
    whoever enters may still fail and leave it alone.
    """
    lock = DriverLock(folder, take_over=take_over)
    try:
        try:
            lock.acquire() if take_over else lock.claim()
        except OSError as error:
            raise CheckpointError(f"cannot use the checkpoint {folder}: {error}") from error
        yield lock
    finally:
        lock.release()


def take_over_stopped(ledger: Ledger, folder: Path) -> None:
    """Shut out the drivers of a checkpoint that nobody runs on. CheckpointError when one has gone on all the
    same, as it can where there are no locks."""
    last = ledger.last
    ledger.take_over()
    if ledger.last is not last:
        raise CheckpointError(f"a driver is running on the checkpoint {folder}; stop it first")
