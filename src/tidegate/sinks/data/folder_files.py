"""Data files in a local folder: what is committed gets a second name in the folder itself.

<root>/                 the data files of committed batches, for any reader
<root>/_tidegate/
    data/               the data files that manifests name; those in the root are links to them
    staged/<attempt>/   what Spark has written, until its batch is published
    staged/merge-.../   second names of merged files, until a manifest names them
    replaced/           notes on which data files were replaced
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import SinkError
from tidegate.sinks.data.data_files import DataFiles, Draft, StagedParts, attempt_of, batches_of
from tidegate.sinks.manifest import OutputManifest, Span
from tidegate.sinks.sink import Attempt
from tidegate.storage.local import Local
from tidegate.storage.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

_DRAFT = "merge-"
_T = TypeVar("_T")


class FolderFiles(DataFiles):
    def __init__(self, root: Path) -> None:
        self.place = str(root)
        self.root = root
        self.data = root / "_tidegate" / "data"
        self.staging = root / "_tidegate" / "staged"
        self.replaced = root / "_tidegate" / "replaced"
        self._files = Local(self.data, private=False)
        self._notes = Local(self.replaced, private=False)

    def prepare(self) -> None:
        """Raises OSError, too, when files cannot have second names."""
        for folder in (self.data, self.staging, self.data.with_name("manifests")):
            DISK.make_folder(folder)
        probe = self.staging / f".probe-{uuid4().hex}"
        other = self.root / probe.name
        try:
            DISK.create(probe).close()
            DISK.link(probe, other)
        finally:
            DISK.remove(other)
            DISK.remove(probe)

    def check_there(self) -> None:
        if not self.root.is_dir():
            raise SinkError(f"there is no folder {self.root}; has the pipeline run, and from this directory?")
        if (self.root / "_manifests").is_dir():
            raise SinkError(
                f"{self.root} was written by an earlier version of Tidegate, with another layout: read it "
                "with that version, and use another folder and a new checkpoint with this one"
            )

    def staged(self) -> StagedParts:
        found: dict[Attempt, list[str]] = {}
        for folder in self.staging.glob("[0-9]*-*-*"):
            if (attempt := attempt_of(folder.name)) is not None:
                names = DISK.names(folder)
                found[attempt] = sorted(name for name in names if not name.startswith((".", "_")))
        return found

    def settle(self, attempt: Attempt, parts: Sequence[str], staged: Sequence[str]) -> list[str]:
        folder = self.staging / str(attempt)
        names = []
        for number, part in enumerate(parts):
            names.append(f"{attempt}-{number:05d}{Path(part).suffix}")
            if part in staged:
                with suppress(FileNotFoundError):  # A driver that was replaced does the same.
                    DISK.rename(folder / part, self.data / names[-1])
                    continue
            if not (self.data / names[-1]).is_file():
                raise FileNotFoundError(f"{folder / part} is missing")
        if names:
            DISK.sync_folder(self.data)
        shutil.rmtree(folder, ignore_errors=True)
        return names

    def drop(self, staged: StagedParts) -> None:
        for attempt in staged:
            shutil.rmtree(self.staging / str(attempt), ignore_errors=True)

    def show(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileExistsError):
                DISK.link(self.data / name, self.root / name)

    def show_again(self, spans: Sequence[Span], load: Callable[[Span], OutputManifest]) -> None:
        # The driver may have ended after the newest manifest, before its files were in sight; and a power
        # cut may take those of batches that are not compacted yet out of sight again.
        for span in spans:
            if span is spans[-1] or span.first == span.last:
                self.show(load(span).files)

    def latest_in_sight(self, after: int) -> int:
        latest = max((span.last for name in DISK.names(self.root) if (span := batches_of(name))), default=-1)
        return latest if latest > after else -1

    def find(self, name: str) -> Storage:
        return self._files

    def fetch(self, name: str) -> pa.Buffer:
        return self._files.open(name)

    def end(self, name: str, length: int) -> pa.Buffer:
        return self._files.end(name, length)

    def sizes(self, names: Sequence[str]) -> list[int]:
        return list(map(self._files.size, names))

    def each(self, function: Callable[[str], _T], names: Iterable[str]) -> list[_T]:
        return self._files.each(function, names)

    def add_merged(self, draft: Draft, name: str, content: Iterator[bytes]) -> None:
        folder = self._folder_of(draft)
        Local(folder, private=False).write(name, content)
        DISK.link(folder / name, self.data / name)
        DISK.sync_folder(self.data)

    def drafts(self) -> list[Draft]:
        found = (folder.name.split("-") for folder in self.staging.glob(f"{_DRAFT}*"))
        return [Draft(Span(int(first), int(last)), mark) for _, first, last, mark in found]

    def end_draft(self, draft: Draft, *, keep: Sequence[str]) -> None:
        folder = self._folder_of(draft)
        for name in set(DISK.names(folder)) - set(keep):
            DISK.remove(self.data / name)
        shutil.rmtree(folder, ignore_errors=True)

    def replace(self, span: Span, names: Sequence[str]) -> None:
        for name in names:
            DISK.remove(self.root / name)
        if names:
            self._notes.create(f"{span}-{uuid4().hex[:8]}.json", json.dumps(names).encode())

    def remove_replaced(self, grace: float) -> None:
        for note in self._notes.listed():
            if time.time() - note.modified < grace:
                continue
            for name in json.loads(self._notes.open(note.name).to_pybytes()):
                DISK.remove(self.data / name)
                DISK.remove(self.root / name)  # In case a driver that was replaced has shown it again.
            self._notes.delete(note.name)

    def settle_sight(self) -> None:
        DISK.sync_folder(self.root)

    def staged_in(self, attempt: Attempt, part: str) -> tuple[Storage, str]:
        return Local(self.staging / str(attempt), private=False), part

    def take(self, names: Sequence[str], source: DataFiles) -> None:
        for name in names:
            if not (self.data / name).exists():
                source.find(name).copy(name, self._files, name)
        self.show(names)

    def take_settled(self, source: FolderFiles, batch_id: int) -> None:
        """Have the files of a batch of another output that are settled, but may not be in a manifest yet."""
        for name in source._files.names():
            if name.startswith(f"{batch_id:012d}-"):
                source._files.copy(name, self._files, name)

    def _folder_of(self, draft: Draft) -> Path:
        return self.staging / f"{_DRAFT}{draft}"
