"""Runs that are steered from outside while they go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tidegate as tg
from tests.run.readings import latest, read, rows_of, sensors
from tidegate.control.client import ControlClient
from tidegate.errors import ControlError
from tidegate.rescale.model import Ask, Rescale, Strategy

MANY = 1_000_000
"""More rows than any of these runs gets to: they end when all was done to them."""
Act = Callable[[ControlClient], object]


@dataclass
class Steering:
    """Does one thing after the other to the running pipeline, then stops it."""

    checkpoint: Path
    acts: Sequence[Act]
    refused: list[str] = field(default_factory=list)
    records: Sequence[Rescale] = ()
    rows: int = 0
    done: int = 0
    apart: int = 3
    """Batches from one act to the next."""
    wait: int = 3

    def __call__(self, progress: tg.BatchProgress) -> None:
        client = ControlClient.find(self.checkpoint)
        self.rows += progress.rows_in
        self.records = client.history()
        # Nodes take their time to start: a rescale has to be on its new route before the next act.
        if self.records and self.records[-1].first_batch is None and not self.records[-1].over:
            return
        self.wait -= 1
        if self.wait > 0:
            return
        self.wait = self.apart
        if self.done == len(self.acts):
            client.stop()
            return
        self.done += 1
        try:
            self.acts[self.done - 1](client)
        except ControlError as error:
            self.refused.append(str(error))


def to(nodes: int, strategy: Strategy = "hybrid", **more: Any) -> Act:
    return lambda client: client.apply(Ask(nodes=nodes, strategy=strategy, **more))


def nothing(client: ControlClient) -> None:
    """Let some batches pass."""


def counting(path: Path) -> tg.Pipeline:
    p = tg.Pipeline("count")
    p.source(sensors(MANY)).key_by("id").aggregate(n=tg.agg.count()).sink(tg.sinks.Files(path))
    return p


def assert_counted(path: Path, rows: int) -> None:
    found = latest(read(path), "id")
    assert {key: row["n"] for key, row in found.items()} == Counter(
        row["id"] for row in rows_of(sensors(MANY), rows)
    )


def settings(**more: object) -> dict[str, object]:
    return {"admission__max_rows": 500, "admission__initial_rows": 500, "engine__interval": "50 ms", **more}
