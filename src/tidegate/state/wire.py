"""What travels between tasks, driver and state nodes: commands as JSON, answers, and errors by kind.

A command is parsed strictly: an unknown field, a wrong type or a number out of range is an error, so that
nothing half understood reaches the state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import flight

from tidegate.errors import CheckpointError, FencedError, NodeError, StaleError, StateError, TidegateError
from tidegate.state.keys import Groups, parse_groups, show_groups
from tidegate.state.manifest import Manifest, RunRef
from tidegate.state.standing import Phase, Ticket
from tidegate.state.table import StateTable

VERSION = 1
MAX_GROUPS = 1 << 16
MAX_COMMAND = 16 << 20
"""Bytes; most of a long one is the manifest in `begin`."""
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
    manifest: Manifest
    """The state before the batch, all of it or what matters to this node."""
    groups: Groups
    """What this node owns in the batch."""
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Get:
    ticket: Ticket
    table: str


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
class Pull:
    """Rows as the node has them now, whatever batch that is."""

    table: str
    groups: Groups


@dataclass(frozen=True, slots=True)
class Stage:
    ticket: Ticket
    table: str
    partition: int
    stats: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prepare:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Commit:
    ticket: Ticket
    watermark: int | None


@dataclass(frozen=True, slots=True)
class Abort:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Digest:
    table: str
    group: int


@dataclass(frozen=True, slots=True)
class Status:
    pass


Command: TypeAlias = (
    Begin | Get | Due | Scan | Pull | Stage | Prepare | Commit | Abort | Digest | Status
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

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": {
                name: {str(partition): rows for partition, rows in parts.items()}
                for name, parts in self.tables.items()
            },
            "stats": dict(self.stats),
            "runs": [run.to_json() for run in self.runs],
            "bytes": self.bytes,
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> PrepareAnswer:
        tables = {
            name: {int(partition): rows for partition, rows in parts.items()}
            for name, parts in form["tables"].items()
        }
        return cls(tables, form["stats"], tuple(map(RunRef.from_json, form["runs"])), form["bytes"])


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node says of itself."""

    name: str
    ticket: Ticket
    phase: Phase
    groups: Groups
    staged: int
    """Bytes that tasks have staged and `prepare` has not yet taken."""
    busy: float
    """Seconds that the request which is longest at work, or waits for its turn, has been there."""
    sizes: Mapping[str, Any]
    """As `Shard.sizes` gave them after the latest `begin` or `commit`."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **_ticket_form(self.ticket),
            "phase": self.phase,
            "groups": show_groups(self.groups),
            "staged": self.staged,
            "busy": self.busy,
            "sizes": dict(self.sizes),
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> NodeStatus:
        ticket = Ticket(form["generation"], form["batch"], form["attempt"])
        groups = parse_groups(form["groups"])
        figures = form["staged"], form["busy"], form["sizes"]
        return cls(form["name"], ticket, form["phase"], groups, *figures)


def encode(command: Command, pipeline: str) -> bytes:
    """A command as it is sent."""
    form: dict[str, Any] = {"v": VERSION, "op": type(command).__name__.lower(), "pipeline": pipeline}
    for name in command.__dataclass_fields__:
        value = getattr(command, name)
        match value:
            case Ticket():
                form.update(_ticket_form(value))
            case Manifest():
                form[name] = value.to_json()
            case frozenset():
                form[name] = show_groups(value)
            case Mapping():
                form[name] = dict(value)
            case _:
                form[name] = value
    return json.dumps(form, separators=(",", ":")).encode()


def decode(raw: bytes | memoryview, pipeline: str, limit: int = MAX_COMMAND) -> Command:
    """A command as it was sent; StateError when it is none, or is meant for another pipeline."""
    if len(raw) > limit:
        raise StateError(f"a command of {len(raw):,} bytes is refused: at most {limit:,} are taken")
    try:
        form = _Form(json.loads(bytes(raw)), "the command")
    except (ValueError, RecursionError) as error:
        raise StateError("a command that is not JSON is refused") from error
    version = form.whole("v")
    if version != VERSION:
        raise StateError(f"a command of protocol {version} is refused: this node speaks {VERSION}")
    wanted = form.text("pipeline")
    if wanted != pipeline:
        raise StateError(f"a command for pipeline {wanted!r} is refused: this node serves {pipeline!r}")
    op = form.text("op")
    if op not in _PARSERS:
        raise StateError(f"unknown command {op!r}; known are {', '.join(_PARSERS)}")
    command = _PARSERS[op](form)
    form.done()
    return command


def _ticket_form(ticket: Ticket) -> dict[str, int]:
    return {"generation": ticket.generation, "batch": ticket.batch_id, "attempt": ticket.attempt}


class _Form:
    """A JSON object that is taken apart field by field, each once."""

    def __init__(self, form: object, what: str) -> None:
        if not isinstance(form, dict):
            raise StateError(f"{what} is not a JSON object")
        self._fields = dict(form)
        self._what = what

    def take(self, name: str, kind: type) -> Any:
        if name not in self._fields:
            raise StateError(f"{self._what} has no field {name!r}")
        value = self._fields.pop(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise StateError(f"{self._what}: {name!r} must be of type {kind.__name__}")
        return value

    def whole(self, name: str, low: int = 0, high: int = 2**63 - 1) -> int:
        value: int = self.take(name, int)
        if not low <= value <= high:
            raise StateError(f"{self._what}: {name!r} must be from {low} to {high}")
        return value

    def moment(self, name: str) -> int | None:
        """An event time in microseconds, or null."""
        if name in self._fields and self._fields[name] is None:
            del self._fields[name]
            return None
        return self.whole(name, -(2**63))

    def text(self, name: str, longest: int = 1000) -> str:
        value: str = self.take(name, str)
        if not 0 < len(value) <= longest:
            raise StateError(f"{self._what}: {name!r} must have 1 to {longest} characters")
        return value

    def groups(self, name: str, count: int = MAX_GROUPS) -> Groups:
        """Ranges in ascending order, so that a short text cannot stand for much work."""
        text: str = self.take(name, str)
        before = -1
        for part in text.split(",") if text else ():
            found = _RANGE.fullmatch(part)
            low = int(found[1]) if found else -1
            high = int(found[2] or low) if found else -1
            if not before < low <= high < count:
                raise StateError(
                    f"{self._what}: {name!r} must be ascending key groups below {count}, like '1-3,7'"
                )
            before = high
        return parse_groups(text)

    def ticket(self) -> Ticket:
        return Ticket(self.whole("generation"), self.whole("batch", -1), self.whole("attempt"))

    def done(self) -> None:
        if self._fields:
            names = ", ".join(sorted(map(repr, self._fields)))
            raise StateError(f"{self._what} has fields that are not known: {names[:200]}")


_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")


def _manifest(form: _Form) -> Manifest:
    fields = _Form(form.take("manifest", dict), "the manifest")
    count = fields.whole("groups", 1, MAX_GROUPS)
    if count & (count - 1):
        raise StateError("the manifest: 'groups' must be a power of two")
    tables = tuple(_table(_Form(item, "a table of the manifest")) for item in fields.take("tables", list))
    if len({table.name for table in tables}) < len(tables):
        raise StateError("the manifest names a table twice")
    runs = tuple(_run(_Form(item, "a run of the manifest"), count) for item in fields.take("runs", list))
    manifest = Manifest(fields.whole("batch_id", -1), count, fields.moment("closed"), tables, runs)
    fields.done()
    return manifest


def _table(form: _Form) -> StateTable:
    name, kind = form.text("name"), form.text("kind")
    if kind not in ("value", "buffer"):
        raise StateError(f"table {name!r}: a kind {kind!r} is not known")
    texts = {side: form.take(side, str) for side in ("keys", "values")}
    form.done()
    try:
        table = StateTable.from_json({"name": name, "kind": kind, **texts})
        columns = table.written.names
    except (ValueError, OSError, pa.ArrowException) as error:
        raise StateError(f"table {name!r}: its columns cannot be read") from error
    if not len(table.keys) or len(set(columns)) < len(columns):
        raise StateError(f"table {name!r} must have a key, and every column once")
    return table


def _run(form: _Form, count: int) -> RunRef:
    name = form.text("name")
    if not _RUN_NAME.fullmatch(name):
        raise StateError(f"{name!r} is not the name of a run")
    run = RunRef(
        name, form.whole("sequence"), form.groups("groups", count), form.whole("rows"), form.whole("bytes")
    )
    form.done()
    return run


def _begin(form: _Form) -> Begin:
    ticket, manifest = form.ticket(), _manifest(form)
    if manifest.batch_id >= ticket.batch_id:
        raise StateError(f"{ticket} cannot begin on the state after batch {manifest.batch_id}")
    return Begin(ticket, manifest, form.groups("groups", manifest.groups), form.moment("watermark"))


def _stage(form: _Form) -> Stage:
    stats = _Form(form.take("stats", dict), "the stats")
    counts = {name: stats.whole(name, 0, 2**53) for name in list(stats._fields)}
    return Stage(form.ticket(), form.text("table"), form.whole("partition", 0, 2**31), counts)


_PARSERS: dict[str, Callable[[_Form], Command]] = {
    "begin": _begin,
    "get": lambda form: Get(form.ticket(), form.text("table")),
    "due": lambda form: Due(
        form.ticket(), form.text("table"), form.groups("groups"), form.whole("upto", -(2**63))
    ),
    "scan": lambda form: Scan(form.ticket(), form.text("table"), form.groups("groups")),
    "pull": lambda form: Pull(form.text("table"), form.groups("groups")),
    "stage": _stage,
    "prepare": lambda form: Prepare(form.ticket()),
    "commit": lambda form: Commit(form.ticket(), form.moment("watermark")),
    "abort": lambda form: Abort(form.ticket()),
    "digest": lambda form: Digest(form.text("table"), form.whole("group", 0, MAX_GROUPS - 1)),
    "status": lambda form: Status(),
}
OPERATIONS = tuple(_PARSERS)


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
