"""Faults planned for a run: what goes wrong at which fault point.

    from tidegate.testing import faults

    with faults.planned(tmp_path, [faults.Fault("node.prepare.written", "crash", batch_id=3)]):
        pipeline.run(...)

Every process of the run takes the plan from the environment. Each fault strikes once, in the first process
that reaches its point in its batch; `faults.struck(folder)` tells which did.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tidegate.faults import POINTS, VARIABLE, Fault, InjectedError, load

__all__ = ["POINTS", "Fault", "InjectedError", "environment", "planned", "release", "struck"]


@contextmanager
def planned(folder: Path, plan: Sequence[Fault]) -> Iterator[None]:
    """Let these faults strike in this process and in those that it starts meanwhile."""
    os.environ.update(environment(folder, plan))
    load()
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        load()


def environment(folder: Path, plan: Sequence[Fault]) -> dict[str, str]:
    """The same for a process that is started with these environment variables."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "plan.json"
    file.write_text(json.dumps([asdict(fault) for fault in plan]))
    return {VARIABLE: str(file)}


def struck(folder: Path) -> set[str]:
    """Names of the faults that struck."""
    return {path.stem for path in folder.glob("*.struck")}


def release(folder: Path, fault: Fault) -> None:
    """End a `hang`."""
    (folder / f"{fault.name}.released").touch()
