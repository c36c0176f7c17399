"""The folder of a files sink, in a file system or an object store: its data files, and its manifests.

<root>/                 the data files of committed batches, for any reader
<root>/_tidegate/
    manifests/          the chain of manifests: what is named there is committed
    ...                 data files that are not in sight, see `data.folder_files` and `data.store_files`
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from tidegate.errors import MissingFileError, PipelineError, SinkError
from tidegate.sinks import manifest
from tidegate.sinks.data.data_files import DataFiles
from tidegate.sinks.data.folder_files import FolderFiles
from tidegate.sinks.data.store_files import StoreFiles
from tidegate.sinks.manifest import Header, OutputManifest, Span
from tidegate.storage.local import Local
from tidegate.storage.place import local_folder
from tidegate.storage.remote import Remote
from tidegate.storage.storage import Storage

_T = TypeVar("_T")
_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_LOOKS = 100
"""Compaction may replace manifests while they are read: one is missing if it is so at two looks between which
nothing has changed, or at all of them."""
_HEADER_BYTES = 4096


def place_of(path: str | os.PathLike[str]) -> str:
    """An absolute folder, or an address in an object store. Raises PipelineError."""
    text = os.fspath(path)
    if not text:
        raise PipelineError("the path of a folder is empty")
    if "://" not in text and not text.startswith("file:"):
        return str(Path(text).resolve())
    address = urlsplit(text)
    if address.scheme == "file" and address.netloc in ("", "localhost"):
        folder = local_folder(f"file://{address.path}")
        assert folder is not None
        return str(folder.resolve())
    if address.scheme not in _STORES or not address.netloc:
        raise PipelineError(
            f"{text!r} is neither a local folder nor in an object store; write a path, file:///path, or an "
            "address like s3://bucket/path"
        )
    if "@" in address.netloc or address.query or address.fragment:
        raise PipelineError(
            "the address of an object store is scheme://bucket/path and nothing else: credentials come from "
            "the environment"
        )
    return text.rstrip("/")


class OutputFolder:
    manifests: Storage
    files: DataFiles

    def __init__(self, place: str | Path, *, patience: float | None = None) -> None:
        """`patience`: for how many seconds a store that is away is asked again, if not as usual."""
        root: Storage
        folder = local_folder(place)
        if folder is None:
            root = Remote(str(place)) if patience is None else Remote(str(place), patience=patience)
            self.files = StoreFiles(root)
        else:
            root = Local(folder, private=False)
            self.files = FolderFiles(folder)
        self.place = str(place)
        self.manifests = root.within("_tidegate").within("manifests")

    def spans(self) -> list[Span]:
        """Of all manifests, also of those that a compacted one stands for already."""
        return [span for name in self.manifests.names() if (span := Span.parse(name))]

    def headers(self, *, check_end: bool = False) -> list[Header]:
        """Of the manifests that count, in order: work that does not grow with the data files.

        Raises SinkError when one is missing or damaged. That they are missing from the end only the data
        files can tell; with `check_end` these are asked.
        """
        return self._whole(self._header, lambda header: header, check_end=check_end)

    def chain(self) -> list[OutputManifest]:
        """The manifests that count, in order. Raises SinkError when one is missing or damaged."""
        return self._whole(self.load, lambda record: record.header, check_end=True)

    def load(self, span: Span) -> OutputManifest:
        """FileNotFoundError when it is not there, SinkError when it is damaged."""
        content = self.manifests.open(span.name).to_pybytes()
        try:
            return manifest.decode(content)
        except ValueError as error:
            raise self._damaged(span, error) from None

    def append(self, record: OutputManifest) -> bool:
        """Make batches visible, all at once; False when somebody has done it already."""
        return self.manifests.create(record.header.span.name, record.encode())

    def problem(self, what: str) -> SinkError:
        return SinkError(
            f"the output in {self.place} is damaged: {what}. Restore the folder from a copy, or start over "
            "with another folder and a new checkpoint. Other readers still see all data files"
        )

    def _header(self, span: Span) -> Header:
        start = self.manifests.start(span.name, _HEADER_BYTES).to_pybytes()
        if b"\n" not in start:
            start = self.manifests.open(span.name).to_pybytes()
        line, end, _ = start.partition(b"\n")
        try:
            return manifest.decode_header(line + end)
        except ValueError as error:
            raise self._damaged(span, error) from None

    def _damaged(self, span: Span, error: ValueError) -> SinkError:
        return self.problem(f"{span.name} in {self.manifests} cannot be read: {error}")

    def _whole(
        self, load: Callable[[Span], _T], header: Callable[[_T], Header], *, check_end: bool
    ) -> list[_T]:
        self.files.check_there()
        # A data file comes into sight after the manifest that names it.
        in_sight = -1
        if check_end:
            in_sight = self.files.latest_in_sight(max((span.last for span in self.spans()), default=-1))
        problem: str | None = None
        seen: list[Span] | None = None
        for _ in range(_LOOKS):
            spans = manifest.effective(self.spans())
            if spans == seen:
                break
            seen = spans
            try:
                found = self.manifests.each(load, spans)
            except MissingFileError as error:
                problem = str(error)
                continue
            headers = [header(one) for one in found]
            problem = manifest.gap(headers)
            if problem is not None:
                continue
            if in_sight > (headers[-1].last if headers else -1):
                raise self.problem(f"the manifest of batch {in_sight} is missing")
            return found
        assert problem is not None
        raise self.problem(problem)
