"""What travels between tasks, driver and state nodes: commands as JSON, answers, and errors by kind."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import flight

from tidegate.batch.ticket import Ticket
from tidegate.errors import CheckpointError, FencedError, NodeError, StaleError, StateError, TidegateError
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.node.fence import NodePhase
from tidegate.state.table.keys import Groups, parse_groups, show_groups

VERSION = 1
MAX_GROUPS = 1 << 16
MAX_COMMAND = 16 << 20
"""Bytes; most of a long one is the manifest in `begin`."""
NEXT = b"next"
"""Where the answer to `FetchRange` has the hash to go on from."""
CHUNK = 4 << 20
"""Bytes of rows in one message, about. A receiver counts message by message."""


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
    ticket: Ticket
    manifest: StateManifest
    """The state before the batch, all of it or what matters to this node."""
    groups: Groups
    """What this node owns in the batch."""
    watermark: int | None
    origins: Mapping[str, Groups] = field(default_factory=dict)
    """Groups that are new to this node and may be had from the node at an address, as of the manifest. Only
    with the first batch on a new route, and each further attempt at it."""
    budget: int = 0
    """Bytes that the node may get from there unasked, until the next `begin`."""
    urgent: bool = False
    """The driver waits for them: they are to come at once, not between batches."""


@dataclass(frozen=True, slots=True)
class Get:
    ticket: Ticket
    table: str
    rows: int
    """How many keys follow: a stream that breaks off looks like one that ends."""


@dataclass(frozen=True, slots=True)
class Due:
    ticket: Ticket
    table: str
    groups: Groups
    upto: int


@dataclass(frozen=True, slots=True)
class Scan:
    ticket: Ticket
    table: str
    groups: Groups


@dataclass(frozen=True, slots=True)
class FetchKeys:
    """Keys of groups that have left the node, or are about to, in the state after a batch."""

    table: str
    groups: Groups
    batch_id: int
    rows: int
    """How many keys follow."""


@dataclass(frozen=True, slots=True)
class FetchDue:
    """Rows of such groups that are due by `upto` and were not by `since`."""

    table: str
    groups: Groups
    batch_id: int
    since: int | None
    upto: int


@dataclass(frozen=True, slots=True)
class FetchRange:
    """Rows of such groups in the order of their hashes, from `first` on, about `size` bytes of them. Metadata
    of the answer's schema has under `next` where to go on."""

    table: str
    groups: Groups
    batch_id: int
    first: int
    size: int


@dataclass(frozen=True, slots=True)
class Release:
    """Nobody needs what the node kept of groups that had left it before this batch."""

    ticket: Ticket
    groups: Groups


@dataclass(frozen=True, slots=True)
class Stage:
    ticket: Ticket
    table: str
    partition: int
    rows: int
    """How many rows follow."""
    stats: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepare:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Commit:
    ticket: Ticket
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Status:
    sizes: bool = False


Command: TypeAlias = (
    Begin | Get | Due | Scan | FetchKeys | FetchDue | FetchRange
    | Stage | Prepare | Commit | Release | Status
)  # fmt: skip


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

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": {
                name: {str(partition): rows for partition, rows in parts.items()}
                for name, parts in self.tables.items()
            },
            "stats": dict(self.stats),
            "runs": [run.to_json() for run in self.runs],
            "bytes": self.bytes,
            "load": {str(group): count for group, count in self.load.items()},
            "arrived": dict(self.arrived),
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> PrepareAnswer:
        tables = {
            name: {int(partition): rows for partition, rows in parts.items()}
            for name, parts in form["tables"].items()
        }
        runs = tuple(map(RunRef.from_json, form["runs"]))
        load = {int(group): count for group, count in form.get("load", {}).items()}
        return cls(tables, form["stats"], runs, form["bytes"], load, form.get("arrived", {}))


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
    """As `Shard.sizes` gives them; empty unless asked for."""
    groups_left: int = 0
    """Key groups whose state has not wholly arrived."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **_ticket_form(self.ticket),
            "phase": self.phase,
            "groups": show_groups(self.groups),
            "staged": self.staged,
            "busy": self.busy,
            "sizes": dict(self.sizes),
            "groups_left": self.groups_left,
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> NodeStatus:
        ticket = Ticket(form["generation"], form["batch"], form["attempt"])
        groups = parse_groups(form["groups"])
        figures = form["staged"], form["busy"], form["sizes"], form["groups_left"]
        return cls(form["name"], ticket, form["phase"], groups, *figures)


def operation(command: Command) -> str:
    """The name of a command on the wire.

    >>> operation(Status())
    'status'
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(command).__name__).lower()


def encode(command: Command, pipeline: str) -> bytes:
    """A command as it is sent."""
    form: dict[str, Any] = {"v": VERSION, "op": operation(command), "pipeline": pipeline}
    for name in command.__dataclass_fields__:
        value = getattr(command, name)
        match value:
            case Ticket():
                form.update(_ticket_form(value))
            case StateManifest():
                form[name] = value.to_json()
            case frozenset():
                form[name] = show_groups(value)
            case Mapping():
                form[name] = {
                    key: show_groups(item) if isinstance(item, frozenset) else item
                    for key, item in value.items()
                }
            case _:
                form[name] = value
    return json.dumps(form, separators=(",", ":")).encode()


def _ticket_form(ticket: Ticket) -> dict[str, int]:
    return {"generation": ticket.generation, "batch": ticket.batch_id, "attempt": ticket.attempt}


_KINDS: dict[str, type[TidegateError]] = {
    "fenced": FencedError,
    "stale": StaleError,
    "checkpoint": CheckpointError,
    "state": StateError,
}


def to_flight(error: TidegateError) -> flight.FlightError:
    """An error as a node sends it. The text is cut: it travels in a header."""
    kind = next((name for name, known in _KINDS.items() if isinstance(error, known)), "state")
    message = str(error)[:1500]
    return flight.FlightServerError(message, json.dumps({"kind": kind, "message": message}).encode())


def from_flight(error: Exception, node: str) -> TidegateError:
    """What a node meant, or a NodeError when it did not get to say anything."""
    if isinstance(error, flight.FlightUnauthenticatedError):
        return StateError(
            f"state node {node} refuses the token; all parts of a pipeline must have the same one"
        )
    try:
        form = json.loads(getattr(error, "extra_info", b""))
        return _KINDS[form["kind"]](form["message"])
    except (ValueError, KeyError, TypeError):
        problem = " in time" if isinstance(error, flight.FlightTimedOutError) else f": {str(error)[:300]}"
        return NodeError(f"state node {node} does not answer{problem}", node=node)


def batches(rows: pa.Table) -> list[pa.RecordBatch]:
    """Rows cut into messages of about CHUNK bytes."""
    each = max(1, CHUNK * rows.num_rows // max(1, rows.nbytes))
    found: list[pa.RecordBatch] = rows.to_batches(max_chunksize=each)
    return found
