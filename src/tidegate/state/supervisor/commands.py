"""What a driver asks a supervisor for, and what that answers. Declared here, and nowhere else."""

from __future__ import annotations

import json
import re
import typing
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from tidegate.errors import StateError
from tidegate.state.codec import Between, Like, decoded, encoded
from tidegate.state.node.spec import NodeSpec

MAX_COMMAND = 1 << 20
"""Bytes; most of one that starts a node is certificates."""
_NAME = re.compile(r"g[0-9]{1,19}-node-[0-9]{1,9}-[0-9a-f]{8}")
Name: TypeAlias = Annotated[str, Like(_NAME, "g1-node-0-12345678")]


@dataclass(frozen=True, slots=True)
class Start:
    """Have a node of this name, which no other has ever had."""

    name: Name
    spec: NodeSpec
    gently: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Have no node of this name. It gets so long to end by itself."""

    name: Name
    milliseconds: Annotated[int, Between(0, 60_000)]


@dataclass(frozen=True, slots=True)
class Look:
    """Tell what there is. Renews the lease of the supervisor, as any command does."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End, with all nodes. Only for a supervisor that belongs to one driver."""


Command: TypeAlias = Start | End | Look | Stop


@dataclass(frozen=True, slots=True)
class Listening:
    """A node that was started."""

    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a supervisor has."""

    nodes: tuple[str, ...]
    """The names of its nodes, of all drivers."""
    leaving: bool
    """Whether it takes no more nodes, and goes when it has none left."""


Answer: TypeAlias = Listening | Report

COMMANDS: dict[str, type[Command]] = {kind.__name__.lower(): kind for kind in typing.get_args(Command)}


def encode(command: Command) -> tuple[str, bytes]:
    """The kind of a command, and the rest of it."""
    return type(command).__name__.lower(), json.dumps(encoded(command)).encode()


def decode(kind: str, raw: bytes) -> Command:
    """What was encoded; StateError when it is no command."""
    if len(raw) > MAX_COMMAND:
        raise StateError(f"a command of {len(raw):,} bytes is refused: at most {MAX_COMMAND:,} are accepted")
    if kind not in COMMANDS:
        raise StateError(f"an unknown command is refused; known: {', '.join(COMMANDS)}")
    try:
        form = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise StateError("a command that is not JSON is refused") from error
    return decoded(COMMANDS[kind], form)
