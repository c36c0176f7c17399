"""Where runs are kept: immutable blobs by name, in a local folder or an object store."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa

from tidegate.disk import DISK, Disk
from tidegate.errors import MissingExtraError, StateError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")
_DRAFT = ".draft-"
_DRAFT_SECONDS = 3600.0
_SYNCED = 16 << 20
"""Bytes from one sync to the next while a blob is written."""


class Storage(ABC):
    """Blobs by name. A blob is there whole or not at all, and never changes."""

    mapped: bool
    """Whether `open` costs nothing but address space, so that reading parts by `read` has no use."""

    @abstractmethod
    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        """Keep a blob; when this returns it outlives a crash. One of the same name is replaced."""

    @abstractmethod
    def open(self, name: str) -> pa.Buffer:
        """A whole blob. StateError when there is none."""

    def read(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Parts of a blob, each given as (offset, length)."""
        whole = self.open(name)
        return [whole.slice(*span) for span in spans]

    def size(self, name: str) -> int:
        """Bytes in a blob. StateError when there is none."""
        return int(self.open(name).size)

    @abstractmethod
    def names(self) -> list[str]:
        """All blobs, sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a blob. That there is none is fine."""


class Local(Storage):
    """A folder. Blobs are memory-mapped; one that is deleted stays readable where it is open."""

    mapped = True

    def __init__(self, folder: Path, disk: Disk = DISK) -> None:
        self.folder = folder
        self._disk = disk
        disk.make_folder(folder)
        self._remove_old_drafts()

    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        target = self.folder / _checked(name)
        draft = self.folder / f"{_DRAFT}{uuid4().hex}"
        try:
            with self._disk.create(draft, private=True) as file:
                unsynced = 0
                for part in parts:
                    file.write(part)
                    unsynced += len(part)
                    if unsynced > _SYNCED:  # Little by little: others who sync meanwhile wait for less.
                        file.sync()
                        unsynced = 0
                file.sync()
            self._disk.rename(draft, target)
        except BaseException:
            self._disk.remove(draft)
            raise
        self._disk.sync_folder(self.folder)  # The name is part of the folder: it needs a sync of its own.

    def open(self, name: str) -> pa.Buffer:
        path = self.folder / _checked(name)
        try:
            return self._disk.map(path)
        except FileNotFoundError:
            raise _missing(name, str(self.folder)) from None
        except (OSError, pa.ArrowException) as error:
            raise StateError(f"cannot read {path}: {error}") from error

    def size(self, name: str) -> int:
        try:
            return self._disk.size(self.folder / _checked(name))
        except FileNotFoundError:
            raise _missing(name, str(self.folder)) from None

    def names(self) -> list[str]:
        return sorted(name for name in self._disk.names(self.folder) if not name.startswith("."))

    def delete(self, name: str) -> None:
        self._disk.remove(self.folder / _checked(name))

    def _remove_old_drafts(self) -> None:
        """What a process that was killed left half written. A younger one may still be at work."""
        for name in self._disk.names(self.folder):
            with suppress(FileNotFoundError):
                draft = self.folder / name
                if name.startswith(_DRAFT) and time.time() - self._disk.modified(draft) > _DRAFT_SECONDS:
                    self._disk.remove(draft)


class Memory(Storage):
    """Blobs of this process, gone with it."""

    mapped = True

    def __init__(self) -> None:
        self._blobs: dict[str, pa.Buffer] = {}

    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        sink = pa.BufferOutputStream()
        for part in parts:
            sink.write(part)
        self._blobs[_checked(name)] = sink.getvalue()

    def open(self, name: str) -> pa.Buffer:
        try:
            return self._blobs[name]
        except KeyError:
            raise _missing(name, "memory") from None

    def names(self) -> list[str]:
        return sorted(self._blobs)

    def delete(self, name: str) -> None:
        self._blobs.pop(name, None)


class Remote(Storage):
    """An object store, through obstore: `s3://bucket/prefix` and what else it knows.

    Region, endpoint and credentials come from the environment (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, ...).
    """

    mapped = False

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore import store
        except ImportError:
            raise MissingExtraError("s3", f"state kept in {url}") from None
        self.url = url
        self._api: Any = obstore
        plain = url.startswith("s3://") and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        try:
            self._store: Any = store.from_url(url, client_options={"allow_http": True} if plain else None)
        except Exception as error:
            raise StateError(f"{url} cannot be used for state: {error}") from error

    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        # An object is complete or not there: the store sees to that.
        self._call("write", name, self._api.put, self._store, _checked(name), map(bytes, parts))

    def open(self, name: str) -> pa.Buffer:
        found = self._call("read", name, self._api.get, self._store, _checked(name))
        return pa.py_buffer(found.bytes())

    def read(self, name: str, spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        starts, lengths = [offset for offset, _ in spans], [length for _, length in spans]
        found = self._call(
            "read", name, self._api.get_ranges, self._store, _checked(name), starts=starts, lengths=lengths
        )
        return [pa.py_buffer(part) for part in found]

    def size(self, name: str) -> int:
        return int(self._call("read", name, self._api.head, self._store, _checked(name))["size"])

    def names(self) -> list[str]:
        pages = self._call("list", "", self._api.list, self._store)
        return sorted(item["path"] for page in pages for item in page if "/" not in item["path"])

    def delete(self, name: str) -> None:
        try:
            self._api.delete(self._store, _checked(name))
        except FileNotFoundError:
            return
        except self._api.exceptions.BaseError as error:
            raise StateError(f"cannot delete {name} in {self.url}: {error}") from error

    def _call(self, action: str, name: str, call: Any, *args: Any, **named: Any) -> Any:
        try:
            return call(*args, **named)
        except FileNotFoundError:
            raise _missing(name, self.url) from None
        except self._api.exceptions.BaseError as error:
            raise StateError(f"cannot {action} {name or 'names'} in {self.url}: {error}") from error


def open_storage(place: str) -> Storage:
    """The storage at a place: a folder, `file:///folder`, or the URL of an object store."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Local(Path(unquote(parts.path)))
    if "://" in place:
        return Remote(place)
    return Local(Path(place))


def _checked(name: str) -> str:
    """A name that stays inside its folder, whatever made it."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise StateError(f"{name!r} cannot be the name of a run: letters, digits, '.', '_' and '-' only")
    return name


def _missing(name: str, place: str) -> StateError:
    return StateError(
        f"run {name} is not in {place}: it was removed, or the checkpoint was moved without it; "
        "restore it, or start from a savepoint"
    )
