"""The `tidegate` command: its sub-commands, and how errors are shown.

Commands import what they need when they run, so that `--help` needs neither PySpark nor pydantic.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tidegate.cli import config, control, doctor, generate, lab, node, run, savepoint, scale, show, sim, state
from tidegate.cli.options import application
from tidegate.errors import ConfigError, DurationError, SizeError, TidegateError

app = application("tidegate", "Elastic, fault-masking, stateful stream processing in Python on Apache Spark.")
app.command()(run.run)
app.command()(show.show)
app.add_typer(generate.app)
app.command()(control.status)
app.command()(scale.plan)
app.command()(scale.scale)
app.command()(scale.rebalance)
app.command()(control.history)
app.command()(control.stop)
app.add_typer(state.app)
app.command()(savepoint.savepoint)
app.command()(node.node)
app.add_typer(sim.app)
app.add_typer(lab.app)
app.command()(config.config)
app.command()(doctor.doctor)


@app.command()
def version() -> None:
    """Show the versions of Tidegate, Python and Spark."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    typer.echo(f"tidegate {installed('tidegate')}")
    typer.echo(f"python {sys.version.split()[0]}")
    try:
        typer.echo(f"pyspark {installed('pyspark')}")
    except PackageNotFoundError:
        typer.echo("pyspark is not installed: see `tidegate doctor`")


_debug = False


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options before the command."""
    global _debug
    _debug = debug


def main() -> None:
    """Run the command line; exit code 2 for wrong usage or configuration, 1 for other errors."""
    try:
        app(prog_name="tidegate")
    except TidegateError as error:
        if _debug:
            raise
        if story := getattr(error, "story", ()):
            typer.secho("\n  ".join(("What happened before:", *story)), dim=True, err=True)
        typer.secho(f"Error: {error}", fg="red", err=True)
        sys.exit(2 if isinstance(error, ConfigError | DurationError | SizeError) else 1)


if __name__ == "__main__":
    main()
