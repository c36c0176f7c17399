"""Commands from outside, taken apart strictly.

An unknown field, a wrong type or a number out of range is an error, so that nothing half understood reaches
the state, and a short text never stands for much work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidegate.batch.ticket import Ticket
from tidegate.errors import StateError
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.table.keys import Groups, parse_groups
from tidegate.state.table.table import StateTable
from tidegate.state.wire.commands import (
    MAX_COMMAND,
    MAX_GROUPS,
    VERSION,
    Begin,
    Command,
    Commit,
    Due,
    FetchDue,
    FetchKeys,
    FetchRange,
    Get,
    Prepare,
    Release,
    Scan,
    Stage,
    Status,
)


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
        if type(value) is not kind:  # Strictly: a bool is an int as well.
            raise StateError(f"{self._what}: {name!r} must be of type {kind.__name__}")
        return value

    def has(self, name: str) -> bool:
        return name in self._fields

    def whole(self, name: str, low: int = 0, high: int = 2**63 - 1) -> int:
        value: int = self.take(name, int)
        if not low <= value <= high:
            raise StateError(f"{self._what}: {name!r} must be from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        value: bool = self.take(name, bool)
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
_ADDRESS = re.compile(r"[A-Za-z0-9._:%\[\]-]{1,255}:[0-9]{1,5}")
_RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")


def _manifest(form: _Form) -> StateManifest:
    fields = _Form(form.take("manifest", dict), "the manifest")
    count = fields.whole("groups", 1, MAX_GROUPS)
    if count & (count - 1):
        raise StateError("the manifest: 'groups' must be a power of two")
    tables = tuple(_table(_Form(item, "a table of the manifest")) for item in fields.take("tables", list))
    if len({table.name for table in tables}) < len(tables):
        raise StateError("the manifest names a table twice")
    runs = tuple(_run(_Form(item, "a run of the manifest"), count) for item in fields.take("runs", list))
    manifest = StateManifest(fields.whole("batch_id", -1), count, fields.moment("closed"), tables, runs)
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
    groups, watermark = form.groups("groups", manifest.groups), form.moment("watermark")
    origins = _origins(form, groups, manifest.groups) if form.has("origins") else {}
    budget = form.whole("budget") if form.has("budget") else 0
    urgent = form.flag("urgent") if form.has("urgent") else False
    return Begin(ticket, manifest, groups, watermark, origins, budget, urgent)


def _origins(form: _Form, groups: Groups, count: int) -> dict[str, Groups]:
    fields = _Form(form.take("origins", dict), "the origins")
    origins = {address: fields.groups(address, count) for address in list(fields._fields)}
    seen: set[int] = set()
    for address, part in origins.items():
        if not _ADDRESS.fullmatch(address):
            raise StateError(f"the origins: {address[:100]!r} is not an address like 'host:port'")
        if not part or not part <= groups or part & seen:
            raise StateError(
                f"the origins: {address!r} must have some of the key groups of the batch, each of them once"
            )
        seen |= part
    return origins


def _left(form: _Form) -> tuple[str, Groups, int]:
    return form.text("table"), form.groups("groups"), form.whole("batch_id", -1)


def _stage(form: _Form) -> Stage:
    stats = _Form(form.take("stats", dict), "the stats")
    counts = {name: stats.whole(name, 0, 2**53) for name in list(stats._fields)}
    partition = form.whole("partition", 0, 2**31)
    return Stage(form.ticket(), form.text("table"), partition, form.whole("rows"), counts)


_PARSERS: dict[str, Callable[[_Form], Command]] = {
    "begin": _begin,
    "get": lambda form: Get(form.ticket(), form.text("table"), form.whole("rows")),
    "due": lambda form: Due(
        form.ticket(), form.text("table"), form.groups("groups"), form.whole("upto", -(2**63))
    ),
    "scan": lambda form: Scan(form.ticket(), form.text("table"), form.groups("groups")),
    "fetch_keys": lambda form: FetchKeys(*_left(form), form.whole("rows")),
    "fetch_due": lambda form: FetchDue(*_left(form), form.moment("since"), form.whole("upto", -(2**63))),
    "fetch_range": lambda form: FetchRange(
        *_left(form), form.whole("first", 0, 2**64 - 1), form.whole("size", 1)
    ),
    "stage": _stage,
    "prepare": lambda form: Prepare(form.ticket()),
    "commit": lambda form: Commit(form.ticket(), form.moment("watermark")),
    "release": lambda form: Release(form.ticket(), form.groups("groups")),
    "status": lambda form: Status(form.flag("sizes")),
}
OPERATIONS = tuple(_PARSERS)
