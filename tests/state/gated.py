"""Files in a place that can be away: whoever asks for something then waits until it is back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event

import pyarrow as pa

from tidegate.storage.memory import Memory


class Gated(Memory):
    """As a store whose client is patient."""

    def __init__(self) -> None:
        super().__init__()
        self._there = Event()
        self._there.set()
        self.waits = Event()
        """Set when somebody has had to wait."""

    @contextmanager
    def away(self) -> Iterator[None]:
        self._there.clear()
        self.waits.clear()
        try:
            yield
        finally:
            self._there.set()

    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        self._pass()
        super().write(name, parts)

    def open(self, name: str) -> pa.Buffer:
        self._pass()
        return super().open(name)

    def names(self) -> list[str]:
        self._pass()
        return super().names()

    def delete(self, *names: str) -> None:
        self._pass()
        super().delete(*names)

    def _pass(self) -> None:
        if not self._there.is_set():
            self.waits.set()
            self._there.wait()
