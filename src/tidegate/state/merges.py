"""Merges that were done: which run holds the state of which others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.state.keys import Groups
from tidegate.state.manifest import Manifest, RunRef


@dataclass(frozen=True, slots=True)
class Merge:
    """Runs, and the one that holds the same state; None when nothing is left of them."""

    inputs: tuple[RunRef, ...]
    output: RunRef | None
    closed: int | None
    """Rows due by then were left out."""


def substituted(
    manifest: Manifest, groups: Groups, merges: Iterable[Merge]
) -> tuple[tuple[RunRef, ...], list[Merge]]:
    """The runs of a manifest with the merges done that fit it, and which those are."""
    runs, fitting = manifest.runs, []
    for merge in merges:
        after = _with(runs, merge, manifest.closed, groups)
        if after is not None:
            runs = after
            fitting.append(merge)
    return runs, fitting


def _with(
    runs: tuple[RunRef, ...], merge: Merge, closed: int | None, groups: Groups
) -> tuple[RunRef, ...] | None:
    """The runs with a merged one in place of its inputs; None when they are not all there as they were."""
    if merge.closed is not None and (closed is None or closed < merge.closed):
        return None
    if merge.output is not None and merge.output.groups != groups:
        return None
    number = len(merge.inputs)
    for start in range(len(runs) - number + 1):
        if runs[start : start + number] == merge.inputs:
            between = () if merge.output is None else (merge.output,)
            return (*runs[:start], *between, *runs[start + number :])
    return None
