"""A store in RocksDB, embedded: files in a scratch folder, a bounded block cache."""

from __future__ import annotations

import shutil
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tidegate.errors import MissingExtraError
from tidegate.state.node.backends.store import Change, Id, Store
from tidegate.state.table.keys import Groups
from tidegate.state.table.table import NEVER

_GROUP = struct.Struct(">I")
_TIME = struct.Struct(">Q")
_ROWS, _DUES = b"r", b"t"


class RocksStore(Store):
    """Keys are `r table 0 group key`, and `t table 0 group due key` for those that will be due.

    A key that was written again may still have its earlier times in the index: `due` allows for that.
    The files are of no use to the next process: the log has everything.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        try:
            import rocksdict
        except ImportError:
            raise MissingExtraError("rocksdb", "the state backend rocksdb") from None
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._api: Any = rocksdict
        self._db: Any = rocksdict.Rdict(str(folder), _settings(rocksdict, memory))
        writing: Any = rocksdict.WriteOptions()
        writing.disable_wal = True
        self._db.set_write_options(writing)
        self._versions: dict[int, str] = {}
        self._lock = threading.RLock()

    def versions(self, groups: Groups) -> dict[int, str]:
        with self._lock:
            return {group: self._versions[group] for group in groups if group in self._versions}

    def get(self, table: str, ids: Sequence[Id]) -> tuple[list[bytes | None], dict[int, str]]:
        if not ids:
            return [], {}
        heads = {group: _head(_ROWS, table, group) for group in {group for group, _ in ids}}
        places = [heads[group] + key for group, key in ids]
        with self._lock:
            return self._db[places], self.versions(frozenset(heads))

    def put(self, changes: Iterable[Change], before: Mapping[int, str], after: Mapping[int, str]) -> Groups:
        with self._lock:
            fit = frozenset(group for group, text in before.items() if self._versions.get(group, "") == text)
            batch = self._api.WriteBatch(raw_mode=True)
            for table, group, key, rows, due in changes:
                if group not in fit:
                    continue
                if rows is None:
                    batch.delete(_head(_ROWS, table, group) + key)
                else:
                    batch.put(_head(_ROWS, table, group) + key, rows)
                if due != NEVER:
                    batch.put(_head(_DUES, table, group) + _time(due) + key, b"")
            self._db.write(batch)
            self._versions.update({group: after[group] for group in fit})
            return fit

    def due(self, table: str, groups: Groups, upto: int) -> tuple[list[Id], dict[int, str]]:
        found: dict[Id, None] = {}
        with self._lock:
            for group in sorted(groups):
                head = _head(_DUES, table, group)
                skipped = len(head) + _TIME.size
                for key, _ in self._between(head, head + _time(upto + 1)):
                    found[group, key[skipped:]] = None
            return list(found), self.versions(groups)

    def passed(self, table: str, groups: Groups, closed: int) -> None:
        with self._lock:
            batch = self._api.WriteBatch(raw_mode=True)
            for group in groups:
                head = _head(_DUES, table, group)
                for key, _ in self._between(head, head + _time(closed + 1)):
                    batch.delete(key)
            self._db.write(batch)

    def scan(self, table: str, group: int) -> list[bytes]:
        with self._lock:
            found = self._between(_head(_ROWS, table, group), _head(_ROWS, table, group + 1))
            return [rows for _, rows in found]

    def drop(self, tables: Iterable[str], groups: Groups) -> None:
        with self._lock:
            for group in groups:
                self._versions.pop(group, None)
                for table in tables:
                    for kind in (_ROWS, _DUES):
                        self._db.delete_range(_head(kind, table, group), _head(kind, table, group + 1))

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _between(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        reading = self._api.ReadOptions()
        reading.set_iterate_upper_bound(high)
        # From inside a generator, which keeps the options alive: the iterator uses their bound and does not.
        yield from self._db.items(from_key=low, read_opt=reading)


def _settings(api: Any, memory: int) -> Any:
    settings = api.Options(raw_mode=True)
    settings.create_if_missing(True)
    # Half for what is read, half for what is not on disk yet.
    blocks = api.BlockBasedOptions()
    blocks.set_block_cache(api.Cache(memory // 2))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10.0, False)
    settings.set_block_based_table_factory(blocks)
    settings.set_db_write_buffer_size(max(1 << 20, memory // 2))
    settings.set_max_open_files(256)
    return settings


def _head(kind: bytes, table: str, group: int) -> bytes:
    return kind + table.encode() + b"\0" + _GROUP.pack(group)


def _time(due: int) -> bytes:
    """Bytes that sort as the times do."""
    return _TIME.pack(min(due, NEVER) + 2**63)
