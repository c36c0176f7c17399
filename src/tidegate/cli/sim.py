"""`tidegate sim`: runs under simulated faults, by the thousand, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import JsonOption, application

if TYPE_CHECKING:
    from tidegate.sim.outcome import SeedTally

app = application("sim", "Simulate runs under faults.")

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
    "left to their lease": "nodes replaced while out of reach",
    "leases": "nodes that gave up without a driver",
    "host deaths": "deaths of hosts",
    "hosts left": "hosts that nodes had to leave",
    "cuts": "cuts between hosts, or to the store",
    "store away": "requests to the store without an answer",
    "power cuts": "power cuts",
    "deletions": "deletions in Spark's checkpoint",
    "lost": "calls lost",
    "late": "calls that came late or twice",
    "stragglers": "tasks left behind",
    "compactions": "compactions",
    "rescales": "rescales",
}

Seeds = Annotated[int, typer.Option(min=1, help="How many runs to simulate.")]
Start = Annotated[int, typer.Option(min=0, help="The first seed.")]
Jobs = Annotated[int, typer.Option(min=1, help="How many processes to use.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Simulate only this seed.")]
Story = Annotated[bool, typer.Option("--story", help="Print every event of the run; needs --seed.")]


_PROTOCOL = """Simulate batches under faults: drivers, nodes and hosts die, hang and come back, calls are
lost, late or duplicated, links between hosts are cut, tasks are left behind, and the power is cut.

Runs the real classes over a simulated network, disk and clock. Each run must end with the right state, and
with each output exactly once. Exit code 1 if one does not."""
_RESCALE = """Simulate rescales, too: nodes come and go, and state moves between them.

Once the faults have ended, every rescale must settle. Exit code 1 if a promise is broken."""


def _command(*, rescales: bool) -> Callable[..., None]:
    def command(
        seeds: Seeds = 2_000,
        start: Start = 0,
        jobs: Jobs = 2,
        seed: Seed = None,
        story: Story = False,
        json: JsonOption = False,
    ) -> None:
        from tidegate.sim.outcome import simulate, tally_of
        from tidegate.view.json import document

        if story and seed is None:
            raise typer.BadParameter("--story needs --seed: it prints a single run", param_hint="--story")
        if seed is None:
            tally = _run(range(start, start + seeds), jobs, rescales=rescales)
        else:
            outcome = simulate(seed, rescales=rescales, story=story)
            if story and not json:
                typer.echo(str(outcome))
            tally = tally_of([outcome])
        if json:
            counts = {name.replace(" ", "_"): tally.counts[name] for name in _FIGURES}
            failures = [
                {"seed": failure.seed, "problem": failure.problem, "story": failure.story}
                for failure in tally.failures
            ]
            typer.echo(document({"runs": tally.runs, **counts, "failures": failures}))
        else:
            _print(tally, stories=not story)
        if tally.failures:
            raise typer.Exit(1)

    return command


app.command("protocol", help=_PROTOCOL)(_command(rescales=False))
app.command("rescale", help=_RESCALE)(_command(rescales=True))


def _run(seeds: range, jobs: int, *, rescales: bool) -> SeedTally:
    from tidegate.sim.outcome import SeedTally, simulate_many
    from tidegate.view.progress import progress

    tally = SeedTally()
    with progress() as show:
        for added in simulate_many(seeds, jobs=jobs, rescales=rescales):
            tally.add(added)
            show(tally.runs, len(seeds), f"{tally.runs:,} runs, {len(tally.failures):,} failed")
    return tally


def _print(tally: SeedTally, *, stories: bool) -> None:
    from tidegate.view.tables import print_pairs

    for failure in tally.failures[:_SHOWN] if stories else []:
        typer.echo(f"{failure}\n")
    if len(tally.failures) > _SHOWN:
        seeds = ", ".join(str(failure.seed) for failure in tally.failures[_SHOWN:])
        typer.echo(f"Also failed: {seeds}\n")
    figures = [("runs", tally.runs), *((label, tally.counts[name]) for name, label in _FIGURES.items())]
    figures.append(("failed", len(tally.failures)))
    width = max(len(f"{count:,}") for _, count in figures)
    rows = [(label, f"{count:>{width},}") for label, count in figures]
    label, failed = rows.pop()
    print_pairs([*rows, (label, typer.style(failed, fg="red" if tally.failures else "green"))])
