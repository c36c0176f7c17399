"""`tidegate show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.options import FileArgument
from tidegate.errors import TidegateError


def show(
    file: FileArgument,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="OUT", help="Draw it as HTML into this file instead.")
    ] = None,
) -> None:
    """Show a pipeline as a tree, and check its structure.

    Does not start Spark.
    """
    from tidegate.pipeline import drawing, loading

    pipeline = loading.load(file)
    if html is None:
        typer.echo(str(pipeline))
    else:
        try:
            html.write_text(drawing.document(pipeline.name, pipeline.to_html()), encoding="utf-8")
        except OSError as error:
            raise TidegateError(f"cannot write {html}: {error.strerror}") from error
        typer.echo(f"drawn in {html}")
    # After the drawing: a picture of a wrong pipeline shows what is wrong with it.
    pipeline.plan()
