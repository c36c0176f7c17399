"""Files that appear whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from tidegate.disk import DISK, Disk


def create(path: Path, content: bytes, disk: Disk = DISK) -> bool:
    """Create `path` with `content`, durably; False when it is there already, whoever made it.

    A link either makes the name or fails, so of any number of racing writers exactly one wins, and no
    reader ever sees a part of the content.
    """
    with _draft(path, content, disk) as draft:
        try:
            disk.link(draft, path)
        except FileExistsError:
            return False
    disk.sync_folder(path.parent)
    return True


def replace(path: Path, content: bytes, disk: Disk = DISK) -> None:
    """Have `path` with `content`, durably, in place of what it was."""
    with _draft(path, content, disk) as draft:
        disk.rename(draft, path)
    disk.sync_folder(path.parent)


@contextmanager
def _draft(path: Path, content: bytes, disk: Disk) -> Iterator[Path]:
    """The content under another name in the same folder, removed at the end of the block."""
    disk.make_folder(path.parent)
    draft = path.parent / f".{path.name}.{uuid4().hex}"
    try:
        with disk.create(draft) as file:
            file.write(content)
            file.sync()
        yield draft
    finally:
        disk.remove(draft)
