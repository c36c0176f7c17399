"""The status of a running pipeline, its plans and its rescales, for people."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from tidegate.control.controls import Status
from tidegate.rescale.model import Latency, Moved, PlanView, Rescale
from tidegate.view.figures import amount, backlog, rate, span
from tidegate.view.tables import print_pairs, print_rows


def print_status(status: Status) -> None:
    typer.echo(f"{status.pipeline} is {status.phase}")
    print_pairs(_status_rows(status))
    if status.nodes:
        typer.echo()
        print_rows(
            ("node", "name", "pid", "key groups", "bytes", "load"),
            [
                (
                    str(node.index),
                    node.name,
                    str(node.pid),
                    node.groups or "-",
                    amount(node.bytes),
                    f"{node.load:.1%}",
                )
                for node in status.nodes
            ],
            left=("name", "key groups"),
            fold="key groups",
        )


def print_plan(plan: PlanView) -> None:
    typer.echo(_headline(plan))
    if plan.moves:
        typer.echo()
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
        typer.echo()
    typer.echo(_effect(plan))
    if plan.note:
        typer.echo(plan.note)


def plan_line(plan: PlanView) -> str:
    """A plan in one line."""
    if not plan.groups_moved:
        return f"{_headline(plan)}: {_effect(plan)}"
    before, after = plan.busiest
    return f"{_headline(plan)}: {_moving(plan)}, busiest node {before:.1%} -> {after:.1%}"


def print_rescale(rescale: Rescale) -> None:
    """The record of a rescale: the figures that are known."""
    typer.echo(f"rescale {rescale.number}: {_headline(rescale)}: {_outcome(rescale)}")
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
    print_pairs([(label, text) for label, text in rows if text != "-"])


def print_history(rescales: Sequence[Rescale]) -> None:
    print_rows(
        ("no", "change", "strategy", "phase", "first batch", "settled", "moved", "gap"),
        [
            (
                str(each.number),
                _changes(each),
                each.strategy,
                each.phase,
                span(each.seconds_to_first_batch),
                span(each.seconds_to_settled),
                amount(each.on_demand.bytes + each.background.bytes),
                span(each.longest_gap),
            )
            for each in rescales
        ],
        left=("change", "strategy", "phase"),
        fold="change",
    )


def stage(rescale: Rescale) -> str:
    """The phase of a rescale, and how much state has arrived."""
    if rescale.phase == "settled":
        return f"settled after {span(rescale.seconds_to_settled)}"
    arrived, groups = arrival(rescale)
    if rescale.over or groups is None:
        return _outcome(rescale)
    moved = rescale.on_demand.bytes + rescale.background.bytes
    return f"{rescale.phase}, {arrived} of {groups} key groups, {amount(moved)}"


def arrival(rescale: Rescale) -> tuple[int, int | None]:
    """Key groups that have arrived, and how many move; None while that says nothing about the end."""
    if rescale.phase == "starting" or not rescale.groups_moved:
        return 0, None
    return max(rescale.groups_moved - rescale.groups_left, 0), rescale.groups_moved


def _status_rows(status: Status) -> list[tuple[str, str]]:
    waiting = status.waiting_files, status.waiting_bytes
    throughput = "-" if status.rows_per_second is None else rate(status.rows_per_second)
    rows = [
        ("batch", "-" if status.batch_id is None else str(status.batch_id)),
        ("processing", throughput),
        ("batch time", f"{span(status.batch_seconds)} of {span(status.interval_seconds)}"),
        ("latency p50", span(status.latency_p50)),
        ("lag", f"{status.lag:,} rows" if status.lag is not None else backlog(None, *waiting)),
        ("parallelism", str(status.parallelism)),
        ("keyed steps", ", ".join(status.steps) or "none"),
    ]
    if status.route is not None:
        rows.append(("route", f"version {status.route}"))
    if (rescale := status.rescale) is not None:
        rows.append((f"rescale {rescale.number}", f"{_headline(rescale)}: {stage(rescale)}"))
    return rows


def _headline(of: PlanView | Rescale) -> str:
    # Without state there is nothing for a strategy to move.
    return f"{_changes(of)}, {of.strategy}" if any(of.nodes) or of.ask.strategy else _changes(of)


def _changes(of: PlanView | Rescale) -> str:
    parts = [f"{of.ask.kind} of {of.nodes[0]} nodes"] if of.ask.kind != "scale" else []
    for name, (before, after) in (("nodes", of.nodes), ("parallelism", of.parallelism)):
        if before != after:
            parts.append(f"{name} {before} -> {after}")
    return ", ".join(parts) or f"still {of.nodes[1]} nodes, parallelism {of.parallelism[1]}"


def _effect(plan: PlanView) -> str:
    if not plan.groups_moved:
        return "no state moves" if any(plan.nodes) else "there is no state to move"
    before, after = plan.busiest
    if round(before, 3) == round(after, 3):
        becomes = f"stays at {after:.1%}"
    else:
        becomes = f"{'falls' if after < before else 'rises'} from {before:.1%} to {after:.1%}"
    return f"{_moving(plan)}; the busiest node's share of state accesses {becomes}"


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
