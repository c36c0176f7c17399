"""The checkpoint that Spark itself keeps of a streaming query: the layout of its folder and files.

metadata        the id of the query
offsets/N       the cut of batch N: a version, the batch's settings, then one offset per source
commits/N       there once batch N is over
sources/I/N     the log of source I; of a file source, the files of its Nth offset. N.compact has those of all
                before it, too

Beside a file X there may be `.X.crc` with its checksum. Spark does not wait for the disk with any of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from tidegate.disk import DISK, Disk
from tidegate.errors import CheckpointError
from tidegate.storage.local import Local

_VERSION = "v1"
_NOTHING = "-"
"""The offset of a source that has not given anything."""


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Spark's checkpoint in `folder`; Spark may be writing to it."""

    folder: Path
    disk: Disk = DISK
    _named: set[Path] = field(default_factory=set, init=False, compare=False, repr=False)
    """Folders whose names outlive a power cut."""

    def newest(self, kind: Literal["offsets", "commits"]) -> int:
        """The last batch that was planned, or that is over; -1 for none."""
        names = self.disk.names(self.folder / kind)
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def finished(self) -> int:
        """The last batch that is over, noted as such or followed by another; -1 for none."""
        return max(self.newest("commits"), self.newest("offsets") - 1)

    def offsets(self, batch_id: int) -> list[Any] | None:
        """The end of the cut of a batch: one offset (or None) per source. None when it is not there or
        damaged."""
        try:
            lines = self.disk.read(self.cut_file(batch_id)).decode().splitlines()
            version, about, *offsets = lines
            json.loads(about)
            found = [None if line == _NOTHING else json.loads(line) for line in offsets]
        except (OSError, ValueError):
            return None
        return found if version == _VERSION else None

    def missing_log(self, source: int, offset: Any) -> Path | None:
        """The log that a source lacks to go on after this offset; None when it is a source without logs, or
        all are there."""
        last = _log_number(offset)
        logs = self._logs(source)
        for number in range(_first_needed(logs, last), last + 1):
            if number not in logs or not self._is_whole(logs[number]):
                return self.folder / "sources" / str(source) / str(number)
        return None

    def sync(self, batch_id: int, starts: Sequence[Any], ends: Sequence[Any]) -> None:
        """Have on disk what Spark has written for a batch: its cut, and what file sources take in it."""
        paths = [self.cut_file(batch_id)]
        for source, (start, end) in enumerate(zip(starts, ends, strict=True)):
            paths += [self._log(source, n) for n in range(_log_number(start) + 1, _log_number(end) + 1)]
        paths += [checksum for path in paths if self.disk.exists(checksum := _checksum(path))]
        for path in paths:
            self.disk.sync_file(path)
        for folder in dict.fromkeys(path.parent for path in paths):
            self.disk.sync_folder(folder)
            self._sync_name(folder)

    def notes(self, source: int, end: Any) -> list[Path]:
        """The files that Spark needs of a source to go on after this offset: of a file source, its logs."""
        if end is None:
            return []
        last, logs = _log_number(end), self._logs(source)
        numbers = range(_first_needed(logs, last), last + 1) if last >= 0 else sorted(logs)
        return [logs[number] for number in numbers if number in logs]

    def note(self, source: int, name: str, content: bytes) -> None:
        """Have such a file."""
        self._replace(self.folder / "sources" / str(source) / name, content)

    def drop_note(self, source: int, name: str) -> None:
        self._remove(self.folder / "sources" / str(source) / name)

    def rebuild(
        self, batch_id: int, starts: Sequence[Any], ends: Sequence[Any], *, finished: bool = False
    ) -> None:
        """Have a query begin with this batch as one that was planned and not done; `finished`: with the next
        one. Logs of sources stay."""
        for kind in ("offsets", "commits"):
            for name in self.disk.names(self.folder / kind):
                self.disk.remove(self.folder / kind / name)
        about = {"batchWatermarkMs": 0, "batchTimestampMs": round(time.time() * 1000), "conf": {}}
        if batch_id:
            self._write(self.cut_file(batch_id - 1), about, *starts)
            self._write(self._commit(batch_id - 1), {"nextBatchWatermarkMs": 0})
        self._write(self.cut_file(batch_id), about, *ends)
        if finished:
            self._write(self._commit(batch_id), {"nextBatchWatermarkMs": 0})
        if not self._is_whole(metadata := self.folder / "metadata"):
            self._replace(metadata, _new_metadata())

    def plan(self, batch_id: int, cut: bytes) -> None:
        """Have the cut of a batch as Spark wrote it elsewhere."""
        self._replace(self.cut_file(batch_id), cut)

    def unplan(self, batch_id: int) -> None:
        """Forget the cut of a batch that has not been committed."""
        self._remove(self.cut_file(batch_id))

    def tidy(self, ends: Sequence[Any], check_newest: Callable[[], object]) -> None:
        """Remove what a power cut has left of files that Spark can do without: those of the last batches, and
        of sources beyond `ends`, from the first one on that is missing or damaged.

        `check_newest` raises an error when a newer driver runs: it may have written these anew."""
        while self.disk.exists(commit := self._commit(self.newest("commits"))) and not self._is_whole(commit):
            self._remove(commit)
        for source, end in enumerate(ends):
            following = _log_number(end) + 1
            for number, log in sorted(self._logs(source).items()):
                if number == following and self._is_whole(log):
                    following += 1
                    self._remove_checksum(log)
                elif number >= following:
                    self._discard(log, check_newest)
        metadata, planned = self.folder / "metadata", self.newest("offsets")
        if planned >= 0 and not self._is_whole(metadata):
            self._replace(metadata, _new_metadata())
        elif self.disk.exists(metadata) and not self._is_whole(metadata):
            self._remove(metadata)
        for path in (metadata, commit, self.cut_file(planned), self.cut_file(planned - 1)):
            self._remove_checksum(path)

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
        return self._create(self.folder / "offsets" / str(batch_id), planned.encode())

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
                    f"Spark's own record of batch {number} is not in {offsets}, and without it a pipeline "
                    f"cannot resume after batch {batch_id}: the ledger and Spark's checkpoint do not match"
                )
            self._create(target / "offsets" / number, (offsets / number).read_bytes())
        self.is_over(batch_id, settle=settle)
        for number in numbers:
            if (commits / number).is_file():
                self._create(target / "commits" / number, (commits / number).read_bytes())
        metadata = json.loads((self.folder / "metadata").read_bytes())
        self._create(target / "metadata", json.dumps({**metadata, "id": str(uuid4())}).encode())
        # Files that a source has seen beyond the cut do no harm: the next cut takes them in.
        for path in sorted((self.folder / "sources").rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                self._create(target / path.relative_to(self.folder), path.read_bytes())

    def is_over(self, batch_id: int, *, settle: float) -> bool:
        """Whether Spark notes within `settle` seconds that a batch is over."""
        until = time.monotonic() + settle
        while not (noted := self._commit(batch_id).is_file()) and time.monotonic() < until:
            time.sleep(0.05)
        return noted

    def cut_file(self, batch_id: int) -> Path:
        """Where the cut of a batch is."""
        return self.folder / "offsets" / str(batch_id)

    def _commit(self, batch_id: int) -> Path:
        return self.folder / "commits" / str(batch_id)

    def _log(self, source: int, number: int) -> Path:
        log = self.folder / "sources" / str(source) / str(number)
        return log if self.disk.exists(log) else log.with_suffix(".compact")

    def _logs(self, source: int) -> dict[int, Path]:
        folder = self.folder / "sources" / str(source)
        paths = (folder / name for name in sorted(self.disk.names(folder)))  # N.compact is after N.
        return {int(path.stem): path for path in paths if path.stem.isdigit()}

    def _is_whole(self, path: Path) -> bool:
        """Whether a file may be all that was written: each of them ends a JSON object."""
        return self.disk.exists(path) and self.disk.read(path).endswith(b"}")

    def _write(self, path: Path, *parts: Any) -> None:
        lines = [_VERSION, *(_NOTHING if part is None else json.dumps(part) for part in parts)]
        self._remove_checksum(path)
        self._replace(path, "\n".join(lines).encode())

    def _create(self, path: Path, content: bytes) -> bool:
        return Local(path.parent, self.disk, private=False).create(path.name, content)

    def _replace(self, path: Path, content: bytes) -> None:
        Local(path.parent, self.disk, private=False).write(path.name, [content])

    def _remove(self, path: Path) -> None:
        self.disk.remove(path)
        self._remove_checksum(path)

    def _discard(self, path: Path, check_newest: Callable[[], object]) -> None:
        """Remove a file that cannot be written again, unless it is that of a newer driver."""
        aside = path.with_name(f".{path.name}.{uuid4().hex}")
        self.disk.rename(path, aside)
        try:
            check_newest()
        except BaseException:
            self.disk.link(aside, path)
            raise
        finally:
            self.disk.remove(aside)
        self._remove_checksum(path)

    def _remove_checksum(self, path: Path) -> None:
        if self.disk.exists(checksum := _checksum(path)):
            self.disk.remove(checksum)

    def _sync_name(self, folder: Path) -> None:
        """Have the name of a folder on disk, and of those above it, up to the checkpoint."""
        while folder not in self._named and folder != self.folder.parent:
            self.disk.sync_folder(folder.parent)
            self._named.add(folder)
            folder = folder.parent


def _first_needed(logs: Mapping[int, Path], last: int) -> int:
    """The log that a file source begins to read at: one that was compacted stands for all before it."""
    return max((number for number, path in logs.items() if path.suffix and number <= last), default=0)


def _new_metadata() -> bytes:
    return json.dumps({"id": str(uuid4())}).encode()


def _log_number(offset: Any) -> int:
    """The number of the log that an offset names; -1 when it names none."""
    return int(offset["logOffset"]) if isinstance(offset, dict) and "logOffset" in offset else -1


def _checksum(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


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
