"""A folder for the Unix sockets of nodes, which only this user may enter.

Not in the checkpoint: the path of a socket must be short. A lock on the folder tells that its process lives;
it also keeps what tidies temporary folders (systemd-tmpfiles) away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import threading
from pathlib import Path

from tidegate.errors import StateError

_PREFIX = "tidegate-nodes-"
_PLAIN = re.compile(r"/[A-Za-z0-9._/-]{1,60}")
"""A folder whose name may be part of an address: Linux takes 107 bytes as the path of a socket."""
_TRIES = 10


class SocketFolder:
    """Created when the first path is asked for, and removed by `close`, after which it may be created again.
    What a killed process left is removed by the next one that creates such a folder."""

    def __init__(self, parent: Path | None = None) -> None:
        """In `parent`, or where temporary files go if that has a short and plain name, else in /tmp."""
        usual = tempfile.gettempdir()
        self._parent = parent or Path(usual if _PLAIN.fullmatch(usual) else "/tmp")
        self._made: tuple[Path, int] | None = None
        self._change = threading.Lock()

    def path(self) -> Path:
        """For one more socket."""
        with self._change:
            if self._made is None:
                self._made = _made(self._parent)
            return self._made[0] / secrets.token_hex(4)

    def close(self) -> None:
        with self._change:
            if self._made is not None:
                folder, lock = self._made
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
                self._made = None


def _made(parent: Path) -> tuple[Path, int]:
    """A new folder and the lock on it."""
    _sweep(parent)
    for _ in range(_TRIES):
        try:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise StateError(
                f"cannot create a folder for the sockets of state nodes in {parent}: {error.strerror}; set "
                "TMPDIR to another place"
            ) from error
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # Another process has taken it for one that was left behind.
    raise StateError(
        f"folders for the sockets of state nodes keep vanishing from {parent}; set TMPDIR to another place"
    )


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.geteuid():
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
