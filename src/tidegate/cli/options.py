"""Arguments and options that several commands take, and how an application is set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.errors import SizeError
from tidegate.rescale.model import STRATEGIES, Strategy
from tidegate.units import size


def application(name: str, help: str) -> typer.Typer:
    """An application without commands. Its help is plain: drawing it with rich takes longer than the rest."""
    return typer.Typer(
        name=name,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _size(text: str) -> int:
    try:
        found = size(text)
    except SizeError as error:
        raise typer.BadParameter(str(error)) from error
    if not found:
        raise typer.BadParameter(f"{text!r} is not a size: it must be more than zero")
    return found


def _strategy(text: str) -> Strategy:
    for known in STRATEGIES:
        if known == text:
            return known
    raise typer.BadParameter(f"{text!r} is not one of {', '.join(STRATEGIES)}")


FileArgument = Annotated[
    str,
    typer.Argument(metavar="FILE[:NAME]", help="A Python file, and which of its pipelines."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any key of `tidegate config`; may be repeated."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="PATH", help="Read this file instead of ./tidegate.toml.")
]
CheckpointArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT", help="A folder like .tidegate/NAME, or a URL like s3://BUCKET/NAME."
    ),
]
PipelineArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="As `tidegate run` has it; from another machine the URL of the control API, https://HOST:PORT.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="With a URL: a file with the token of the pipeline."),
]
AuthorityOption = Annotated[
    Path | None,
    typer.Option("--authority", metavar="FILE", help="With a URL: who has signed its certificate, as PEM."),
]
LogOption = Annotated[
    str | None,
    typer.Option("--log", metavar="PLACE", help="Where the runs of the state are, if state.log was set."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]
NodesOption = Annotated[
    int | None, typer.Option("--nodes", metavar="N", min=1, help="How many state nodes to have.")
]
ParallelismOption = Annotated[
    int | None,
    typer.Option("--parallelism", metavar="N", min=1, help="In how many Spark partitions to work."),
]
StrategyOption = Annotated[
    Strategy | None,
    typer.Option("--strategy", metavar="|".join(STRATEGIES), parser=_strategy, help="How state moves."),
]
StepOption = Annotated[
    str | None,
    typer.Option(
        "--step", metavar="NAME", help="The keyed step it is for; only checked, since all share the nodes."
    ),
]
BytesOption = Annotated[
    int | None,
    typer.Option("--bytes", metavar="SIZE", parser=_size, help="The most state that may move, like 100m."),
]
NoWaitOption = Annotated[
    bool, typer.Option("--no-wait", help="Return at once; `tidegate history` shows how it went.")
]
