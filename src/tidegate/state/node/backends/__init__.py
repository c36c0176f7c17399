"""What keeps and serves the rows of a state node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tidegate.errors import ConfigError
from tidegate.state.node.backends.backend import Backend

NAMES = ("columnar", "rocksdb", "redis", "memory")


def open_backend(name: str, *, scratch: Path, memory: int, options: Mapping[str, str]) -> Backend:
    """A backend by its name. `scratch` is a local folder for its files, `memory` its limit in bytes.

    Options: for `redis` its `url`, and a `prefix` that no other pipeline on that server has.
    """
    from tidegate.state.node.backends.columnar import Columnar
    from tidegate.state.node.backends.keyed import Keyed

    if name == "columnar":
        return Columnar()
    if name == "memory":
        from tidegate.state.node.backends.memory import MemoryStore

        return Keyed(MemoryStore())
    if name == "rocksdb":
        from tidegate.state.node.backends.rocksdb import RocksStore

        return Keyed(RocksStore(scratch / "rocksdb", memory))
    if name == "redis":
        from tidegate.state.node.backends.redis import RedisStore

        return Keyed(RedisStore(options))
    raise ConfigError(f"there is no state backend {name!r}; choose one of {', '.join(NAMES)}")
