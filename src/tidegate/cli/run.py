"""`tidegate run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import ConfigOption, FileArgument, SetOption

if TYPE_CHECKING:
    from tidegate.run.progress import Listener


def run(
    file: FileArgument,
    interval: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time from batch to batch, like '2 seconds'."),
    ] = None,
    parallelism: Annotated[int | None, typer.Option(help="How many partitions a batch has.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="The checkpoint, a folder or a URL like s3://BUCKET/NAME."),
    ] = None,
    master: Annotated[str | None, typer.Option(help="Spark master, like 'local[4]' or spark://...")] = None,
    settings: SetOption = None,
    config_file: ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per batch on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show errors only.")] = False,
    duration: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Stop after this time.")
    ] = None,
    until_done: Annotated[
        bool,
        typer.Option("--until-done", help="Stop when every source has been read, and close open windows."),
    ] = False,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            metavar="WHEN:WHAT",
            help="Rescale at a set time, like '20 s: nodes=4'; may be repeated.",
        ),
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace a driver that is running on this checkpoint.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw rates, latency and nodes over time."),
    ] = None,
) -> None:
    """Run a pipeline until Ctrl-C.

    On Ctrl-C it finishes the current batch; the next start resumes from there.
    """
    if json and quiet:
        raise typer.BadParameter("--json and --quiet contradict each other")
    from tidegate import config
    from tidegate.cli import schedule
    from tidegate.pipeline import loading
    from tidegate.units import seconds
    from tidegate.view import view
    from tidegate.view.plot import Plot

    overrides: dict[str, Any] = dict(config.parse_settings(settings or ()))
    flags = {
        "engine.interval": interval,
        "engine.parallelism": parallelism,
        "engine.checkpoint": checkpoint,
        "spark.master": master,
        "view.mode": "json" if json else "quiet" if quiet else None,
    }
    overrides.update({key: value for key, value in flags.items() if value is not None})
    limit = seconds(duration) if duration is not None else None
    rescales = [schedule.parse(text) for text in at or ()]
    picture = Plot(plot) if plot is not None else None

    pipeline = loading.load(file)
    effective = config.load(code=pipeline.config, file=config_file, overrides=overrides)
    with (
        view.for_mode(effective.view.mode, effective.view.every) as shown,
        schedule.Schedule(rescales) as planned,
    ):
        listeners: list[Listener] = [shown, *([planned] if rescales else [])]
        if picture is not None:
            listeners.append(picture)
        summary = pipeline.run(
            config=effective,
            listeners=listeners,
            duration=limit,
            until_done=until_done,
            take_over=take_over,
        )
    shown.summarise(summary)
    if picture is not None and (drawn := picture.draw()) is not None and not json:
        typer.echo(f"picture: {drawn}")
