"""`tidegate lab`: several machines on this one."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.options import JsonOption, application

if TYPE_CHECKING:
    from tidegate.lab import Lab, RoundTrips

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = application("lab", "Several machines on this one: hosts, links between them, and what goes wrong.")


@app.command()
def up(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The lab: hosts, links, chaos.")],
    chaos: Annotated[
        Path | None,
        typer.Option("--chaos", metavar="FILE.toml", help="What goes wrong, instead of what FILE.toml says."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="What chaos is drawn from.")] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Measure all round trips first, under load.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Start the hosts of a lab and the links between them; Ctrl-C ends it.

    Needs root. Nothing is left of a lab, however it ends.
    """
    from tidegate.lab import Lab

    lab = Lab(file)
    disorder = lab.chaos(chaos, seed=seed, tell=lambda deed: typer.echo(deed, err=True))
    for number in _ENDING:
        signal.signal(number, _end)
    with suppress(KeyboardInterrupt), lab:
        _show(lab, lab.check() if check else None, json=json)
        with disorder:
            while True:
                time.sleep(1)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def enter(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The name of a host that is up.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="What to run there; a shell if left out."),
    ] = None,
    lab: Annotated[
        str | None, typer.Option("--lab", metavar="NAME", help="Which lab, if several are up.")
    ] = None,
) -> None:
    """Run a command on a host of a lab that is up, in the current folder.

    Needs root. The exit code is that of the command.
    """
    from tidegate.lab.entry import find
    from tidegate.lab.lab import require_root

    require_root()
    words = find(host, lab).command_line(command or [os.environ.get("SHELL", "/bin/sh")])
    os.execv(words[0], words)


def _end(*_: object) -> None:
    """End what is going on, once: what is cleared up then is not to be broken off."""
    for number in _ENDING:
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _program() -> str:
    """How this program was started; sudo may not find it by its name."""
    path = sys.argv[0]
    return path if Path(path).name == "tidegate" else f"{sys.executable} -m tidegate.cli.main"


def _show(lab: Lab, trips: RoundTrips | None, *, json: bool) -> None:
    from tidegate.view.json import document
    from tidegate.view.tables import print_rows

    hosts = list(lab.hosts.values())
    if json:
        told = {"lab": lab.name, "hosts": {host.name: host.address for host in hosts}}
        spark = {"spark": lab.spark.url} if lab.spec.spark else {}
        store = {"store": lab.store.url, "environment": lab.store.environment} if lab.spec.store else {}
        typer.echo(document({**told, **spark, **store, **_measured(trips)}))
        return
    typer.echo(
        f"lab {lab.name} is up. On a host: sudo {_program()} lab enter HOST [COMMAND]... Ctrl-C ends the lab."
    )
    others = [host.name for host in hosts if trips]
    rows = [
        [host.name, host.address if host.alive else "down", *(_trip(trips, host.name, to) for to in others)]
        for host in hosts
    ]
    print_rows(["host", "address", *others], rows, left=["host", "address"])
    if trips:
        typer.echo(f"Round trips in ms while the machine is busy, wrong by {trips.error * 1000:.2f} at most.")
    if lab.spec.spark:
        typer.echo(
            f"Spark's master is {lab.spark.url}, with workers on {', '.join(sorted(lab.spark.registered))}."
        )


def _trip(trips: RoundTrips | None, source: str, target: str) -> str:
    seconds = trips.measured.get((source, target)) if trips else None
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def _measured(trips: RoundTrips | None) -> dict[str, object]:
    if trips is None:
        return {}
    found = [
        {"from": source, "to": target, "seconds": seconds, "expected": trips.expected[source, target]}
        for (source, target), seconds in trips.measured.items()
    ]
    return {"round_trips": found, "error_seconds": trips.error}
