"""What the state of a node takes, as the index of its runs tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.state.log.log import Snapshot
from tidegate.state.log.manifest import RunRef
from tidegate.state.log.pieces import Sectioned
from tidegate.state.log.run import Section
from tidegate.state.table.keys import Groups, bounds, group_of


def sizes_of(now: Snapshot, pairs: Iterable[tuple[RunRef, Sectioned]]) -> dict[str, Any]:
    """The runs of a snapshot, of which those in `pairs` are opened: in all, by table, and as [rows, bytes] by
    key group."""
    tables = {name: {"rows": 0, "bytes": 0} for name in now.tables}
    groups = np.zeros((now.count, 2))
    for ref, run in pairs:
        for name, part in run.parts.items():
            figures = tables.setdefault(name, {"rows": 0, "bytes": 0})
            for section in part.sections:
                figures["rows"] += section.rows
                figures["bytes"] += section.length
                _spread(section, ref.groups, groups)
    return {
        "runs": len(now.runs),
        "bytes": sum(ref.bytes for ref in now.runs),
        "tables": tables,
        "groups": {
            str(group): groups[group].round().astype(int).tolist()
            for group in np.flatnonzero(groups[:, 0]).tolist()
        },
    }


def _spread(section: Section, counted: Groups, figures: NDArray[np.float64]) -> None:
    """Add a section to the figures of its groups, by their shares of its hashes."""
    count = len(figures)
    low, high = group_of(np.array([section.first, section.last], np.uint64), count).tolist()
    for group in counted.intersection(range(low, high + 1)):
        share = section.share(*bounds(group, count))
        figures[group] += share * section.rows, share * section.length
