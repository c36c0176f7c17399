"""The checkpoint that Spark itself keeps of a streaming query: the layout of its folder and files.

metadata        the id of the query
offsets/N       the cut of batch N: a version, the batch's settings, then one offset per source
commits/N       there once batch N is over
sources/I/N     the log of source I; of a file source, the files of its Nth offset
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from tidegate.errors import CheckpointError
from tidegate.ledger.atomic import create


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Spark's checkpoint in `folder`; Spark may be writing to it."""

    folder: Path

    def planned_at(self, batch_id: int) -> datetime | None:
        """When Spark planned a batch; None when it no longer knows."""
        try:
            lines = (self.folder / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
            return datetime.fromtimestamp(json.loads(lines[1])["batchTimestampMs"] / 1000, UTC)
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            return None

    def plan_empty(self, batch_id: int) -> bool:
        """Plan a batch that ends where the one before it did. Spark runs it, without rows, when the query
        starts the next time. False when the batch is planned already. Spark must not be running the query."""
        text = (self.folder / "offsets" / str(batch_id - 1)).read_text(encoding="utf-8")
        version, settings, *ends = text.splitlines()
        now = {**json.loads(settings), "batchTimestampMs": round(time.time() * 1000)}
        planned = "\n".join([version, json.dumps(now, separators=(",", ":")), *ends])
        return create(self.folder / "offsets" / str(batch_id), planned.encode())

    def source_files(self, source: int, offset: Any) -> tuple[str, ...]:
        """The files that a file source took in the batch with this offset; none for other sources."""
        if not isinstance(offset, dict) or "logOffset" not in offset:
            return ()
        wanted = offset["logOffset"]
        for name in (str(wanted), f"{wanted}.compact"):
            log = self.folder / "sources" / str(source) / name
            if log.is_file():
                return tuple(_last_entries(log, wanted))
        return ()

    def copy(self, target: Path, batch_id: int, *, settle: float) -> None:
        """Copy what a query needs to go on after `batch_id`: that cut and the one before it.

        Spark gets `settle` seconds to note that the batch is over. Where it does not, the copy has it planned
        but not done, and Spark runs it again. The copy has a query id of its own, so that both can run at
        once, even in one session.
        """
        offsets, commits = self.folder / "offsets", self.folder / "commits"
        numbers = [str(number) for number in range(max(0, batch_id - 1), batch_id + 1)]
        for number in numbers:
            if not (offsets / number).is_file():
                raise CheckpointError(
                    f"Spark's own record of batch {number} is not in {offsets}, and without it the pipeline "
                    f"cannot resume after batch {batch_id}: its ledger and Spark's checkpoint do not match"
                )
            create(target / "offsets" / number, (offsets / number).read_bytes())
        until = time.monotonic() + settle
        while not (commits / numbers[-1]).is_file() and time.monotonic() < until:
            time.sleep(0.05)
        for number in numbers:
            if (commits / number).is_file():
                create(target / "commits" / number, (commits / number).read_bytes())
        metadata = json.loads((self.folder / "metadata").read_bytes())
        create(target / "metadata", json.dumps({**metadata, "id": str(uuid4())}).encode())
        # Files that a source has seen beyond the cut do no harm: the next cut takes them in.
        for path in sorted((self.folder / "sources").rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                create(target / path.relative_to(self.folder), path.read_bytes())


def _last_entries(log: Path, batch_id: int) -> list[str]:
    """The paths of the entries of a batch in the log of a file source, where they come last.

    A log that was compacted has every file ever seen before them, which is left unread.
    """
    found: list[str] = []
    for line in _lines_from_end(log):
        if not line.startswith(b"{"):
            break  # the version, in the first line
        entry = json.loads(line)
        if entry["batchId"] != batch_id:
            break
        found.append(entry["path"])
    return found[::-1]


def _lines_from_end(path: Path, piece: int = 1 << 16) -> Iterator[bytes]:
    """The lines of a file that are not empty, last one first, as far as somebody reads them."""
    with path.open("rb") as file:
        rest, place = b"", file.seek(0, os.SEEK_END)
        while place > 0:
            start = max(0, place - piece)
            file.seek(start)
            first, *lines = (file.read(place - start) + rest).split(b"\n")
            yield from filter(None, reversed(lines))
            rest, place = first, start
        if rest:
            yield rest
