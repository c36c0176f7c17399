"""`tidegate history`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.control import JsonOption, as_json, print_json
from tidegate.cli.savepoint import CheckpointArgument

if TYPE_CHECKING:
    from tidegate.rescale.model import Rescale


def history(
    checkpoint: CheckpointArgument,
    number: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", help="Just this rescale, in full.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the rescales of a running pipeline.

    Those since it was started, oldest first.
    """
    from tidegate.control.client import ControlClient
    from tidegate.view.rescales import print_rescale

    client = ControlClient.find(checkpoint)
    if number is not None:
        one = client.rescale(number)
        if json:
            print_json(one)
        else:
            print_rescale(one)
        return
    known = client.history()
    if json:
        typer.echo(as_json({"rescales": [asdict(each) for each in known]}))
    elif known:
        _print(known)
    else:
        typer.echo(f"{client.pipeline} has not been rescaled since its start")


def _print(known: tuple[Rescale, ...]) -> None:
    from tidegate.view.figures import span
    from tidegate.view.rescales import amount, changes, print_rows

    print_rows(
        ("no", "change", "strategy", "phase", "first batch", "settled", "moved", "gap"),
        [
            (
                str(each.number),
                changes(each),
                each.strategy,
                each.phase,
                span(each.seconds_to_first_batch),
                span(each.seconds_to_settled),
                amount(each.on_demand.bytes + each.background.bytes),
                span(each.longest_gap),
            )
            for each in known
        ],
        left=("change", "strategy", "phase"),
        fold="change",
    )
