"""Data files in an object store, where nothing can be renamed or linked: what is committed is copied by the
store to where any reader looks, and then removed from where it was written.

<root>/                 the data files of committed batches, for any reader
<root>/_tidegate/
    staged/             what tasks have written, and merged files, until a manifest names them
    replaced/           data files that were replaced, for those who still read them

A data file that a manifest names is in one of these three: first it is staged, then in sight, then replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from tidegate.errors import MissingFileError
from tidegate.sinks.data.data_files import DataFiles, Draft, StagedParts, attempt_of, batches_of
from tidegate.sinks.manifest import OutputManifest, Span
from tidegate.sinks.sink import Attempt
from tidegate.storage.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")


class StoreFiles(DataFiles):
    def __init__(self, root: Storage) -> None:
        self.place = root.url
        self.root = root
        self.staging = root.within("_tidegate").within("staged")
        self.replaced = root.within("_tidegate").within("replaced")

    def prepare(self) -> None:
        probe = f"probe-{uuid4().hex}"
        self.staging.write(probe, [b""])
        self.staging.delete(probe)

    def check_there(self) -> None:
        """A store has no folders that could be missing."""

    def staged(self) -> StagedParts:
        found: dict[Attempt, list[str]] = {}
        for name in self.staging.names():
            if (attempt := attempt_of(name)) is not None:
                found.setdefault(attempt, []).append(name.removeprefix(f"{attempt}-"))
        return found

    def settle(self, attempt: Attempt, parts: Sequence[str], staged: Sequence[str]) -> list[str]:
        for part in set(parts) - set(staged):
            self.find(f"{attempt}-{part}")
        return [f"{attempt}-{part}" for part in parts]

    def drop(self, staged: StagedParts) -> None:
        if names := [f"{attempt}-{part}" for attempt, parts in staged.items() for part in parts]:
            self.staging.delete(*names)

    def show(self, names: Iterable[str]) -> None:
        shown = list(names)

        def copy(name: str) -> None:
            try:
                self.staging.copy(name, self.root, name)
            except MissingFileError:
                self.find(name)  # It was shown already, or even replaced.

        if shown:
            self.root.each(copy, shown)
            self.staging.delete(*shown)

    def show_again(self, spans: Sequence[Span], load: Callable[[Span], OutputManifest]) -> None:
        waiting = {name: held for name in self.staging.names() if (held := batches_of(name))}
        for span in spans:
            mine = {name for name, held in waiting.items() if span.holds(held)}
            if mine or span is spans[-1]:  # The newest one is looked at in any case: it may be damaged.
                self.show(sorted(mine.intersection(load(span).files)))

    def latest_in_sight(self, after: int) -> int:
        for file in self.root.listed(f"{after + 1:012d}"):
            if (span := batches_of(file.name)) is not None:
                return span.last
        return -1

    def find(self, name: str) -> Storage:
        def look(place: Storage) -> Storage:
            place.size(name)
            return place

        return self._where_it_is(name, look)

    def fetch(self, name: str) -> pa.Buffer:
        return self._where_it_is(name, lambda place: place.open(name))

    def end(self, name: str, length: int) -> pa.Buffer:
        return self._where_it_is(name, lambda place: place.end(name, length))

    def sizes(self, names: Sequence[str]) -> list[int]:
        found: dict[str, int] = {}
        last = max(names, default="")
        for file in self.root.listed(min(names, default="")[:12]):
            if file.name > last:
                break
            found[file.name] = file.size
        return [found[name] if name in found else self.find(name).size(name) for name in names]

    def each(self, function: Callable[[str], _T], names: Iterable[str]) -> list[_T]:
        return self.root.each(function, names)

    def add_merged(self, draft: Draft, name: str, content: Iterator[bytes]) -> None:
        self.staging.write(name, content)

    def drafts(self) -> list[Draft]:
        names = [name for name in self.staging.names() if attempt_of(name) is None and batches_of(name)]
        found = {tuple(name.split("-")[:3]) for name in names}
        return [Draft(Span(int(first), int(last)), mark) for first, last, mark in sorted(found)]

    def end_draft(self, draft: Draft, *, keep: Sequence[str]) -> None:
        mine = [name for name in self.staging.names() if name.startswith(f"{draft}-")]
        if left := set(mine) - set(keep):
            self.staging.delete(*left)

    def replace(self, span: Span, names: Sequence[str]) -> None:
        def keep(name: str) -> None:
            for place in (self.root, self.staging):
                with suppress(MissingFileError):  # It is in the other one, or was replaced already.
                    place.copy(name, self.replaced, name)
                    break

        if names:
            self.root.each(keep, names)
            self.root.delete(*names)
            self.staging.delete(*names)  # In case the driver ended before it was shown.

    def remove_replaced(self, grace: float) -> None:
        over = time.time() - grace
        if names := [file.name for file in self.replaced.listed() if file.modified <= over]:
            self.root.delete(*names)  # In case a driver that was replaced has shown it again.
            self.replaced.delete(*names)

    def staged_in(self, attempt: Attempt, part: str) -> tuple[Storage, str]:
        return self.staging, f"{attempt}-{part}"

    def take(self, names: Sequence[str], source: DataFiles) -> None:
        self.root.each(lambda name: source.find(name).copy(name, self.root, name), names)

    def _where_it_is(self, name: str, ask: Callable[[Storage], _T]) -> _T:
        # It may move while it is looked for: forward only, so that the second look finds it.
        for place in (self.root, self.staging, self.root):
            try:
                return ask(place)
            except MissingFileError:
                continue
        return ask(self.replaced)
