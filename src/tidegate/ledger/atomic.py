"""Files that appear whole or not at all, and once."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from tidegate.disk import DISK, Disk


def create(path: Path, content: bytes, disk: Disk = DISK) -> bool:
    """Create `path` with `content`, durably; False when it is there already, whoever made it.

    A link either makes the name or fails, so of any number of racing writers exactly one wins, and no
    reader ever sees a part of the content.
    """
    disk.make_folder(path.parent)
    draft = path.parent / f".{path.name}.{uuid4().hex}"
    try:
        with disk.create(draft) as file:
            file.write(content)
            file.sync()
        try:
            disk.link(draft, path)
        except FileExistsError:
            return False
    finally:
        disk.remove(draft)
    disk.sync_folder(path.parent)
    return True
