"""The hot-key cache: rows that tasks wrote in the batch before, in files that an executor's workers share.

Spark gives a partition to whichever worker is free, and ends idle workers: what a worker kept in its own
memory would be useful only now and then.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from tidegate.state.table.table import StateTable

_MOST_BYTES = 64 << 20
"""What is kept of one table and partition; more is not worth the space."""
_NONCE = b"nonce"


class HotKeys:
    """Those of one pipeline and partition. `scratch` is a folder that ends with the executor."""

    def __init__(self, scratch: Path, token: str, partition: int) -> None:
        self._folder = _folder(scratch, token)
        self._partition = partition

    def remember(self, table: StateTable, nonce: int, rows: pa.Table) -> None:
        """Keep what an attempt at a task wrote, sorted by hash, in place of what was kept before.

        Without space for it there is less in the cache, and nothing else.
        """
        file = self._file(table)
        draft = file.with_suffix(f".{uuid4().hex}")
        try:
            if not rows.num_rows or rows.nbytes > _MOST_BYTES:
                file.unlink(missing_ok=True)
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            marked = rows.combine_chunks().replace_schema_metadata({_NONCE: str(nonce)})
            with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, marked.schema) as writer:
                writer.write_table(marked)
            draft.replace(file)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def recall(self, table: StateTable, nonce: int) -> pa.Table | None:
        """What that attempt wrote, which is what the nodes have; None when it is not here."""
        try:
            with pa.memory_map(str(self._file(table))) as source:
                content = pa.ipc.open_file(source)
                if (content.schema.metadata or {}).get(_NONCE) != str(nonce).encode():
                    return None
                return content.read_all().replace_schema_metadata(None)
        except OSError:
            return None

    def _file(self, table: StateTable) -> Path:
        return self._folder / f"{_digest(table.name)}-{self._partition}.arrow"


def forget(scratch: Path, token: str) -> None:
    """Remove all that is kept for a pipeline that has ended."""
    shutil.rmtree(_folder(scratch, token), ignore_errors=True)


def _folder(scratch: Path, token: str) -> Path:
    return scratch / "hot-keys" / _digest(token)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
