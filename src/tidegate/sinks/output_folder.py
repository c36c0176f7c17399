"""The folder of a files sink: what is where in it, and its manifests.

<root>/                 the data files of committed batches, for any reader
<root>/_tidegate/
    manifests/          the chain of manifests: what is named there is committed
    data/               the data files that manifests name; those in the root are links to them
    staged/<attempt>/   what Spark has written, until its batch is published
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.errors import SinkError
from tidegate.ledger.atomic import create
from tidegate.sinks import manifest
from tidegate.sinks.manifest import Header, OutputManifest, Span

_T = TypeVar("_T")
_DATA = re.compile(r"(\d{12})-(?:(\d{12})-)?.+\.(?:parquet|json)")
_LOOKS = 100
"""Compaction may replace manifests while they are read: one is missing if it is so at two looks between which
nothing has changed, or at all of them."""


def batches_of(name: str) -> Span | None:
    """The batches whose rows are in a data file, by its name; None for any other file."""
    match = _DATA.fullmatch(name)
    return Span(int(match[1]), int(match[2] or match[1])) if match else None


class OutputFolder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifests = root / "_tidegate" / "manifests"
        self.data = root / "_tidegate" / "data"
        self.staged = root / "_tidegate" / "staged"
        self.replaced = root / "_tidegate" / "replaced"

    def prepare(self) -> None:
        """Have all folders. Raises OSError when they cannot be written, or files cannot have second names."""
        for folder in (self.manifests, self.data, self.staged):
            DISK.make_folder(folder)
        probe = self.staged / f".probe-{uuid4().hex}"
        other = self.root / probe.name
        try:
            DISK.create(probe).close()
            DISK.link(probe, other)
        finally:
            DISK.remove(other)
            DISK.remove(probe)

    def spans(self) -> list[Span]:
        """Of all manifests, also of those that a compacted one stands for already."""
        return [span for name in DISK.names(self.manifests) if (span := Span.parse(name))]

    def headers(self) -> list[Header]:
        """Of the manifests that count, in order: work that does not grow with the data files.

        Raises SinkError when one is missing or damaged.
        """
        return self._whole(self._header, lambda header: header)

    def chain(self) -> list[OutputManifest]:
        """The manifests that count, in order. Raises SinkError when one is missing or damaged."""
        in_sight = self.newest_in_sight()
        found = self._whole(self.load, lambda record: record.header)
        self.check_newest(in_sight, found[-1].header if found else None)
        return found

    def newest_in_sight(self) -> int:
        """The latest batch of which any reader sees a data file; -1 for none. Looks at the names of all."""
        return max((span.last for name in DISK.names(self.root) if (span := batches_of(name))), default=-1)

    def check_newest(self, in_sight: int, newest: Header | None) -> None:
        """Raise SinkError when the manifest of a batch that was in sight before is missing from the end.

        A data file comes into sight after the manifest that names it.
        """
        if in_sight > (newest.last if newest else -1):
            raise self.problem(f"the manifest of batch {in_sight} is missing")

    def load(self, span: Span) -> OutputManifest:
        """FileNotFoundError when it is not there, SinkError when it is damaged."""
        path = self.manifests / span.name
        try:
            return manifest.decode(DISK.read(path))
        except ValueError as error:
            raise self._damaged(path, error) from None

    def append(self, record: OutputManifest) -> bool:
        """Make batches visible, all at once; False when somebody has done it already."""
        return create(self.manifests / record.header.span.name, record.encode())

    def show(self, files: Iterable[str]) -> None:
        """Have data files where any reader looks for them; doing it again changes nothing."""
        for name in files:
            with suppress(FileExistsError):
                DISK.link(self.data / name, self.root / name)

    def problem(self, what: str) -> SinkError:
        return SinkError(
            f"the output in {self.root} is damaged: {what}. Restore the folder from a copy, or start over "
            "with another folder and a new checkpoint. Other readers still see all data files"
        )

    def _header(self, span: Span) -> Header:
        path = self.manifests / span.name
        try:
            with path.open("rb") as file:
                return manifest.decode_header(file.readline())
        except ValueError as error:
            raise self._damaged(path, error) from None

    def _damaged(self, path: Path, error: ValueError) -> SinkError:
        return self.problem(f"{path.name} in {path.parent} cannot be read: {error}")

    def _whole(self, load: Callable[[Span], _T], header: Callable[[_T], Header]) -> list[_T]:
        if (self.root / "_manifests").is_dir():
            raise SinkError(
                f"{self.root} was written by an earlier version of Tidegate, with another layout: read it "
                "with that version, and use another folder and a new checkpoint with this one"
            )
        problem: str | None = None
        seen: list[Span] | None = None
        for _ in range(_LOOKS):
            spans = manifest.effective(self.spans())
            if spans == seen:
                break
            seen = spans
            try:
                found = [load(span) for span in spans]
            except FileNotFoundError as error:
                problem = f"{error.filename} is missing"
                continue
            problem = manifest.gap([header(one) for one in found])
            if problem is None:
                return found
        assert problem is not None
        raise self.problem(problem)
