"""Ivy, which fetches jars for Spark, and its cache in the user's home."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache() -> Path:
    """The folder of what Tidegate has fetched for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"


@contextmanager
def locked() -> Iterator[None]:
    """Keep other processes of this user from fetching; waits until none does.

    Ivy's cache does not stand two processes at once: if both fetch the same jars, both may find broken files.
    The lock ends with its process, however that ends.
    """
    place = cache() / "ivy.lock"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
