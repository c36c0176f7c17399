"""Plans, rescales and nodes of a running pipeline, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import typer

from tidegate.control.controls import NodeLine, Status
from tidegate.rescale.model import Latency, Moved, PlanView, Rescale
from tidegate.view.figures import count, rate, span

_UNBOUNDED = 10_000


def amount(value: int) -> str:
    """Bytes.

    >>> amount(7), amount(43_210), amount(1_250_000)
    ('7 B', '43.2 kB', '1.25 MB')
    """
    text = count(value)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def changes(of: PlanView | Rescale) -> str:
    """What is another than before."""
    parts = [f"rebalance of {of.nodes[0]} nodes"] if of.ask.kind == "rebalance" else []
    for name, (before, after) in (("nodes", of.nodes), ("parallelism", of.parallelism)):
        if before != after:
            parts.append(f"{name} {before} -> {after}")
    return ", ".join(parts) or f"still {of.nodes[1]} nodes, parallelism {of.parallelism[1]}"


def headline(of: PlanView | Rescale) -> str:
    """What changes, and how."""
    return f"{changes(of)}, {of.strategy}"


def in_short(plan: PlanView) -> str:
    """What moves, and what comes of it, in a few words."""
    if not plan.groups_moved:
        return "no state moves"
    before, after = plan.busiest
    return f"{_moving(plan)}, busiest node {before:.1%} -> {after:.1%}"


def effect(plan: PlanView) -> str:
    """What moves, and what comes of it."""
    if not plan.groups_moved:
        return "no state moves"
    before, after = plan.busiest
    if round(before, 3) == round(after, 3):
        becomes = f"stays at {after:.1%}"
    else:
        becomes = f"{'falls' if after < before else 'rises'} from {before:.1%} to {after:.1%}"
    return f"{_moving(plan)}; the busiest node's share of state accesses {becomes}"


def print_moves(plan: PlanView) -> None:
    print_rows(
        ("from", "to", "key groups", "rows", "bytes", "load"),
        [
            (
                str(move.source),
                str(move.target),
                move.groups,
                f"{move.rows:,}",
                amount(move.bytes),
                f"{move.load:.1%}",
            )
            for move in plan.moves
        ],
        left=("key groups",),
        fold="key groups",
    )


def print_nodes(nodes: Sequence[NodeLine]) -> None:
    print_rows(
        ("node", "name", "address", "pid", "key groups", "bytes", "load"),
        [
            (
                str(node.index),
                node.name,
                node.address,
                str(node.pid),
                node.groups or "-",
                amount(node.bytes),
                f"{node.load:.1%}",
            )
            for node in nodes
        ],
        left=("name", "address", "key groups"),
        fold="key groups",
    )


def status_rows(status: Status) -> list[tuple[str, str]]:
    """Label and text, in order."""
    throughput = "-" if status.rows_per_second is None else rate(status.rows_per_second)
    rows = [
        ("batch", "-" if status.batch_id is None else str(status.batch_id)),
        ("processing", throughput),
        ("batch time", f"{span(status.batch_seconds)} of {span(status.interval_seconds)}"),
        ("latency p50", span(status.latency_p50)),
        ("lag", "-" if status.lag is None else f"{status.lag:,} rows"),
        ("parallelism", str(status.parallelism)),
        ("keyed steps", ", ".join(status.steps) or "none"),
    ]
    if status.route is not None:
        rows.append(("route", f"version {status.route}"))
    if status.rescale is not None:
        rows.append((f"rescale {status.rescale.number}", standing(status.rescale)))
    return rows


def standing(rescale: Rescale) -> str:
    """Where a rescale is, in a line."""
    return f"{headline(rescale)}: {stage(rescale)}"


def stage(rescale: Rescale) -> str:
    """Its phase, and what has come over."""
    if rescale.phase == "settled":
        return f"settled after {span(rescale.seconds_to_settled)}"
    if rescale.over or rescale.phase == "starting" or not rescale.groups_moved:
        return _outcome(rescale)
    came = max(rescale.groups_moved - rescale.groups_left, 0)
    moved = rescale.on_demand.bytes + rescale.background.bytes
    return f"{rescale.phase}, {came} of {rescale.groups_moved} key groups, {amount(moved)}"


def print_rescale(rescale: Rescale) -> None:
    """The record of a rescale."""
    typer.echo(f"rescale {rescale.number}: {headline(rescale)}: {_outcome(rescale)}")
    print_pairs(rescale_rows(rescale))


def rescale_rows(rescale: Rescale) -> list[tuple[str, str]]:
    """The figures of a rescale as label and text, in order; those that are known."""
    batch = "" if rescale.first_batch is None else f" (batch {rescale.first_batch})"
    gap = "-" if rescale.longest_gap is None else f"{span(rescale.longest_gap)} between outputs"
    steady = "" if rescale.steady_gap is None else f", against {span(rescale.steady_gap)} before"
    stretches = (("before", rescale.before), ("during", rescale.during), ("after", rescale.after))
    rows = [
        ("asked at", rescale.asked_at),
        ("first batch after", span(rescale.seconds_to_first_batch) + batch),
        ("settled after", span(rescale.seconds_to_settled)),
        ("moved on demand", _moved(rescale.on_demand)),
        ("in the background", _moved(rescale.background)),
        *((f"latency {name}", _latency(latency)) for name, latency in stretches),
        ("longest gap", gap if gap == "-" else gap + steady),
    ]
    return [(label, text) for label, text in rows if text != "-"]


def print_pairs(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        typer.echo(f"{label:<{width}}  {text}")


def print_rows(
    names: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str], fold: str
) -> None:
    """A table: columns are set to the right but for `left`, and `fold` takes more lines where needed."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        side: Literal["left", "right"] = "left" if name in left else "right"
        table.add_column(name, justify=side, overflow="fold", no_wrap=name != fold)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    # What is no terminal has no width: there, nothing is cut.
    console.width = console.width if console.is_terminal else _UNBOUNDED
    console.print(table)


def _outcome(rescale: Rescale) -> str:
    return f"{rescale.phase}: {rescale.why}" if rescale.why else rescale.phase


def _moving(plan: PlanView) -> str:
    groups = "1 key group" if plan.groups_moved == 1 else f"{plan.groups_moved} key groups"
    return f"{groups} ({amount(plan.bytes_moved)}) {'moves' if plan.groups_moved == 1 else 'move'}"


def _moved(moved: Moved) -> str:
    return f"{moved.keys:,} keys, {amount(moved.bytes)}"


def _latency(latency: Latency) -> str:
    if latency.p50 is None and latency.p99 is None:
        return "-"
    return f"p50 {span(latency.p50)}, p99 {span(latency.p99)}"
