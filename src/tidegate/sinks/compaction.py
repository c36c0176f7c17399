"""Compaction of a files sink: few manifests, however many batches, and on request few data files.

Batches are grouped by their number, a hundred at a time, those groups again by hundreds, and so on. Once a
group is complete, one manifest is created that stands for all of its manifests: for readers, that is one
atomic step. Then what it replaces is removed, data files only after a while, for those who still read them.
Each step can be taken again, by the next driver or at the same time by one that was replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import PurePath
from uuid import uuid4

from tidegate.sinks.data import small_files
from tidegate.sinks.data.data_files import Draft
from tidegate.sinks.manifest import OutputManifest, Span, effective, gap, standing_for
from tidegate.sinks.output_folder import OutputFolder

FAN_IN = 100
_MOST_BYTES = 8 << 20
"""Compaction stops at manifests of this size, so that no step takes long: some 100,000 names of files."""


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
        self.folder.files.remove_replaced(self.grace)

    def _next_groups(self) -> list[list[Span]]:
        """Groups that are due and have no manifest in common."""
        listed = self.folder.manifests.listed()
        sizes = {span: file.size for file in listed if (span := Span.parse(file.name))}
        found: list[list[Span]] = []
        taken = set[Span]()
        for group in due(effective(list(sizes))):
            if taken.isdisjoint(group) and sum(map(sizes.__getitem__, group)) <= _MOST_BYTES:
                found.append(group)
                taken.update(group)
        return found

    def _loaded(self, group: Sequence[Span]) -> list[OutputManifest]:
        self.proceed()
        parts = self.folder.manifests.each(self.folder.load, group)
        headers = [part.header for part in parts]
        if (problem := gap(headers, headers[0].after)) is not None:
            raise self.folder.problem(problem)
        return parts

    def _compact(self, parts: Sequence[OutputManifest]) -> None:
        files = [name for part in parts for name in part.files]
        if self.target is None:
            self._append(OutputManifest.compacted(parts, files))
            return
        draft = Draft(Span(parts[0].header.first, parts[-1].header.last), uuid4().hex[:8])
        try:
            self._merge(files, self.target, draft)
        except Exception:
            self.folder.files.end_draft(draft, keep=())
            raise
        record = OutputManifest.compacted(parts, files)
        self.folder.files.end_draft(draft, keep=record.files if self._append(record) else ())

    def _append(self, record: OutputManifest) -> bool:
        # From then on no start looks whether the data files of these batches are in sight.
        self.folder.files.settle_sight()
        return self.folder.append(record)

    def _merge(self, files: list[str], target: int, draft: Draft) -> None:
        """Put merged files in the place of small ones."""
        place, number = self.folder.files, 0
        sizes = list(zip(files, place.sizes(files), strict=True))
        for run in small_files.runs(sizes, target):
            loaded = zip(run, self.folder.manifests.each(place.fetch, run), strict=True)
            for group in small_files.alike(loaded):
                if len(group) > 1:
                    name = draft.name(number, PurePath(group[0][0]).suffix)
                    place.add_merged(draft, name, small_files.merged(group, proceed=self.proceed))
                    start = files.index(group[0][0])
                    files[start : start + len(group)] = [name]
                    number += 1

    def _settle_drafts(self) -> None:
        """Merged files that another driver has left are named by a manifest, or never will be."""
        for draft in self.folder.files.drafts():
            group = [other for other in effective(self.folder.spans()) if draft.span.holds(other)]
            if len(group) > 1:
                # That driver may be alive, and about to create this manifest: be the first.
                parts = self._loaded(group)
                files = [name for part in parts for name in part.files]
                self._append(OutputManifest.compacted(parts, files))
            holder = next(other for other in effective(self.folder.spans()) if other.holds(draft.span))
            self.folder.files.end_draft(draft, keep=self.folder.load(holder).files)

    def _finish(self) -> None:
        """Remove the manifests that another one stands for, and from sight the data files it replaces."""
        for span, covered in standing_for(self.folder.spans()).items():
            if not covered:
                continue
            files = set(self.folder.load(span).files)
            before = {name for other in covered for name in self.folder.load(other).files}
            self.folder.files.show(sorted(files - before))
            self.folder.files.replace(span, sorted(before - files))
            self.folder.files.settle_sight()  # After that, nothing tells what was to be in sight.
            self.folder.manifests.delete(*(other.name for other in covered))


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
