"""Two sides, measured in turns in one run, and told as rows of a table."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a benchmark's table. `ratio` is ours over peer; `spread` the least and largest ratio."""

    name: str
    ours: float
    peer: float
    unit: str
    ratio: float
    goal: str
    """Empty for a row that only informs."""
    met: bool | None
    spread: tuple[float, float]
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn of one side."""

    rows_per_second: float
    batch_seconds: float
    cpu_seconds_per_million: float
    more: dict[str, float] = field(default_factory=dict)
    """What else was measured, by name."""


def in_turns(
    name: str,
    ours: Callable[[], Sample],
    peer: Callable[[], Sample],
    *,
    turns: int,
    at_least: float,
    cold: int = 0,
) -> Row:
    """Measure both sides `turns` times, the first one changing from turn to turn; the ratio is the median.

    `cold` turns before that do not count: until its code is compiled, a session gets faster from run to run.
    """
    pairs: list[tuple[Sample, Sample]] = []
    for turn in range(cold + turns):
        if turn % 2:
            theirs, mine = peer(), ours()
        else:
            mine, theirs = ours(), peer()
        pairs.append((mine, theirs))
    pairs = pairs[cold:]
    ratios = [mine.rows_per_second / theirs.rows_per_second for mine, theirs in pairs]
    ratio = statistics.median(ratios)
    sides = {"ours": [mine for mine, _ in pairs], "peer": [theirs for _, theirs in pairs]}
    details = {
        f"{side} {measure}": statistics.median(getattr(sample, measure) for sample in samples)
        for side, samples in sides.items()
        for measure in ("batch_seconds", "cpu_seconds_per_million")
    }
    details |= {
        f"{side} {name}": statistics.median(sample.more[name] for sample in samples)
        for side, samples in sides.items()
        for name in samples[0].more
    }
    return Row(
        name=name,
        ours=statistics.median(sample.rows_per_second for sample in sides["ours"]),
        peer=statistics.median(sample.rows_per_second for sample in sides["peer"]),
        unit="rows/s",
        ratio=ratio,
        goal=f">= {at_least:g}",
        met=ratio >= at_least,
        spread=(min(ratios), max(ratios)),
        details=details,
    )


def cpu_seconds() -> float:
    """CPU time of this process and all below it: the driver, its JVM and the Python workers."""
    ticks = os.sysconf("SC_CLK_TCK")
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The command stands in brackets and may hold spaces.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has just ended.
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15])) / ticks  # its own and that of children it has waited for
    mine = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= grown
    return sum(used.get(pid, 0.0) for pid in mine)


def tell(title: str, rows: Sequence[Row], *, as_json: bool) -> None:
    """Print the rows: one JSON object a line, or a table."""
    if as_json:
        for row in rows:
            print(json.dumps(asdict(row)))
        return
    table = Table(title=title)
    for column in ("name", "ours", "peer", "unit", "ratio", "spread", "goal", "met"):
        table.add_column(column, justify="right" if column in ("ours", "peer", "ratio") else "left")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.ours:,.4g}" if row.ours < 1000 else f"{row.ours:,.0f}",
            f"{row.peer:,.4g}" if row.peer < 1000 else f"{row.peer:,.0f}",
            row.unit,
            f"{row.ratio:.2f}",
            f"{row.spread[0]:.2f} to {row.spread[1]:.2f}",
            row.goal,
            {True: "yes", False: "NO", None: ""}[row.met],
        )
        for name, value in row.details.items():
            table.add_row(f"  {name}", f"{value:,.4g}", style="dim")
    Console(width=120).print(table)
