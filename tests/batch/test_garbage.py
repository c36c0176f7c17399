"""Which files of the log are deleted, and when."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tidegate.batch.garbage import Garbage
from tidegate.ledger.ledger import Ledger
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.storage.local import Local

RETENTION = 3


def collected(folder: Path, named: list[set[str]], routes: list[int]) -> set[str]:
    """What is left of the log after batches that named these runs."""
    ledger = Ledger(folder / "ledger")
    ledger.take_over()
    garbage = Garbage(ledger, Local(folder / "log"), RETENTION)
    for batch_id, (names, route) in enumerate(zip(named, routes, strict=True)):
        runs = tuple(RunRef(name, 0, frozenset({0}), 1, 1) for name in sorted(names))
        garbage.collect(StateManifest(batch_id, 1, None, (), runs), route)
    return set(Local(folder / "log").names())


def written(folder: Path, *names: str) -> None:
    storage = Local(folder / "log")
    for name in names:
        storage.write(name, [pa.py_buffer(b"run")])


A, B, C = (f"00000000000{n}-g1-node-0-abc-{n}-merged.run" for n in range(3))


def test_what_was_named_goes_with_the_batches_that_named_it(tmp_path: Path) -> None:
    written(tmp_path, A, B)
    assert collected(tmp_path, [{A}] + [{B}] * RETENTION, [1] * 4) == {B}


def test_what_no_batch_names_goes_some_batches_after_the_route_has_changed(tmp_path: Path) -> None:
    written(tmp_path, A, B)
    batches = 1 + RETENTION
    assert collected(tmp_path / "early", [], []) == set()
    assert collected(tmp_path, [{A}] * batches, [2] * batches) == {A}


def test_before_that_it_stays_for_it_may_be_about_to_be_named(tmp_path: Path) -> None:
    written(tmp_path, A, B)
    assert collected(tmp_path, [{A}] * RETENTION, [2] * RETENTION) == {A, B}


def test_what_is_named_meanwhile_stays(tmp_path: Path) -> None:
    written(tmp_path, A, B, C)
    assert collected(tmp_path, [{A}, {A, B}, {A, B}, {A, B}], [2] * 4) == {A, B}


def test_files_of_other_drivers_are_left_to_the_start(tmp_path: Path) -> None:
    written(tmp_path, A, later := B.replace("-g1-", "-g2-"))
    assert collected(tmp_path, [{A}] * 5, [2] * 5) == {A, later}
