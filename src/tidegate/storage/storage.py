"""Files by name, with one behaviour wherever they are: each is there whole or not at all."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tidegate.errors import MissingFileError, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,200}")
_PART = 64 << 20
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as its place lists it."""

    name: str
    size: int
    """In bytes."""
    modified: float
    """When it was written, in seconds since the epoch, by the clock of the place."""


class Storage(ABC):
    """A place for files. Each operation may be repeated after a StorageError, but for `create`, see there."""

    mapped: bool
    """Whether `open` costs nothing but address space, so that reading parts by `read` has no use."""
    patience: float = 0.0
    """Seconds for which a call may wait for a place that is away."""
    url: str
    """What people call this place; `open_storage` leads to it again."""

    @abstractmethod
    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        """Keep a file; when this returns it outlives a crash. One of the same name is replaced."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> bool:
        """As `write`, unless there is a file of that name already, whoever made it: then False.

        Of any number of racing writers exactly one gets True. After a StorageError it is open whether the
        file was made.
        """

    def sync(self) -> None:  # noqa: B027
        """Have what others have made here outlive a crash, too: one may have died before it did."""

    @abstractmethod
    def open(self, name: str) -> pa.Buffer:
        """A whole file. MissingFileError when there is none."""

    def read(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Parts of a file, each given as (offset, length)."""
        whole = self.open(name)
        return [whole.slice(*span) for span in spans]

    def start(self, name: str, length: int) -> pa.Buffer:
        """The first bytes of a file, all of it when it is shorter."""
        whole = self.open(name)
        return whole.slice(0, min(length, whole.size))

    def end(self, name: str, length: int) -> pa.Buffer:
        """The last bytes of a file, all of it when it is shorter."""
        whole = self.open(name)
        return whole.slice(max(0, whole.size - length))

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes in a file. MissingFileError when there is none."""

    @abstractmethod
    def names(self) -> list[str]:
        """All files, sorted; not those of places within this one."""

    @abstractmethod
    def listed(self, after: str = "") -> Iterator[Listed]:
        """The files whose names sort after `after`, in that order; asked for as they are taken."""

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Remove files. That there are none is fine."""

    def copy(self, name: str, target: Storage, new_name: str) -> None:
        """Have a file in another place, too, in place of what had that name; without its bytes passing
        through here where the places can do so. MissingFileError when there is none."""
        size = self.size(name)
        spans = ((offset, min(_PART, size - offset)) for offset in range(0, size, _PART))
        # In a thread of its own: a store that is asked for the next part is in the middle of writing.
        with ThreadPoolExecutor(1, thread_name_prefix="copy") as reading:
            read = partial(self.read, name)
            target.write(new_name, (part for span in spans for part in reading.submit(read, [span]).result()))

    @abstractmethod
    def places(self) -> list[str]:
        """The places within this one, sorted by name; a store knows only those that have files."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all files, also those of places within this one."""

    @abstractmethod
    def within(self, name: str) -> Storage:
        """A place in this one. Nothing has to be there yet."""

    def each(self, function: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
        """What a function that asks this place answers for each item; side by side where that takes long."""
        return list(map(function, items))

    def __str__(self) -> str:
        return self.url


def checked(name: str) -> str:
    """A name that stays inside its place, whatever made it."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise StorageError(
            f"{name!r} cannot be the name of a file: letters, digits, '.', '_', '=' and '-' only"
        )
    return name


def missing(name: str, place: str) -> MissingFileError:
    return MissingFileError(
        f"{name} is not in {place}: it was removed, or the checkpoint was moved without it; restore it, or "
        "start from a savepoint"
    )
