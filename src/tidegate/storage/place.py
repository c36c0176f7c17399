"""Which storage a place is, by how it is written."""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidegate.storage.local import Local
from tidegate.storage.remote import Remote
from tidegate.storage.storage import Storage


def open_storage(place: str | Path, *, private: bool = True) -> Storage:
    """The storage at a place: a folder, `file:///folder`, or the URL of an object store.

    `private`: files that are made in a folder are for this user's eyes only; a store has rules of its own.
    """
    folder = local_folder(place)
    return Remote(str(place)) if folder is None else Local(folder, private=private)


def join(place: str | Path, *names: str) -> str:
    """A place within a place.

    >>> join("s3://bucket/prefix/", "dead-letters")
    's3://bucket/prefix/dead-letters'
    >>> join(Path("/data"), "a", "b")
    '/data/a/b'
    """
    return "/".join([str(place).rstrip("/"), *names])


def local_folder(place: str | Path) -> Path | None:
    """The folder that a place is; None for an object store.

    >>> local_folder("file:///data/with%20space")
    PosixPath('/data/with space')
    >>> local_folder("s3://bucket/prefix")
    """
    if isinstance(place, Path):
        return place
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if "://" in place else Path(place)


def working_folder(place: str | Path) -> Path:
    """The folder of this machine that goes with a place: the place itself if it is one, else one below the
    user's cache, which is `$XDG_CACHE_HOME` or `~/.cache`.

    >>> working_folder("somewhere")
    PosixPath('somewhere')
    """
    folder = local_folder(place)
    if folder is not None:
        return folder
    # The same URL may lead to another store.
    identity = "\n".join([str(place).rstrip("/"), os.environ.get("AWS_ENDPOINT_URL", "")])
    name = re.sub(r"[^A-Za-z0-9]+", "-", str(place).rstrip("/").rpartition("/")[2])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tidegate" / f"{name}-{sha256(identity.encode()).hexdigest()[:16]}"
