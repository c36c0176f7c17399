"""The lock of a checkpoint, so that nobody ends a driver that is alive by starting another one.

The operating system holds it for the process, and gives it up however that ends. For a checkpoint in a store
it holds among the drivers of one machine; those of others are known by what they tell of themselves in the
store. The lock only keeps people from mistakes: what keeps a driver from harm that was replaced, or hangs, is
the ledger.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import CheckpointError, InUseError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.presence import Driver, Presence, Watch, driver_at, this_driver
from tidegate.run.checkpoint import Checkpoint
from tidegate.storage.local import Local

log = logging.getLogger(__name__)

_NAME = "driver.lock"


class DriverLock:
    """The lock of one run. With `take_over`, `claim` takes it from whoever has it."""

    def __init__(self, checkpoint: Checkpoint, *, take_over: bool = False) -> None:
        self.checkpoint = checkpoint
        self._take_over = take_over
        self._path = checkpoint.folder / _NAME
        self._file: BinaryIO | None = None
        self._watch: Watch | None = None
        self.presence: Presence | None = None
        """What this driver tells of itself; None for a checkpoint that no other machine sees."""
        self.predecessor: Driver | None = None
        """The driver that was at work before, as it has told in a store."""
        if not checkpoint.is_local:
            home = _identity(checkpoint)
            self._watch = Watch(checkpoint.storage, home)
            self.presence = Presence(checkpoint.storage, home)

    def acquire(self) -> bool:
        """Hold the lock; False when another driver of this machine does."""
        if not self.is_held():
            self._let_go()
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
        if self._watch is not None and not self._take_over and self._watch.is_alive():
            raise self._in_use()

    def check(self) -> None:
        """Raise InUseError when another driver has the lock, or seems to."""
        if not self.acquire() or (self._watch is not None and self._watch.notices()):
            raise self._in_use()

    def begin(self, ledger: Ledger) -> None:
        """Tell others that this driver, of the ledger's generation, is at work."""
        if self.presence is not None:
            self.predecessor = driver_at(self.checkpoint.storage)
            self.presence.begin(ledger.generation)

    def finished(self, batch_id: int) -> None:
        """Tell others that the output of a batch is visible."""
        if self.presence is not None:
            self.presence.finished = batch_id

    def answers_at(self, url: str) -> None:
        """Tell others where the control API of this driver answers."""
        if self.presence is not None:
            self.presence.control = url

    def is_held(self) -> bool:
        """Whether this run has the lock, and nobody has taken it as far as one can see."""
        if self.presence is not None and self.presence.is_replaced:
            return False
        try:
            return self._file is not None and self._is_current(self._file)
        except OSError:
            return True

    def release(self) -> None:
        if self.presence is not None:
            self.presence.end()
        self._let_go()

    def _let_go(self) -> None:
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
        me = this_driver("")
        file.truncate(0)
        file.write(json.dumps({"pid": me.pid, "host": me.host, "since": me.since}).encode())
        file.flush()

    def _in_use(self) -> InUseError:
        elsewhere = self._watch.driver if self._watch is not None and self._file is not None else None
        told = (elsewhere.pid, elsewhere.host, elsewhere.since) if elsewhere is not None else self.holder()
        pid, host, since = told or (None, None, None)
        who = f"process {pid} on {host}, since {since}" if pid else "it has not named its process yet"
        return InUseError(
            f"a driver is running on the checkpoint {self.checkpoint}: {who}. Stop it first "
            f"(`tidegate stop {self.checkpoint}`), or start with --take-over to put this one in its place",
            pid=pid,
            host=host,
        )


@contextmanager
def locked(checkpoint: Checkpoint, *, take_over: bool) -> Iterator[DriverLock]:
    """The lock of a checkpoint until the end of the block.

    When another driver has it, raises InUseError; with `take_over` that one keeps it until `claim`, so
    whoever enters may still fail and leave it alone.
    """
    try:
        lock = DriverLock(checkpoint, take_over=take_over)
        try:
            lock.acquire() if take_over else lock.check()
        except BaseException:
            lock.release()
            raise
    except OSError as error:
        raise CheckpointError(f"cannot use the checkpoint {checkpoint}: {error}") from error
    try:
        yield lock
    finally:
        lock.release()


def take_over_stopped(ledger: Ledger, lock: DriverLock) -> None:
    """Shut out the drivers of a checkpoint that nobody runs on. CheckpointError when one has gone on all the
    same, as it can where there are no locks."""
    lock.claim()
    last = ledger.last
    ledger.take_over()
    if ledger.last is not last:
        raise CheckpointError(f"a driver is running on the checkpoint {lock.checkpoint}; stop it first")
    lock.begin(ledger)


def _identity(checkpoint: Checkpoint) -> str:
    """What this machine's folder of a checkpoint is known by: a path may be that of another machine, too."""
    home = Local(checkpoint.folder, DISK)
    home.create("id", uuid4().hex.encode())
    return bytes(home.open("id")).decode()
