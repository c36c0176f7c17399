"""Nodes whose leases are renewed whatever becomes of anything else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from tests.state.node_kit import PIPELINE, await_that
from tidegate.security.security import Security
from tidegate.state.fleet.fleet import Fleet
from tidegate.state.fleet.local import LocalLauncher, environment
from tidegate.state.node.spec import NodeSpec

LEASE = 4.0


class Stuck(LocalLauncher):
    """Takes for ever over one of its operations, until `free`."""

    def __init__(self, spec: NodeSpec, scratch: Path, operation: str) -> None:
        super().__init__(spec, scratch=scratch, generation=1)
        self._operation = operation
        self.free, self.entered = Event(), Event()

    def renew(self) -> None:
        self._stick("renew")

    def leaving(self) -> frozenset[str]:
        self._stick("leaving")
        return super().leaving()

    def _stick(self, operation: str) -> None:
        if operation == self._operation:
            self.entered.set()
            self.free.wait()


@contextmanager
def running(folder: Path, operation: str) -> Iterator[tuple[Fleet, Stuck]]:
    security = Security.of_run(PIPELINE, tls=False)
    told = environment(security, {})
    spec = NodeSpec(PIPELINE, str(folder / "log"), "columnar", 1 << 26, True, LEASE, None, told)
    launcher = Stuck(spec, folder / "nodes", operation)
    with Fleet(
        launcher, 1, pipeline=PIPELINE, security=security, generation=1, timeout=10.0, lease=LEASE
    ) as nodes:
        try:
            yield nodes, launcher
        finally:
            launcher.free.set()


@pytest.mark.parametrize("operation", ["renew", "leaving"])
def test_a_launcher_that_is_stuck_ends_no_node(tmp_path: Path, operation: str) -> None:
    with running(tmp_path, operation) as (nodes, launcher):
        assert launcher.entered.wait(30)
        before = nodes._renewal.rounds if nodes._renewal else 0
        # A lease has four rounds.
        await_that(lambda: nodes._renewal is not None and nodes._renewal.rounds > before + 5)
        assert nodes.dead() == []
