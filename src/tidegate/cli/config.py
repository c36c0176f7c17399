"""`tidegate config`."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from tidegate.cli.options import ConfigOption, JsonOption, SetOption
from tidegate.security.secrecy import shown


def config(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE[:NAME]]", help="Include the settings of this pipeline."),
    ] = None,
    settings: SetOption = None,
    config_file: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show every setting and where it came from."""
    from tidegate import config as configuration
    from tidegate.view.json import document
    from tidegate.view.tables import print_rows

    code = None
    if file is not None:
        from tidegate.pipeline import loading

        code = loading.load(file).config
    effective = configuration.load(
        code=code, file=config_file, overrides=configuration.parse_settings(settings or ())
    )
    origins = effective.origins
    values = [(key, shown(key, value)) for key, value in effective.items()]
    if json:
        typer.echo(document({key: {"value": value, "origin": origins[key]} for key, value in values}))
        return
    # Written as --set and the environment take it.
    texts = {
        key: value if isinstance(value, str) else jsonlib.dumps(value).replace("null", "none")
        for key, value in values
    }
    rows = [(key, text, origins[key]) for key, text in texts.items()]
    print_rows(("key", "value", "origin"), rows, left=("key", "value", "origin"))
