"""`tidegate sim`: the decisions of a run under faults, by the thousand, without Spark."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.sim.outcome import Outcome, Tally

app = typer.Typer(
    name="sim",
    help="Simulate the decisions of a run under faults.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_SECONDS_BETWEEN_LINES = 2.0
_SHOWN = 3
"""Stories of failed runs that are told in full."""
_FIGURES = {
    "batches": "batches",
    "steps": "steps",
    "drivers": "drivers started",
    "driver crashes": "crashes of drivers",
    "fenced": "fenced zombies",
    "node crashes": "crashes of nodes",
    "node hangs": "hangs of nodes",
    "duplicates": "duplicates",
    "reordered": "reorders",
    "lost": "messages lost",
    "late": "messages held up",
    "task retries": "retries of tasks",
    "speculations": "tasks run twice",
    "calls again": "retries of calls",
    "attempts again": "retries of batches",
    "merges": "merges",
    "rescales": "rescales",
    "collected": "runs collected",
}
_FIGURES_OF_RESCALES = {
    **_FIGURES,
    "rebalances": "of them rebalances",
    "refused": "refused",
    "given up": "given up",
    "replaced": "replaced by another",
    "settled": "settled",
    "asked": "questions to old owners",
    "chained": "of them passed on",
    "unanswered": "left unanswered",
}

Seeds = Annotated[int, typer.Option(min=1, help="How many runs.")]
Start = Annotated[int, typer.Option(min=0, help="The first seed.")]
Jobs = Annotated[int, typer.Option(min=1, help="In how many processes.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Just this run.")]
Story = Annotated[bool, typer.Option("--story", help="Tell every move of it; needs --seed.")]
Json = Annotated[bool, typer.Option("--json", help="As one JSON object on stdout.")]


@app.callback()
def sim() -> None:
    """Simulate the decisions of a run under faults."""


@app.command()
def protocol(
    seeds: Seeds = 10_000,
    start: Start = 0,
    jobs: Jobs = 2,
    seed: Seed = None,
    story: Story = False,
    json: Json = False,
) -> None:
    """The batch protocol: drivers, nodes and tasks crash, hang, repeat themselves and overtake each other.

    Each run must end with the right state, and with each output once. Exit code 1 if one does not.
    """
    from tidegate.sim.protocol import simulate, simulate_many

    _check_told(seed, story=story)
    one = None if seed is None else simulate(seed, story=story)
    tally = _told(one, story=story and not json) if one else _run(simulate_many, seeds, start, jobs)
    _sum_up(tally, _FIGURES, json=json, told=story)


@app.command()
def rescale(
    seeds: Seeds = 5_000,
    start: Start = 0,
    jobs: Jobs = 2,
    seed: Seed = None,
    story: Story = False,
    json: Json = False,
) -> None:
    """Rescales: nodes come and go and state moves between them, while all goes wrong as in `protocol`.

    Each run must end with the right state, and with each output once. No node may end on which another one
    still depends, and no rescale may stay under way. Exit code 1 if one does not keep to this.
    """
    from tidegate.sim.rescale import simulate, simulate_many

    _check_told(seed, story=story)
    one = None if seed is None else simulate(seed, story=story)
    tally = _told(one, story=story and not json) if one else _run(simulate_many, seeds, start, jobs)
    _sum_up(tally, _FIGURES_OF_RESCALES, json=json, told=story)


def _check_told(seed: int | None, *, story: bool) -> None:
    if story and seed is None:
        raise typer.BadParameter("--story needs --seed: it tells one run", param_hint="--story")


def _told(outcome: Outcome, *, story: bool) -> Tally:
    from tidegate.sim.outcome import tally_of

    if story:
        typer.echo(str(outcome))
    return tally_of([outcome])


def _run(simulate_many: Callable[..., Iterator[Tally]], seeds: int, start: int, jobs: int) -> Tally:
    from tidegate.sim.outcome import Tally

    tally = Tally()
    with _shown(seeds) as advance:
        for added in simulate_many(range(start, start + seeds), jobs=jobs):
            tally.add(added)
            advance(tally)
    return tally


def _sum_up(tally: Tally, figures: dict[str, str], *, json: bool, told: bool) -> None:
    if json:
        typer.echo(jsonlib.dumps(_as_json(tally, figures), indent=2))
    else:
        _show(tally, figures, told=told)
    if tally.failures:
        raise typer.Exit(1)


def _as_json(tally: Tally, figures: dict[str, str]) -> dict[str, object]:
    failures = [
        {"seed": failure.seed, "problem": failure.problem, "story": failure.story}
        for failure in tally.failures
    ]
    counts = {name.replace(" ", "_"): tally.counts[name] for name in figures}
    return {"runs": tally.runs, **counts, "failures": failures}


def _show(tally: Tally, figures: dict[str, str], *, told: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    for failure in [] if told else tally.failures[:_SHOWN]:
        typer.echo(f"{failure}\n")
    if len(tally.failures) > _SHOWN:
        seeds = ", ".join(str(failure.seed) for failure in tally.failures[_SHOWN:])
        typer.echo(f"Also failed: {seeds}\n")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("runs", f"{tally.runs:,}")
    for name, label in figures.items():
        table.add_row(label, f"{tally.counts[name]:,}")
    failed = len(tally.failures)
    table.add_row("failed", f"{failed:,}", style="red" if failed else "green")
    Console().print(table)


@contextmanager
def _shown(total: int) -> Iterator[Callable[[Tally], None]]:
    """A progress bar on a terminal, a line every two seconds elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda tally: bar.update(task, completed=tally.runs, description=_amount(tally))


class _Lines:
    """Progress as plain lines on standard error, not more often than every two seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._told = time.monotonic()

    def __call__(self, tally: Tally) -> None:
        if time.monotonic() - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = time.monotonic()
            typer.echo(f"{tally.runs / self._total:4.0%}  {_amount(tally)}", err=True)


def _amount(tally: Tally) -> str:
    return f"{tally.runs:,} runs, {len(tally.failures):,} failed"
