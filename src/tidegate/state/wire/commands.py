"""What tasks, driver and state nodes say to each other. A command is declared here, and nowhere else: its
fields tell how it is encoded and what is refused, and `call` how it travels."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import pyarrow as pa

from tidegate.batch.ticket import Ticket
from tidegate.errors import StateError
from tidegate.state.codec import BatchId, Between, Count, FormError, Like, decoded, encoded
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.node.fence import NodePhase
from tidegate.state.table.keys import Groups

VERSION = 2
MAX_COMMAND = 16 << 20
"""Bytes; most of a long one is the manifest in `begin`."""

Call = Literal["action", "put", "get", "exchange"]
"""How a command travels: alone, with rows, for rows, or with rows for rows."""
Address: TypeAlias = Annotated[
    str,
    Like(re.compile(r"[A-Za-z0-9._:%\[\]-]{1,255}:[0-9]{1,5}|unix:/[A-Za-z0-9._/-]{1,106}"), "host:port"),
]


Nonces: TypeAlias = Mapping[str, Mapping[int, int]]
"""By table and partition: which attempt at a task wrote what is there."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node takes at most, in bytes."""

    command: int = MAX_COMMAND
    data: int = 1 << 30
    """Rows of one request."""
    staged: int = 8 << 30
    """Rows staged for a batch, of all its tasks."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a batch on the state that a manifest names."""

    call: ClassVar[Call] = "action"
    ticket: Ticket
    manifest: StateManifest
    """The state before the batch, all of it or what matters to this node."""
    groups: Groups
    """What this node owns in the batch."""
    watermark: int | None
    origins: Mapping[Address, Groups] = field(default_factory=dict)
    """Groups that are new to this node and may be had from the node at an address, as of the manifest. Only
    with the first batch on a new route, and each further attempt at it."""
    budget: Count = 0
    """Bytes that the node may get from there unasked, until the next `begin`."""
    urgent: bool = False
    """The driver waits for them: they are to come at once, not between batches."""

    def check(self) -> None:
        if self.manifest.batch_id >= self.ticket.batch_id:
            raise FormError(f"{self.ticket} cannot begin on the state after batch {self.manifest.batch_id}")
        if max(self.groups, default=-1) >= self.manifest.groups:
            raise FormError(f"Begin: 'groups' must be below {self.manifest.groups}")
        seen: set[int] = set()
        for address, groups in self.origins.items():
            if not groups or not groups <= self.groups or groups & seen:
                raise FormError(
                    f"Begin: the origin {address!r} must have key groups of the batch, each of them once"
                )
            seen |= groups


@dataclass(frozen=True, slots=True)
class Get:
    call: ClassVar[Call] = "exchange"
    ticket: Ticket
    table: str
    rows: Count
    """How many keys follow: a stream that breaks off looks like one that ends."""


@dataclass(frozen=True, slots=True)
class Due:
    call: ClassVar[Call] = "get"
    ticket: Ticket
    table: str
    groups: Groups
    upto: int


@dataclass(frozen=True, slots=True)
class Scan:
    call: ClassVar[Call] = "get"
    ticket: Ticket
    table: str
    groups: Groups


@dataclass(frozen=True, slots=True)
class FetchKeys:
    """Keys of groups that have left the node, or are about to, in the state after a batch."""

    call: ClassVar[Call] = "exchange"
    table: str
    groups: Groups
    batch_id: BatchId
    rows: Count
    """How many keys follow."""


@dataclass(frozen=True, slots=True)
class FetchDue:
    """Rows of such groups that are due by `upto` and were not by `since`."""

    call: ClassVar[Call] = "get"
    table: str
    groups: Groups
    batch_id: BatchId
    since: int | None
    upto: int


@dataclass(frozen=True, slots=True)
class FetchRange:
    """Rows of such groups in the order of their hashes, from `first` on, about `size` bytes of them. The
    answer tells where to go on, see `page`."""

    call: ClassVar[Call] = "get"
    table: str
    groups: Groups
    batch_id: BatchId
    first: Annotated[int, Between(0, 2**64 - 1)]
    size: Annotated[int, Between(1)]


@dataclass(frozen=True, slots=True)
class Release:
    """Nobody needs what the node kept of groups that had left it before this batch."""

    call: ClassVar[Call] = "action"
    ticket: Ticket
    groups: Groups


@dataclass(frozen=True, slots=True)
class Stage:
    call: ClassVar[Call] = "put"
    ticket: Ticket
    table: str
    partition: Annotated[int, Between(0, 2**31)]
    rows: Count
    """How many rows follow."""
    stats: Mapping[str, Annotated[int, Between(0, 2**53)]] = field(default_factory=dict)
    nonce: Count = 0
    """Of this attempt at the task; 0 for none. Spark may run a task twice, and what users write may answer
    differently."""


