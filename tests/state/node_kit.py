"""A state node in its own process, and a driver that leads it through batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.batch.ticket import Ticket
from tidegate.state.fleet.fleet import Fleet
from tidegate.state.fleet.local import LocalNodes
from tidegate.state.log.manifest import StateManifest
from tidegate.state.table.keys import Groups, group_of
from tidegate.state.table.table import NEVER, StateTable
from tidegate.state.wire.client import NodeClient
from tidegate.state.wire.commands import Begin, PrepareAnswer

PIPELINE = "sensors"
COUNT = 16
ALL = frozenset(range(COUNT))
TABLE = StateTable("count-1", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))
BUFFER = StateTable("join-1.left", "buffer", pa.schema([("id", pa.int64())]), pa.schema([("v", pa.string())]))
TABLES = (TABLE, BUFFER)
EMPTY = StateManifest(-1, COUNT, None, TABLES)

_generations = itertools.count(1)


def hashes(ids: Sequence[int]) -> pa.Array:
    spread = np.asarray(ids, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return pa.array(spread, pa.uint64())


def group(identity: int) -> int:
    return int(group_of(hashes([identity]).to_numpy(), COUNT)[0])


def written(values: Mapping[int, int], *, due: int = NEVER) -> pa.Table:
    """Rows for TABLE: `n` by `id`."""
    ids = list(values)
    columns = [hashes(ids), [due] * len(ids), [False] * len(ids), ids, list(values.values())]
    return table_of(TABLE.written, columns)


def probes(ids: Sequence[int]) -> pa.Table:
    return table_of(TABLE.probes, [hashes(ids), list(ids)])


def table_of(schema: pa.Schema, columns: Sequence[Any]) -> pa.Table:
    arrays = [pa.array(column, item.type) for column, item in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def values(rows: pa.Table) -> dict[int, int]:
    return dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True))


@dataclass
class Driver:
    """Leads one node. A new one fences all before it, and begins without state."""

    node: NodeClient
    groups: frozenset[int] = ALL
    base: StateManifest = EMPTY
    generation: int = field(default_factory=lambda: next(_generations))

    def ticket(self, attempt: int = 0) -> Ticket:
        return Ticket(self.generation, self.base.batch_id + 1, attempt)

    def begin(self, attempt: int = 0, watermark: int | None = None) -> Ticket:
        ticket = self.ticket(attempt)
        self.node.begin(Begin(ticket, self.base, self.groups, watermark))
        return ticket

    def finish(self, ticket: Ticket, watermark: int | None = None) -> PrepareAnswer:
        answer = self.node.prepare(ticket)
        self.node.commit(ticket, watermark)
        self.base = StateManifest(ticket.batch_id, COUNT, watermark, TABLES, answer.runs)
        return answer

    def batch(self, rows: Mapping[int, int], *, due: int = NEVER, watermark: int | None = None) -> Ticket:
        ticket = self.begin(watermark=watermark)
        self.node.stage(ticket, TABLE.name, 0, written(rows, due=due))
        self.finish(ticket, watermark)
        return ticket

    def state(self) -> dict[int, int]:
        return values(stored(self.node, TABLE, self.groups))


def stored(node: NodeClient, table: StateTable, groups: Groups) -> pa.Table:
    """All rows of these groups after the latest batch that the node has committed."""
    status = node.status()
    batch_id = status.ticket.batch_id - (status.phase != "committed")
    rows, further = node.fetch_range(table.name, groups, batch_id, 0, 1 << 30)
    assert further is None
    return rows


@contextmanager
def one_node(folder: Path, *, timeout: float = 20.0, **how: Any) -> Iterator[tuple[LocalNodes, NodeClient]]:
    with LocalNodes(
        1, pipeline=PIPELINE, log=str(folder / "log"), scratch=folder / "nodes", timeout=timeout, **how
    ) as nodes:
        client = connected(nodes, timeout=timeout)
        yield nodes, client
        client.close()


def connected(nodes: Fleet, index: int = 0, *, timeout: float = 20.0, **other: Any) -> NodeClient:
    given = {
        "security": nodes.security,
        "pipeline": PIPELINE,
        "timeout": timeout,
        **other,
    }
    return NodeClient(nodes.nodes[index].address, **given)


def await_that(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)
