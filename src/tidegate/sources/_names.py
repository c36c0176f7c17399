"""Names of files as Spark reports them."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


def is_remote(name: str) -> bool:
    """Whether the name is a URL of anything but this machine's files.

    >>> is_remote("s3a://bucket/in"), is_remote("file:///tmp/in"), is_remote("/tmp/in")
    (True, False, False)
    """
    return _URL.match(name) is not None and not name.startswith("file:")


def local_path(name: str) -> Path:
    """The file or folder on this machine that is meant; it need not exist.

    Spark escapes names in some places and not in others, so what exists decides.

    >>> local_path("file:///tmp/no%20such").as_posix()
    '/tmp/no such'
    """
    if not name.startswith("file:"):
        return Path(name).expanduser().absolute()
    plain = Path("/" + name.removeprefix("file:").lstrip("/"))
    return plain if plain.exists() else Path(unquote(str(plain)))
