"""The pipeline that a command is for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tidegate.control.client import ControlClient


def connected(place: str, token_file: Path | None, authority: Path | None) -> ControlClient:
    """By its checkpoint, which tells the rest on the driver's machine, or by the URL of its control API."""
    from tidegate.control.client import ControlClient
    from tidegate.security.files import read_authority, read_secret

    if not place.startswith(("https://", "http://")):
        if token_file is not None or authority is not None:
            raise typer.BadParameter(
                "--token-file and --authority go with the URL of a control API; a checkpoint tells both"
            )
        return ControlClient.find(place)
    if token_file is None:
        raise typer.BadParameter("a URL needs --token-file: a file with the token of the pipeline")
    trusted = read_authority(authority) if authority is not None else None
    return ControlClient.at(place, token=read_secret(token_file), authority=trusted)
