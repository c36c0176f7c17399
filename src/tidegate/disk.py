"""Files as far as their outliving a crash goes: each step that matters is one method, so that whoever leaves
one out can be found out by a simulated disk.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


class File:
    """A new file that is being written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, part: bytes | pa.Buffer) -> None:
        self._file.write(part)

    def sync(self) -> None:
        """What was written outlives a power cut, under whatever names do."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class Disk:
    """The disks of this machine. Errors are those of the operating system."""

    def make_folder(self, folder: Path) -> None:
        """Have a folder, with those above it; the names of new ones outlive a power cut."""
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        self.sync_folder(folder.parent)

    def create(self, path: Path, *, private: bool = False) -> File:
        """A new file, for this user's eyes only if `private`; FileExistsError when the name is taken."""
        mode = 0o600 if private else 0o666
        return File(open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)))

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; FileExistsError when it is taken. Of racing ones exactly one wins."""
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            problem = f"there are no hard links here ({error.strerror}); use a folder on another file system"
            raise OSError(error.errno, problem) from error

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of what had it."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """That there is none is fine."""
        path.unlink(missing_ok=True)

    def remove_all(self, folder: Path) -> None:
        """A folder and what is in it, as far as that can be. That there is none is fine."""
        shutil.rmtree(folder, ignore_errors=True)

    def sync_file(self, path: Path) -> None:
        """What a file holds outlives a power cut, whoever wrote it."""
        self.sync_folder(path)

    def sync_folder(self, folder: Path) -> None:
        """The names in a folder, new and removed ones, outlive a power cut."""
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def names(self, folder: Path) -> list[str]:
        """The names of all files in a folder, in any order; none when it is not there."""
        try:
            with os.scandir(folder) as entries:
                return [entry.name for entry in entries if not entry.is_dir()]
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified(self, path: Path) -> float:
        """When it was last written to, in seconds since the epoch."""
        return path.stat().st_mtime

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def map(self, path: Path) -> pa.Buffer:
        """A whole file, read when it is looked at; it stays readable when its name is removed."""
        import pyarrow as pa

        with pa.memory_map(str(path)) as file:
            return file.read_buffer()


DISK = Disk()
