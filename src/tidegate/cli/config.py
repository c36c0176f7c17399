"""`tidegate config`."""

from __future__ import annotations

import json as jsonlib
import re
from typing import Annotated

import typer

from tidegate.cli.run import ConfigOption, SetOption

_UNBOUNDED = 10_000
_SECRET = re.compile(r"secret|password|token|access[.]key|passphrase", re.IGNORECASE)


def shown(key: str, value: object) -> object:
    """The value, unless its key tells that it is nobody's business. Only Spark's own settings hold such.

    >>> shown("spark.conf.spark.hadoop.fs.s3a.secret.key", "hunter2"), shown("engine.tries", 3)
    ('***', 3)
    """
    return "***" if key.startswith("spark.conf.") and _SECRET.search(key) else value


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
    values = [(key, shown(key, value)) for key, value in effective.items()]
    if json:
        table = {key: {"value": value, "origin": origins[key]} for key, value in values}
        typer.echo(jsonlib.dumps(table, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    # What is no terminal has no width: there, nothing is cut or drawn around.
    frame = box.HEAVY_HEAD if console.is_terminal else None
    console.width = console.width if console.is_terminal else _UNBOUNDED
    rows = Table("key", "value", "origin", header_style="bold", pad_edge=False, box=frame)
    for key, value in values:
        origin = origins[key]
        # Written as --set and the environment take it.
        text = value if isinstance(value, str) else jsonlib.dumps(value).replace("null", "none")
        rows.add_row(key, Text(text), Text(origin, style="dim" if origin == "default" else "green"))
    console.print(rows)
