"""The state nodes of a run, as the driver sees them: the route to them, and the batch protocol's calls."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from tidegate.config.settings import State as Settings
from tidegate.errors import TidegateError
from tidegate.operators.operator import Time
from tidegate.pipeline.duration import seconds
from tidegate.state.client import NodeClient, PrepareAnswer, client_for
from tidegate.state.local import LocalNodes
from tidegate.state.manifest import Manifest, together
from tidegate.state.route import Route
from tidegate.state.standing import Part, Ticket
from tidegate.state.view import Assignment
from tidegate.testing import faults

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a batch left in the nodes once all of them have prepared."""

    manifest: Manifest
    late: int
    wire: int
    """Bytes of keys and rows between tasks and nodes."""
    rows: int
    """Rows of state that were written."""
    bytes: int
    """What the log grew by."""


class Nodes:
    """State nodes on this machine, with the state that they stand at."""

    def __init__(
        self,
        settings: Settings,
        *,
        log: str,
        pipeline: str,
        prefix: str,
        folder: Path,
        base: Manifest,
        parallelism: int,
        generation: int,
    ) -> None:
        self._base = base
        self._tables = base.tables
        self.route = Route.even(base.groups, nodes=settings.nodes, partitions=parallelism)
        self._timeout = seconds(settings.timeout)
        self._pipeline = pipeline
        self._durable = settings.durable
        self._before: Ticket | None = None
        self._answers: dict[int, PrepareAnswer] = {}
        self._local = LocalNodes(
            len(self.route.nodes),
            pipeline=pipeline,
            log=log,
            scratch=folder / "nodes",
            backend=settings.backend,
            memory=_bytes(settings.memory),
            durable=settings.durable,
            options={"url": settings.redis, "prefix": prefix} if settings.backend == "redis" else {},
            timeout=self._timeout,
            prefix=names_of(generation),
        )

    @property
    def expected(self) -> dict[int, frozenset[Part]]:
        """What each node must have got before a batch can commit."""
        return {
            node: frozenset(
                (table.name, partition)
                for table in self._tables
                for partition in self.route.partitions_on(node)
            )
            for node in self.route.nodes
        }

    def assignment(self, ticket: Ticket, time: Time) -> Assignment:
        """What the tasks of an attempt have to know."""
        return Assignment(
            pipeline=self._pipeline,
            token=self._local.token,
            ticket=ticket,
            before=self._before,
            time=time,
            route=self.route,
            addresses=tuple(node.address for node in self._local.nodes),
            timeout=self._timeout,
            faults=faults.place(),
        )

    def begin(self, node: int, ticket: Ticket, watermark: int | None) -> None:
        """Have a node stand at the batch before, whatever it is at."""
        groups = self.route.groups_of(node)
        self._answers.pop(node, None)
        self._client(node).begin(ticket, self._base.restricted(groups), groups, watermark)

    def prepare(self, node: int, ticket: Ticket) -> frozenset[Part]:
        """Have a node make durable what was staged; what that was."""
        answer = self._client(node).prepare(ticket)
        self._answers[node] = answer
        return frozenset((table, partition) for table, parts in answer.tables.items() for partition in parts)

    @property
    def durable(self) -> bool:
        """Whether what the nodes keep outlives them."""
        return self._durable

    def kept(self, batch_id: int, watermark: int | None) -> Kept:
        """What the nodes answered, together."""
        answers = self._answers.values()
        runs = together(answer.runs for answer in answers)
        return Kept(
            manifest=Manifest(batch_id, self.route.groups, watermark, self._tables, runs),
            late=sum(answer.stats.get("late", 0) for answer in answers),
            wire=sum(answer.stats.get("wire", 0) for answer in answers),
            rows=sum(rows for a in answers for parts in a.tables.values() for rows in parts.values()),
            bytes=sum(answer.bytes for answer in answers),
        )

    def committed(self, ticket: Ticket, manifest: Manifest) -> None:
        """The batch is in the ledger: from now on the nodes are to stand there."""
        self._base, self._before = manifest, ticket

    def commit(self, node: int, ticket: Ticket, watermark: int | None) -> None:
        """Have a node make the batch current. One that misses it is told by the next `begin`."""
        try:
            self._client(node).commit(ticket, watermark)
        except TidegateError as error:
            _log.warning("node %d has not heard that batch %d is committed: %s", node, ticket.batch_id, error)

    def heal(self) -> int:
        """Replace the nodes that do not answer; how many there were."""
        lost = self._local.dead()
        for node in lost:
            _log.warning("state node %d is lost; starting another in its place", node)
        self._local.replace_all(lost)
        return len(lost)

    def close(self) -> None:
        self._local.close()

    def _client(self, node: int) -> NodeClient:
        return client_for(
            self._local.nodes[node].address,
            token=self._local.token,
            pipeline=self._pipeline,
            timeout=self._timeout,
        )


def names_of(generation: int) -> str:
    """How the names of a driver's nodes begin. They go into the names of the runs that those write."""
    return f"g{generation}-"


def generation_of(run: str) -> int | None:
    """The generation of the driver whose node wrote a run; None when its name does not tell."""
    found = re.match(r"\d+-g(\d+)-", run)
    return int(found[1]) if found else None


def _bytes(text: str) -> int:
    """A size like `512m` in bytes."""
    return int(text[:-1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[text[-1].lower()]
