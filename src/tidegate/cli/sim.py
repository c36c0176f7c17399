"""`tidegate sim`: runs under simulated faults, by the thousand, without Spark."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tidegate.sim.outcome import Outcome, Tally

app = typer.Typer(
    name="sim",
    help="Simulate runs under faults.",
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
    "steps": "steps",
    "batches": "batches",
    "drivers": "drivers started",
    "driver deaths": "deaths of drivers",
    "zombies": "drivers held up while another took over",
    "fenced": "of them fenced",
    "nodes": "nodes started",
    "node deaths": "deaths of nodes",
    "node hangs": "hangs of nodes",
    "power cuts": "power cuts",
    "lost": "calls lost",
    "late": "calls that came late or twice",
    "stragglers": "tasks left behind",
    "compactions": "compactions",
    "rescales": "rescales",
}

Seeds = Annotated[int, typer.Option(min=1, help="How many runs.")]
Start = Annotated[int, typer.Option(min=0, help="The first seed.")]
Jobs = Annotated[int, typer.Option(min=1, help="In how many processes.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Just this run.")]
Story = Annotated[bool, typer.Option("--story", help="Tell every move of it; needs --seed.")]
Json = Annotated[bool, typer.Option("--json", help="As one JSON object on stdout.")]


@app.callback()
def sim() -> None:
    """Simulate runs under faults."""


@app.command()
def protocol(
    seeds: Seeds = 2_000,
    start: Start = 0,
    jobs: Jobs = 2,
    seed: Seed = None,
    story: Story = False,
    json: Json = False,
) -> None:
    """Batches while drivers and nodes die, hang and come back, calls are lost, late and doubled, tasks are
    left behind, and the power is cut.

    The real classes over a simulated network, disk and clock. Each run must end with the right state, and
    with each output once. Exit code 1 if one does not.
    """
    _simulate(seeds, start, jobs, seed, rescales=False, story=story, json=json)


@app.command()
def rescale(
    seeds: Seeds = 2_000,
    start: Start = 0,
    jobs: Jobs = 2,
    seed: Seed = None,
    story: Story = False,
    json: Json = False,
) -> None:
    """The same with rescales: nodes come and go and state moves between them.

    No rescale may stay under way once all is well again. Exit code 1 if a promise is broken.
    """
    _simulate(seeds, start, jobs, seed, rescales=True, story=story, json=json)


def _simulate(
    seeds: int, start: int, jobs: int, seed: int | None, *, rescales: bool, story: bool, json: bool
) -> None:
    from tidegate.sim.outcome import simulate, simulate_many

    if story and seed is None:
        raise typer.BadParameter("--story needs --seed: it tells one run", param_hint="--story")
    if seed is not None:
        tally = _told(simulate(seed, rescales=rescales, story=story), story=story and not json)
    else:
        tally = _run(partial(simulate_many, rescales=rescales), seeds, start, jobs)
    _sum_up(tally, json=json, told=story)


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


def _sum_up(tally: Tally, *, json: bool, told: bool) -> None:
    if json:
        typer.echo(jsonlib.dumps(_as_json(tally), indent=2))
    else:
        _show(tally, told=told)
    if tally.failures:
        raise typer.Exit(1)


def _as_json(tally: Tally) -> dict[str, object]:
    failures = [
        {"seed": failure.seed, "problem": failure.problem, "story": failure.story}
        for failure in tally.failures
    ]
    counts = {name.replace(" ", "_"): tally.counts[name] for name in _FIGURES}
    return {"runs": tally.runs, **counts, "failures": failures}


def _show(tally: Tally, *, told: bool) -> None:
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
    for name, label in _FIGURES.items():
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
