"""`tidegate config`."""

from __future__ import annotations

import json as jsonlib
import re
from typing import Annotated

import typer

from tidegate.cli.options import ConfigOption, JsonOption, SetOption

_SECRET = re.compile(r"secret|password|token|access[.]key|passphrase", re.IGNORECASE)
_PASSWORD = re.compile(r"(?<=://)([^/?#@]*?):[^/?#]*(?=@)|([?&]password)=[^&#]*")
"""In a URL."""


def shown(key: str, value: object) -> object:
    """The value, with stars for what is secret: one of Spark's own settings by its key, a password in a URL.

    >>> shown("spark.conf.spark.hadoop.fs.s3a.secret.key", "hunter2"), shown("engine.tries", 3)
    ('***', 3)
    >>> shown("state.redis", "redis://me:hunter2@example.org:6379/0")
    'redis://me:***@example.org:6379/0'
    """
    if key.startswith("spark.conf.") and _SECRET.search(key):
        return "***"
    return _PASSWORD.sub(_starred, value) if isinstance(value, str) else value


def _starred(found: re.Match[str]) -> str:
    return f"{found[2]}=***" if found[2] else f"{found[1]}:***"


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
