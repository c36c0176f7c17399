"""Compaction of a files sink: few manifests, however many batches, and on request few data files.

Batches are grouped by their number, a hundred at a time, those groups again by hundreds, and so on. Once a
group is complete, one manifest is created that stands for all of its manifests: for readers, that is one
atomic step. Then what it replaces is removed, data files only after a while, for those who still read them.
Each step can be taken again, by the next driver or at the same time by one that was replaced.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from uuid import uuid4

from tidegate.disk import DISK
from tidegate.ledger.atomic import create
from tidegate.sinks import small_files
from tidegate.sinks.manifest import OutputManifest, Span, effective, gap, standing_for
from tidegate.sinks.output_folder import OutputFolder

FAN_IN = 100
_MOST_BYTES = 8 << 20
"""Compaction stops at manifests of this size, so that no step takes long: some 100,000 names of files."""
_DRAFT = "merge-"


@dataclass(frozen=True, slots=True)
class Compaction:
    """How the output in a folder is compacted."""

    folder: OutputFolder
    target: int | None = None
    """Merge data files up to about this many bytes; None leaves them as they are."""
    grace: float = 3600.0
    """Seconds for which data files are kept after others have replaced them."""
    proceed: Callable[[], None] = lambda: None
    """Called from time to time; may raise, to end it."""

    def run(self) -> None:
        """Compact the groups that are complete, finish what was interrupted, remove what nobody reads.

        Raises SinkError when a manifest is missing or damaged; FileNotFoundError when another driver does it.
        """
        self._settle_drafts()
        self._finish()
        while groups := self._next_groups():
            for group in groups:
                self._compact(self._loaded(group))
            self._finish()
        self._remove_replaced()

    def _next_groups(self) -> list[list[Span]]:
        """Groups that are due and have no manifest in common."""

        def size(span: Span) -> int:
            return DISK.size(self.folder.manifests / span.name)

        found: list[list[Span]] = []
        taken = set[Span]()
        for group in due(effective(self.folder.spans())):
            if taken.isdisjoint(group) and sum(map(size, group)) <= _MOST_BYTES:
                found.append(group)
                taken.update(group)
        return found

    def _loaded(self, group: Sequence[Span]) -> list[OutputManifest]:
        self.proceed()
        parts = [self.folder.load(span) for span in group]
        headers = [part.header for part in parts]
        if (problem := gap(headers, headers[0].after)) is not None:
            raise self.folder.problem(problem)
        return parts

    def _compact(self, parts: Sequence[OutputManifest]) -> None:
        files = [name for part in parts for name in part.files]
        if self.target is None:
            self._append(OutputManifest.compacted(parts, files))
            return
        span = Span(parts[0].header.first, parts[-1].header.last)
        draft = self.folder.staged / f"{_DRAFT}{span}-{uuid4().hex[:8]}"
        DISK.make_folder(draft)
        try:
            self._merge(files, draft)
        except Exception:
            self._drop(draft, keep=())
            raise
        record = OutputManifest.compacted(parts, files)
        self._drop(draft, keep=record.files if self._append(record) else ())

    def _append(self, record: OutputManifest) -> bool:
        # From then on no start looks whether the data files of these batches are in sight.
        DISK.sync_folder(self.folder.root)
        return self.folder.append(record)

    def _merge(self, files: list[str], draft: Path) -> None:
        """Put merged files in the place of small ones. Those that are new have a second name in `draft`."""
        data = self.folder.data
        for number, run in enumerate(self._runs(files)):
            # As any data file, it has its first batch in front.
            merged = f"{draft.name.removeprefix(_DRAFT)}-{number:05d}{Path(run[0]).suffix}"
            small_files.merge([data / name for name in run], draft / merged, proceed=self.proceed)
            DISK.link(draft / merged, data / merged)
            start = files.index(run[0])
            files[start : start + len(run)] = [merged]
        DISK.sync_folder(data)

    def _runs(self, files: Sequence[str]) -> list[list[str]]:
        assert self.target is not None
        sizes = [(name, DISK.size(self.folder.data / name)) for name in files]
        return [
            [path.name for path in group]
            for run in small_files.runs(sizes, self.target)
            for group in small_files.alike(self.folder.data / name for name in run)
            if len(group) > 1
        ]

    def _settle_drafts(self) -> None:
        """Merged files that another driver has left are named by a manifest, or never will be."""
        for draft in self.folder.staged.glob(f"{_DRAFT}*"):
            _, first, last, _ = draft.name.split("-")
            span = Span(int(first), int(last))
            group = [other for other in effective(self.folder.spans()) if span.holds(other)]
            if len(group) > 1:
                # That driver may be alive, and about to create this manifest: be the first.
                parts = self._loaded(group)
                files = [name for part in parts for name in part.files]
                self._append(OutputManifest.compacted(parts, files))
            holder = next(other for other in effective(self.folder.spans()) if other.holds(span))
            self._drop(draft, keep=self.folder.load(holder).files)

    def _drop(self, draft: Path, *, keep: Sequence[str]) -> None:
        for name in set(DISK.names(draft)) - set(keep):
            DISK.remove(self.folder.data / name)
        shutil.rmtree(draft, ignore_errors=True)

    def _finish(self) -> None:
        """Remove the manifests that another one stands for, and from sight the data files it replaces."""
        for span, covered in standing_for(self.folder.spans()).items():
            if not covered:
                continue
            files = set(self.folder.load(span).files)
            before = {name for other in covered for name in self.folder.load(other).files}
            self.folder.show(files - before)
            self._replace(span, sorted(before - files))
            DISK.sync_folder(self.folder.root)  # After that, nothing tells what was to be in sight.
            for other in covered:
                DISK.remove(self.folder.manifests / other.name)

    def _replace(self, span: Span, files: Sequence[str]) -> None:
        for name in files:
            DISK.remove(self.folder.root / name)
        if files:
            note = self.folder.replaced / f"{span}-{uuid4().hex[:8]}.json"
            create(note, json.dumps(files).encode())

    def _remove_replaced(self) -> None:
        for name in DISK.names(self.folder.replaced):
            note = self.folder.replaced / name
            if name.startswith(".") or time.time() - DISK.modified(note) < self.grace:
                continue
            for file in json.loads(DISK.read(note)):
                DISK.remove(self.folder.data / file)
                DISK.remove(self.folder.root / file)  # In case a driver that was replaced has shown it again.
            DISK.remove(note)


def due(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """The groups of manifests that are complete and more than one; `spans` are those that count, in order."""
    end = spans[-1].last + 1 if spans else 0
    width = FAN_IN
    while width <= end:
        numbered = ((span.first // width, span) for span in spans)
        for number, group in groupby(numbered, itemgetter(0)):
            members = [span for _, span in group]
            if len(members) > 1 and members[-1].last < (number + 1) * width <= end:
                yield members
        width *= FAN_IN
