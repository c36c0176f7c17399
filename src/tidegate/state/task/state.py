"""State as a task sees it: the key groups of its partition, wherever they are."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidegate.state.log.compaction import sorted_by_hash
from tidegate.state.log.pieces import Pieces, kept
from tidegate.state.node.backends.columnar import looked_up
from tidegate.state.table.keys import Groups, group_of, hash_column
from tidegate.state.table.table import HASH, StateTable, by_probe, conformed, empty, with_probes
from tidegate.state.task.assignment import Assignment
from tidegate.state.task.hot_keys import HotKeys
from tidegate.state.task.locality import is_here
from tidegate.state.wire.client import NodeClient, client_for


def _nonce() -> int:
    """For one attempt at a task; another one has another."""
    return 1 + secrets.randbits(62)


class TaskState:
    """The `State` of one partition. `stage` sends what was put, once, at the end."""

    def __init__(
        self,
        assignment: Assignment,
        partition: int,
        scratch: Path,
        *,
        connect: Callable[[str], NodeClient] | None = None,
        here: Callable[[str], bool] = is_here,
    ) -> None:
        """`scratch` is a folder that ends with the executor. `connect` leads to the node at an address;
        `here` says whether that one is on this host."""
        self._assignment = assignment
        self._ticket = assignment.ticket
        self._partition = partition
        self._hot = HotKeys(scratch, assignment.security.token, partition)
        self._groups = assignment.route.groups_in(partition)
        owners = {assignment.route.owners[group] for group in self._groups}
        connect = connect or partial(
            client_for,
            security=assignment.security,
            pipeline=assignment.pipeline,
            timeout=assignment.timeout,
        )
        self._nodes = {owner: connect(assignment.addresses[owner]) for owner in sorted(owners)}
        self._afar = frozenset(owner for owner in owners if not here(assignment.addresses[owner]))
        self._puts: dict[str, pa.Table] = {}
        self._wire = self._wire_remote = 0

    def get(self, table: StateTable, keys: pa.Table) -> pa.Table:
        nonce = self._assignment.nonces.get(table.name, {}).get(self._partition)
        cached = self._hot.recall(table, nonce) if nonce and table.kind == "value" else None
        if cached is None:
            return self._fetch(table, keys)
        # In one batch a key is written by one task, so what a worker beside this one wrote in the batch
        # before is still right, whatever the route is by now.
        held = Pieces(frozenset(), 1, {table.name: kept(table, cached, None)})
        known, missing = looked_up([held.alone], table, keys, self._assignment.time.closed)
        if not len(missing):
            return known
        fetched = self._fetch(table, keys.take(pa.array(missing)))
        return by_probe(table, [known, with_probes(fetched, missing)])

    def due(self, table: StateTable, upto: int) -> pa.Table:
        return self._of_all(lambda node, groups: node.due(self._ticket, table.name, groups, upto))

    def scan(self, table: StateTable) -> pa.Table:
        return self._of_all(lambda node, groups: node.scan(self._ticket, table.name, groups))

    def _of_all(self, ask: Callable[[NodeClient, Groups], pa.Table]) -> pa.Table:
        owners = self._assignment.route.owners
        parts = [
            self._weighed(owner, ask(node, frozenset(g for g in self._groups if owners[g] == owner)))
            for owner, node in self._nodes.items()
        ]
        return sorted_by_hash(pa.concat_tables(parts))

    def put(self, table: StateTable, rows: pa.Table) -> None:
        if table.name in self._puts:
            raise ValueError(f"{table.name} was put twice in one batch")
        self._puts[table.name] = sorted_by_hash(conformed(rows, table.written))

    def stage(self, tables: tuple[StateTable, ...], late: int) -> None:
        """Send what was put of each table to the nodes that own it, or that there is nothing."""
        nonce, last = _nonce(), (tables[-1:], max(self._nodes, default=None))
        for table in tables:
            rows = self._puts.get(table.name, empty(table.written))
            owners = self._owners(hash_column(rows[HASH]))
            for owner, node in self._nodes.items():
                mine = rows if owners is None else rows.filter(pa.array(owners == owner))
                self._weighed(owner, mine)
                counts = {"late": late, "wire": self._wire, "wire_remote": self._wire_remote}
                stats = counts if ((table,), owner) == last else {}
                node.stage(self._ticket, table.name, self._partition, mine, stats, nonce)
        for table in tables:
            if table.kind == "value" and table.name in self._puts:
                self._hot.remember(table, nonce, self._puts[table.name])

    def _owners(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64] | None:
        """The node of each hash; None when one has them all."""
        if len(self._nodes) == 1:
            return None
        route = self._assignment.route
        return np.asarray(route.owners, np.int64)[group_of(hashes, route.groups)]

    def _fetch(self, table: StateTable, keys: pa.Table) -> pa.Table:
        owners = self._owners(hash_column(keys[HASH]))
        if owners is None:
            (owner,) = self._nodes
            return self._fetch_from(owner, table, keys)
        parts = []
        for owner in self._nodes:
            mine = np.flatnonzero(owners == owner)
            if len(mine):
                answer = self._fetch_from(owner, table, keys.take(pa.array(mine)))
                parts.append(with_probes(answer, mine))
        return by_probe(table, parts)

    def _fetch_from(self, owner: int, table: StateTable, keys: pa.Table) -> pa.Table:
        asked = self._weighed(owner, keys)
        return self._weighed(owner, self._nodes[owner].get(self._ticket, table.name, asked))

    def _weighed(self, owner: int, rows: pa.Table) -> pa.Table:
        """The same rows, their bytes counted as sent to the node or received from it."""
        self._wire += rows.nbytes
        if owner in self._afar:
            self._wire_remote += rows.nbytes
        return rows
