"""Files in the memory of this process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidegate.storage.storage import Listed, Storage, checked, missing

if TYPE_CHECKING:
    import pyarrow as pa


class Memory(Storage):
    """Gone with the process."""

    mapped = True
    url = "memory"

    def __init__(self) -> None:
        self._files: dict[str, pa.Buffer] = {}
        self._modified: dict[str, float] = {}
        self._within: dict[str, Memory] = {}

    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        for part in parts:
            sink.write(part)
        self._files[checked(name)] = sink.getvalue()
        self._modified[name] = time.time()

    def create(self, name: str, content: bytes) -> bool:
        import pyarrow as pa

        mine = pa.py_buffer(content)
        self._modified.setdefault(name, time.time())
        return self._files.setdefault(checked(name), mine) is mine

    def open(self, name: str) -> pa.Buffer:
        try:
            return self._files[name]
        except KeyError:
            raise missing(name, self.url) from None

    def size(self, name: str) -> int:
        return int(self.open(name).size)

    def names(self) -> list[str]:
        return sorted(self._files)

    def listed(self, after: str = "") -> Iterator[Listed]:
        for name in self.names():
            if name > after and (found := self._files.get(name)) is not None:
                yield Listed(name, found.size, self._modified[name])

    def delete(self, *names: str) -> None:
        for name in names:
            self._files.pop(name, None)
            self._modified.pop(name, None)

    def places(self) -> list[str]:
        return sorted(name for name, inner in self._within.items() if inner._files or inner.places())

    def clear(self) -> None:
        for inner in (self._files, self._modified, self._within):
            inner.clear()

    def within(self, name: str) -> Memory:
        return self._within.setdefault(checked(name), Memory())
