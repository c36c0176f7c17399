"""What the commands for a running pipeline have in common: their options, and JSON."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.rescale.model import STRATEGIES, Strategy

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def size(text: str) -> int:
    """Bytes, as a number or with k, m, g or t for the powers of a thousand.

    >>> size("512"), size("100m"), size("2G")
    (512, 100000000, 2000000000)
    """
    unit = _UNITS.get(text[-1:].lower())
    digits = text if unit is None else text[:-1]
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise typer.BadParameter(f"{text!r} is no size; write it like 512k, 100m or 2g")
    return int(digits) * (unit or 1)


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
    typer.Option("--bytes", metavar="SIZE", parser=size, help="Move at most so much state, like 100m."),
]
NoWaitOption = Annotated[
    bool, typer.Option("--no-wait", help="Return at once; `tidegate history` shows how it went.")
]


def print_json(value: DataclassInstance) -> None:
    typer.echo(as_json(asdict(value)))


def as_json(value: Any) -> str:
    return jsonlib.dumps(value, indent=2)
