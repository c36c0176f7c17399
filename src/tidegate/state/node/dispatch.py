"""What a node does with a command, however it came here."""

from __future__ import annotations

from typing import TypeAlias, assert_never

import pyarrow as pa

from tidegate.state.node.node import StateNode
from tidegate.state.wire import commands as wire
from tidegate.state.wire.commands import Command, NodeStatus, PrepareAnswer

Answer: TypeAlias = pa.Table | PrepareAnswer | NodeStatus | None


def wanted(node: StateNode, command: wire.Get | wire.FetchKeys | wire.Stage) -> pa.Schema:
    """The columns of the rows that come with a command. Raises what `dispatch` would, where that shows
    before the rows are there."""
    match command:
        case wire.Get(ticket, table):
            return node.readable(ticket, table).probes
        case wire.FetchKeys(table, groups, batch_id):
            return node.departed_table(table, groups, batch_id).probes
        case wire.Stage(ticket, table):
            return node.writable(ticket, table).written


def dispatch(node: StateNode, command: Command, rows: pa.Table | None = None) -> Answer:
    """Carry out a command. `rows` are those that come with it, of the columns that are `wanted`.

    The answer is rows for a command that travels for them, see `Command.call`; else what the node says.
    """
    match command:
        case wire.Begin():
            node.begin(command)
        case wire.Get(ticket, table):
            return node.get(ticket, table, rows)
        case wire.Due(ticket, table, groups, upto):
            return node.due(ticket, table, groups, upto)
        case wire.Scan(ticket, table, groups):
            return node.scan(ticket, table, groups)
        case wire.FetchKeys(table, groups, batch_id):
            return node.fetch_keys(table, groups, batch_id, rows)
        case wire.FetchDue(table, groups, batch_id, since, upto):
            return node.fetch_due(table, groups, batch_id, since, upto)
        case wire.FetchRange(table, groups, batch_id, first, size):
            return wire.page(*node.fetch_range(table, groups, batch_id, first, size))
        case wire.Release(ticket, groups):
            node.release(ticket, groups)
        case wire.Stage(ticket, table, partition, _, stats, nonce):
            node.stage(ticket, table, partition, rows, stats, nonce)
        case wire.Prepare(ticket):
            return node.prepare(ticket)
        case wire.Commit(ticket, watermark):
            node.commit(ticket, watermark)
        case wire.Renew(generation):
            node.renew(generation)
        case wire.Status(sizes):
            return node.status(sizes=sizes)
        case _:
            assert_never(command)
    return None