@dataclass(frozen=True, slots=True)
class Prepare:
    call: ClassVar[Call] = "action"
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Commit:
    call: ClassVar[Call] = "action"
    ticket: Ticket
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Renew:
    """The driver of this generation lives: the node is to go on, see `Lease`. Begin, prepare and commit say
    the same."""

    call: ClassVar[Call] = "action"
    generation: Count


@dataclass(frozen=True, slots=True)
class Status:
    call: ClassVar[Call] = "action"
    sizes: bool = False


Command: TypeAlias = (
    Begin
    | Get
    | Due
    | Scan
    | FetchKeys
    | FetchDue
    | FetchRange
    | Release
    | Stage
    | Prepare
    | Commit
    | Renew
    | Status
)


@dataclass(frozen=True, slots=True)
class PrepareAnswer:
    """What a node has made durable for a batch."""

    tables: Mapping[str, Mapping[int, int]]
    """Rows by table and partition; a partition that staged no rows is there with 0."""
    stats: Mapping[str, int]
    """Sums of what the tasks counted."""
    runs: tuple[RunRef, ...]
    bytes: int
    load: Mapping[int, int] = field(default_factory=dict)
    """Keys looked up and rows staged in the batch, by key group; groups without any are left out."""
    arrived: Mapping[str, int] = field(default_factory=dict)
    """What came from other nodes since the last answer: `demand_keys`, `demand_bytes`, `background_keys`,
    `background_bytes`; `groups_left` that are not all here; keys of `get` that were answered here (`local`)
    and by asking another node (`remote`)."""
    furthest: int | None = None
    """The latest `_due` among the rows of value tables, but for those that stay: windows and timers."""
    nonces: Nonces = field(default_factory=dict)
    """Of what is prepared."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node says of itself."""

    name: str
    ticket: Ticket
    phase: NodePhase
    groups: Groups
    staged: int
    """Bytes that tasks have staged and `prepare` has not yet taken."""
    busy: float
    """Seconds that the request that has been at work or waiting for the longest has been there."""
    sizes: Mapping[str, Any]
    """As `Snapshot.sizes` gives them; empty unless asked for."""
    groups_left: int = 0
    """Key groups whose state has not wholly arrived."""
    received: int = 0
    """Bytes that have come from other nodes."""


def operation(kind: type) -> str:
    """The name of a kind of command on the wire.

    >>> operation(FetchKeys)
    'fetch_keys'
    """
    return _lowered(kind.__name__)


@cache
def _lowered(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


COMMANDS: Mapping[str, type[Command]] = {operation(kind): kind for kind in typing.get_args(Command)}


def encode(command: Command, pipeline: str) -> bytes:
    """A command as it is sent."""
    form = {"v": VERSION, "op": operation(type(command)), "pipeline": pipeline, **encoded(command)}
    return json.dumps(form, separators=(",", ":")).encode()


def decode(raw: bytes | memoryview, pipeline: str, limit: int = MAX_COMMAND) -> Command:
    """A command as it was sent; StateError when it is none, or is meant for another pipeline."""
    if len(raw) > limit:
        raise StateError(f"a command of {len(raw):,} bytes is refused: at most {limit:,} are accepted")
    try:
        form = json.loads(bytes(raw))
    except (ValueError, RecursionError) as error:
        raise StateError("a command that is not JSON is refused") from error
    if not isinstance(form, dict):
        raise StateError("a command that is not a JSON object is refused")
    version, wanted, name = (form.pop(name, None) for name in ("v", "pipeline", "op"))
    if type(version) is not int or version != VERSION:
        raise StateError(f"a command of another protocol is refused: this node speaks {VERSION}")
    if wanted != pipeline:
        raise StateError(f"a command for another pipeline is refused: this node serves {pipeline!r}")
    if not isinstance(name, str) or name not in COMMANDS:
        raise StateError(f"an unknown command is refused; known: {', '.join(COMMANDS)}")
    command = decoded(COMMANDS[name], form)
    ticket: Ticket | None = getattr(command, "ticket", None)
    if ticket is not None and (ticket.generation < 0 or ticket.batch_id < -1 or ticket.attempt < 0):
        raise StateError(f"a command for {ticket} is refused: there cannot be such a batch")
    return command


_NEXT = b"next"


def page(rows: pa.Table, further: int | None) -> pa.Table:
    """Rows with the hash to go on from, None when they are all there are; in the metadata of the schema."""
    return rows if further is None else rows.replace_schema_metadata({_NEXT: str(further)})


def unpage(answer: pa.Table) -> tuple[pa.Table, int | None]:
    """What `page` was given."""
    further = (answer.schema.metadata or {}).get(_NEXT)
    return answer.replace_schema_metadata(None), None if further is None else int(further)
