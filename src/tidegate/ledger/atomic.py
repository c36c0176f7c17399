"""Files that appear whole or not at all, and once."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4


def create(path: Path, content: bytes) -> bool:
    """Create `path` with `content`, durably; False when it is there already, whoever made it.

    A link either makes the name or fails, so of any number of racing writers exactly one wins, and no
    reader ever sees a part of the content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".{path.name}.{uuid4().hex}"
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True
