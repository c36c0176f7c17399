"""Compaction of a files sink: few manifests, however many batches.

Batches are grouped by their number, a hundred at a time, those groups again by hundreds, and so on. Once a
group is complete, one manifest is created that stands for all of its manifests, and those are removed. Each
step can be taken again, by the next driver or at the same time by one that was replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from tidegate.disk import DISK
from tidegate.sinks.manifest import OutputManifest, Span, effective, gap
from tidegate.sinks.output_folder import OutputFolder

FAN_IN = 100
_MOST_BYTES = 8 << 20
"""Compaction stops at manifests of this size, so that no step takes long: some 100,000 names of files."""


def compact(folder: OutputFolder) -> None:
    """Compact the groups that are complete, and finish what was interrupted.

    Raises SinkError when a manifest is missing or damaged, FileNotFoundError when another driver is at it.
    """
    _finish(folder)
    while (group := _next_group(folder)) is not None:
        parts = [folder.load(span) for span in group]
        headers = [part.header for part in parts]
        if (problem := gap(headers, headers[0].after)) is not None:
            raise folder.problem(problem)
        folder.append(OutputManifest.compacted(parts, [name for part in parts for name in part.files]))
        _finish(folder)


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


def _next_group(folder: OutputFolder) -> list[Span] | None:
    def size(span: Span) -> int:
        return DISK.size(folder.manifests / span.name)

    groups = due(effective(folder.spans()))
    return next((group for group in groups if sum(map(size, group)) <= _MOST_BYTES), None)


def _finish(folder: OutputFolder) -> None:
    """Remove the manifests that a compacted one stands for."""
    spans = folder.spans()
    for span in set(spans) - set(effective(spans)):
        DISK.remove(folder.manifests / span.name)
