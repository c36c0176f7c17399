"""A disk with a page cache: a power cut takes what was not synced, or tears it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa

from tidegate.disk import Disk, File


class Inode:
    """What a name leads to."""

    def __init__(self) -> None:
        self.content = b""
        self.synced = b""

    def torn(self, rng: Random) -> bytes:
        """What a power cut leaves: all that was synced, and of the rest anything."""
        if self.content == self.synced:
            return self.content
        fate = rng.randrange(3)
        if fate == 0:
            return self.synced
        cut = rng.randint(len(self.synced), len(self.content) - 1)
        return self.content[:cut] + (bytes(len(self.content) - cut) if fate == 1 else b"")


class _File(File):
    def __init__(self, disk: SimDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    def write(self, part: bytes | pa.Buffer) -> None:
        self._disk.check_space()
        self._inode.content += part if isinstance(part, bytes) else part.to_pybytes()

    def sync(self) -> None:
        self._disk.step("sync")
        self._inode.synced = self._inode.content

    def close(self) -> None:
        pass


class SimDisk(Disk):
    """Files by name. `step` is called before each change: others may act there, or the process die."""

    def __init__(self, rng: Random, step: Callable[[str], None]) -> None:
        self.step = step
        self.full = False
        self._rng = rng
        self._names: dict[Path, dict[str, Inode]] = {}
        self._synced: dict[Path, dict[str, Inode]] = {}

    def lose_power(self) -> None:
        """Whatever was not synced is lost, torn or there after all, each name for itself."""
        for folder, names in self._names.items():
            before, after = self._synced[folder], {}
            for name in sorted(before.keys() | names.keys()):
                old, new = before.get(name), names.get(name)
                found = new if old is new or self._rng.random() < 0.5 else old
                if found is not None:
                    after[name] = found
            self._names[folder] = after
        for names in self._names.values():
            for inode in names.values():
                inode.content = inode.synced = inode.torn(self._rng)
        self._synced = {folder: dict(names) for folder, names in self._names.items()}
        self.full = False

    def check_space(self) -> None:
        if self.full and self._rng.random() < 0.5:
            raise OSError(errno.ENOSPC, "no space left on device")

    def make_folder(self, folder: Path) -> None:
        self._names.setdefault(folder, {})
        self._synced.setdefault(folder, {})

    def create(self, path: Path, *, private: bool = False) -> File:
        self.step("create")
        self.check_space()
        inode = Inode()
        if self._names[path.parent].setdefault(path.name, inode) is not inode:
            raise FileExistsError(errno.EEXIST, "it is there", str(path))
        return _File(self, inode)

    def link(self, source: Path, target: Path) -> None:
        self.step("link")
        self.check_space()
        inode = self._found(source)
        if self._names[target.parent].setdefault(target.name, inode) is not inode:
            raise FileExistsError(errno.EEXIST, "it is there", str(target))

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename")
        self._names[target.parent][target.name] = self._found(source)
        del self._names[source.parent][source.name]

    def remove(self, path: Path) -> None:
        self.step("remove")
        self._names.get(path.parent, {}).pop(path.name, None)

    def remove_all(self, folder: Path) -> None:
        self.step("remove")
        for each in self._names:
            if each.is_relative_to(folder):
                self._names[each] = {}

    def sync_file(self, path: Path) -> None:
        self.step("sync file")
        inode = self._found(path)
        inode.synced = inode.content

    def sync_folder(self, folder: Path) -> None:
        self.step("sync folder")
        self._synced[folder] = dict(self._names.setdefault(folder, {}))

    def names(self, folder: Path) -> list[str]:
        return sorted(self._names.get(folder, ()))

    def exists(self, path: Path) -> bool:
        return path.name in self._names.get(path.parent, ())

    def size(self, path: Path) -> int:
        return len(self._found(path).content)

    def modified(self, path: Path) -> float:
        return float("inf")  # Nothing is ever old enough to be taken for left over.

    def read(self, path: Path) -> bytes:
        return self._found(path).content

    def map(self, path: Path) -> pa.Buffer:
        return pa.py_buffer(self._found(path).content)

    def _found(self, path: Path) -> Inode:
        try:
            return self._names[path.parent][path.name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "it is not there", str(path)) from None
