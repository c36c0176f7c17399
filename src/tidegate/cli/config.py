"""`tidegate config`."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from tidegate.cli.run import ConfigOption, SetOption


def config(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE[:NAME]]", help="Count in what this pipeline sets for itself."),
    ] = None,
    settings: SetOption = None,
    config_file: ConfigOption = None,
    json: Annotated[bool, typer.Option("--json", help="As one JSON object on stdout.")] = False,
) -> None:
    """Show every setting and where it came from."""
    from tidegate import config as configuration

    code = None
    if file is not None:
        from tidegate.pipeline import loading

        code = loading.load(file).config
    effective = configuration.load(
        code=code, file=config_file, overrides=configuration.parse_settings(settings or ())
    )
    origins = effective.origins
    if json:
        values = {key: {"value": value, "origin": origins[key]} for key, value in effective.items()}
        typer.echo(jsonlib.dumps(values, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("key", "value", "origin", header_style="bold", pad_edge=False)
    for key, value in effective.items():
        origin = origins[key]
        # Written as --set and the environment take it.
        shown = value if isinstance(value, str) else jsonlib.dumps(value).replace("null", "none")
        table.add_row(key, Text(shown), Text(origin, style="dim" if origin == "default" else "green"))
    Console().print(table)
