"""What the commands for a running pipeline have in common: their options, and JSON."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.errors import SizeError
from tidegate.rescale.model import STRATEGIES, Strategy
from tidegate.units import size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def _size(text: str) -> int:
    try:
        found = size(text)
    except SizeError as error:
        raise typer.BadParameter(str(error)) from error
    if not found:
        raise typer.BadParameter(f"{text!r} is not a size that state could have")
    return found


def strategy(text: str) -> Strategy:
    """The strategy of this name."""
    for known in STRATEGIES:
        if known == text:
            return known
    raise typer.BadParameter(f"{text!r} is none of {', '.join(STRATEGIES)}")


JsonOption = Annotated[bool, typer.Option("--json", help="As one JSON object on stdout.")]
NodesOption = Annotated[int | None, typer.Option("--nodes", metavar="N", min=1, help="So many state nodes.")]
ParallelismOption = Annotated[
    int | None,
    typer.Option("--parallelism", metavar="N", min=1, help="So many Spark partitions of keyed steps."),
]
StrategyOption = Annotated[
    Strategy | None,
    typer.Option("--strategy", metavar="|".join(STRATEGIES), parser=strategy, help="How the state is moved."),
]
StepOption = Annotated[
    str | None,
    typer.Option("--step", metavar="NAME", help="The keyed step it is for; all of them share the nodes."),
]
BytesOption = Annotated[
    int | None,
    typer.Option("--bytes", metavar="SIZE", parser=_size, help="Move at most so much state, like 100m."),
]
NoWaitOption = Annotated[
    bool, typer.Option("--no-wait", help="Return at once; `tidegate history` shows how it went.")
]


def print_json(value: DataclassInstance) -> None:
    typer.echo(as_json(asdict(value)))


def as_json(value: Any) -> str:
    return jsonlib.dumps(value, indent=2)
