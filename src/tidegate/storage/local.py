"""Files in a folder of this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from tidegate.disk import DISK, Disk
from tidegate.errors import StorageError
from tidegate.storage.storage import Listed, Storage, checked, missing

if TYPE_CHECKING:
    import pyarrow as pa

_DRAFT = ".draft-"
_DRAFT_SECONDS = 3600.0
_SYNCED = 16 << 20
"""Bytes from one sync to the next while a file is written."""


class Local(Storage):
    """A folder, made with the first file. Files are memory-mapped; one that is deleted stays readable where
    it is open."""

    mapped = True

    def __init__(self, folder: Path, disk: Disk = DISK, *, private: bool = True) -> None:
        """`private`: new files are for this user's eyes only."""
        self.folder = folder
        self.url = str(folder)
        self._disk = disk
        self._private = private
        self._is_tidied = False

    def write(self, name: str, parts: Iterable[bytes | pa.Buffer]) -> None:
        with self._draft(parts, self.folder / checked(name)) as (draft, target):
            self._disk.rename(draft, target)
        self._disk.sync_folder(self.folder)  # The name is part of the folder: it needs a sync of its own.

    def create(self, name: str, content: bytes) -> bool:
        # A link either makes the name or fails.
        with self._draft([content], self.folder / checked(name)) as (draft, target):
            try:
                self._disk.link(draft, target)
            except FileExistsError:
                return False
        self._disk.sync_folder(self.folder)
        return True

    def sync(self) -> None:
        self._disk.sync_folder(self.folder)

    def open(self, name: str) -> pa.Buffer:
        path = self.folder / checked(name)
        try:
            return self._disk.map(path)
        except FileNotFoundError:
            raise missing(name, self.url) from None
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read {path}: {error}") from error

    def size(self, name: str) -> int:
        try:
            return self._disk.size(self.folder / checked(name))
        except FileNotFoundError:
            raise missing(name, self.url) from None

    def names(self) -> list[str]:
        names = self._disk.names(self.folder)
        return sorted(name for name in names if not name.startswith("."))

    def listed(self, after: str = "") -> Iterator[Listed]:
        for name in self.names():
            if name > after:
                with suppress(FileNotFoundError):  # Deleted meanwhile.
                    path = self.folder / name
                    yield Listed(name, self._disk.size(path), self._disk.modified(path))

    def delete(self, *names: str) -> None:
        for name in names:
            self._disk.remove(self.folder / checked(name))

    def copy(self, name: str, target: Storage, new_name: str) -> None:
        if isinstance(target, Local):
            # A second name will do: what a file holds never changes.
            target._disk.make_folder(target.folder)
            with suppress(OSError):
                self._disk.link(self.folder / checked(name), target.folder / checked(new_name))
                self._disk.sync_folder(target.folder)
                return
        super().copy(name, target, new_name)

    def places(self) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        return []

    def clear(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self.folder)
        self._is_tidied = False

    def within(self, name: str) -> Local:
        return Local(self.folder / checked(name), self._disk, private=self._private)

    @contextmanager
    def _draft(self, parts: Iterable[bytes | pa.Buffer], target: Path) -> Iterator[tuple[Path, Path]]:
        """The content, durable under a name that nobody looks for; it is gone at the end of the block."""
        if not self._is_tidied:
            self._disk.make_folder(self.folder)
            self._remove_old_drafts()
            self._is_tidied = True
        draft = self.folder / f"{_DRAFT}{uuid4().hex}"
        try:
            with self._disk.create(draft, private=self._private) as file:
                unsynced = 0
                for part in parts:
                    file.write(part)
                    unsynced += len(part)
                    if unsynced > _SYNCED:  # Little by little: others who sync meanwhile wait for less.
                        file.sync()
                        unsynced = 0
                file.sync()
            yield draft, target
        finally:
            self._disk.remove(draft)

    def _remove_old_drafts(self) -> None:
        """What a process that was killed left half written. A younger one may still be at work."""
        for name in self._disk.names(self.folder):
            with suppress(FileNotFoundError):
                draft = self.folder / name
                if name.startswith(_DRAFT) and time.time() - self._disk.modified(draft) > _DRAFT_SECONDS:
                    self._disk.remove(draft)
