"""The lock on the state of a node: many readers at once, or a single writer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class ReadWriteLock:
    """A lock for readers and writers. A waiting writer goes before readers that come later."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._readers = 0
        self._exclusive = False
        self._waiting = 0
        self._since: dict[int, float] = {}

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._counted():
            with self._free:
                self._free.wait_for(lambda: not self._exclusive and not self._waiting)
                self._readers += 1
            try:
                yield
            finally:
                with self._free:
                    self._readers -= 1
                    self._free.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._counted():
            with self._free:
                self._waiting += 1
                self._free.wait_for(lambda: not self._exclusive and not self._readers)
                self._waiting -= 1
                self._exclusive = True
            try:
                yield
            finally:
                with self._free:
                    self._exclusive = False
                    self._free.notify_all()

    def busy(self) -> float:
        """Seconds since the oldest of those at work or waiting came; 0 when there is none."""
        return max((time.monotonic() - since for since in list(self._since.values())), default=0.0)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        me = threading.get_ident()
        self._since[me] = time.monotonic()
        try:
            yield
        finally:
            del self._since[me]
