"""What keeps and serves the rows of a state node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.state.backends.backend import Backend
from tidegate.state.backends.columnar import Columnar

NAMES = ("columnar", "rocksdb", "redis", "memory")


def open_backend(name: str, *, scratch: Path, memory: int, options: Mapping[str, str]) -> Backend:
    """A backend by its name. `scratch` is a local folder for its files, `memory` its limit in bytes."""
    if name == "columnar":
        return Columnar()
    raise ConfigError(f"there is no state backend {name!r}; choose one of {', '.join(NAMES)}")
