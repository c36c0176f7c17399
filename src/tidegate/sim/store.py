"""An object store that all hosts share: it forgets nothing, but requests to it are lost, late or not
answered, and a host may be cut off from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from tidegate.errors import StorageError
from tidegate.sim.hosts import STORE
from tidegate.storage.memory import Memory
from tidegate.storage.storage import Listed, Storage, checked

if TYPE_CHECKING:
    from tidegate.sim.world import World

T = TypeVar("T")

_LATE = 0.3
"""Chance that a change which did not arrive in time does so later."""


class Bucket:
    """What is in the store, and the changes that are still on their way to it."""

    def __init__(self) -> None:
        self.content = Memory()
        self.late: list[Callable[[], object]] = []


class Store(Storage):
    """A place in the bucket, as whoever acts at the moment sees it."""

    mapped = False

    def __init__(self, world: World, content: Storage, url: str) -> None:
        self.url = url
        self._world = world
        self._content = content

    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        whole = b"".join(map(bytes, parts))
        self._change(f"{name} is not written", lambda: self._content.write(name, [whole]))

    def create(self, name: str, content: bytes) -> bool:
        return self._change(f"{name} is not created", lambda: self._content.create(name, content))

    def open(self, name: str) -> pa.Buffer:
        self._look(name)
        return self._content.open(name)

    def size(self, name: str) -> int:
        self._look(name)
        return self._content.size(name)

    def names(self) -> list[str]:
        self._look("a list of names")
        return self._content.names()

    def listed(self, after: str = "") -> Iterator[Listed]:
        self._look("a list of files")
        yield from list(self._content.listed(after))

    def delete(self, *names: str) -> None:
        self._change(f"{', '.join(names)} is not deleted", lambda: self._content.delete(*names))

    def places(self) -> list[str]:
        self._look("a list of places")
        return self._content.places()

    def clear(self) -> None:
        self._change("nothing is deleted", self._content.clear)

    def within(self, name: str) -> Store:
        return Store(self._world, self._content.within(name), f"{self.url}/{checked(name)}")

    def _change(self, otherwise: str, change: Callable[[], T]) -> T:
        world, here = self._world, self._world.here.name
        world.step()
        if not world.links.carries(here, STORE) or world.strikes(world.weather.store):
            if world.strikes(_LATE):
                world.bucket.late.append(change)
            raise self._away(otherwise)
        found = change()
        world.check_alive()
        if not world.links.carries(STORE, here) or world.strikes(world.weather.store):
            raise self._away(f"{otherwise}, as far as is known")
        return found

    def _look(self, name: str) -> None:
        world = self._world
        if not world.links.reach(world.here.name, STORE) or world.strikes(world.weather.store):
            raise self._away(f"{name} is not read")

    def _away(self, otherwise: str) -> StorageError:
        self._world.tell(f"{otherwise}: the store does not answer")
        self._world.counts["store away"] += 1
        return StorageError(f"{otherwise}: {self.url} does not answer")
