"""What an object store has of Spark's own checkpoint, so that it can be made anew on another machine.

The cuts of committed batches are in the ledger. This is the rest:

sources-I/N-G   the log N of source I, or what else Spark has noted of it, as the driver of generation G saw
                it; N may end in `.compact`. Of several the newest generation counts: older ones were not
                committed, or are late writes of a driver that was replaced
plan-B          the cut of batch B, for sinks that show rows before the batch is committed: whoever runs it
                again must have the same one. The first one to plan it decides
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import FencedError, MissingFileError
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.storage.storage import Storage

_LOG = re.compile(r"(([0-9]+)(?:\.compact)?)-([0-9]+)")
_PLAN = re.compile(r"plan-([0-9]+)")


@dataclass(slots=True)
class CheckpointCopy:
    """Of the Spark checkpoint `files` of this machine, in `storage`, kept by the driver `generation`."""

    files: CheckpointFiles
    storage: Storage
    generation: int
    plans: bool = False
    """Whether cuts are kept before their batch is committed."""
    _there: dict[int, dict[str, str]] = field(default_factory=dict, init=False)
    """Source -> file of Spark -> name in the store, of those that are the same."""
    _plans: set[str] = field(default_factory=set, init=False)
    _old: list[tuple[int, int, str]] = field(default_factory=list, init=False)
    """Source and name of what can go once the batch, which brought something newer, is committed."""

    def sync(self, batch_id: int, starts: Sequence[Any], ends: Sequence[Any]) -> None:
        """Have in the store what Spark has noted for a batch that its entry in the ledger does not tell."""
        self._tidy(batch_id - 1)
        if self.plans:
            self._keep_plan(batch_id)
        for source, end in enumerate(ends):
            there = self._there.setdefault(source, {})
            for path in self.files.notes(source, end):
                if path.name not in there:
                    name = f"{path.name}-{self.generation:012d}"
                    self._place(source).write(name, [self.files.disk.read(path)])
                    if path.suffix:  # It stands for all before it.
                        self._old += [(batch_id, source, old) for old in there.values()]
                        there.clear()
                    there[path.name] = name

    def restore(self, batch_id: int, starts: Sequence[Any], ends: Sequence[Any], *, finished: bool) -> None:
        """Make Spark's checkpoint on this machine anew, after the last committed batch (-1 for none).

        Nothing that is there is believed: others may have gone on meanwhile. `finished`: that batch is over,
        its output visible; otherwise Spark brings it once more.

        Raises FencedError when something is there that only a newer driver can have written: this one has
        been held up, and what it would tidy away is no longer its own.
        """
        self.files.disk.remove_all(self.files.folder)
        plan = self._plan(batch_id + 1)
        if batch_id >= 0:
            # Whoever planned the next batch was through with this one.
            self.files.rebuild(batch_id, starts, ends, finished=finished or plan is not None)
        if plan is not None:
            self.files.plan(batch_id + 1, plan)
            ends = self.files.offsets(batch_id + 1) or ends
        for source, end in enumerate(ends):
            self._restore_notes(batch_id, source, end)

    def _keep_plan(self, batch_id: int) -> None:
        name, plan = f"plan-{batch_id}", self.files.disk.read(self.files.cut_file(batch_id))
        if name in self._plans:
            return
        if not self.storage.create(name, plan) and self.storage.open(name).to_pybytes() != plan:
            raise FencedError(
                f"batch {batch_id} was planned by another driver on {self.storage}, with another cut; only "
                "one can run at a time"
            )
        for old in self._plans:
            self.storage.delete(old)
        self._plans = {name}

    def _plan(self, batch_id: int) -> bytes | None:
        found = {name: int(match[1]) for name in self.storage.names() if (match := _PLAN.fullmatch(name))}
        if any(planned > batch_id for planned in found.values()):
            raise self._replaced("has planned later batches")
        self._plans = set(found)
        try:
            return bytes(self.storage.open(f"plan-{batch_id}"))
        except MissingFileError:
            return None

    def _restore_notes(self, batch_id: int, source: int, end: Any) -> None:
        place = self._place(source)
        newest: dict[str, str] = {}
        for name in place.names():  # In their order, so the newest generation of each is the last.
            if match := _LOG.fullmatch(name):
                if int(match[3]) > self.generation:
                    raise self._replaced(f"is at work (generation {int(match[3])})")
                if match[1] in newest:
                    self._old.append((batch_id, source, newest[match[1]]))
                newest[match[1]] = name
        for file, name in newest.items():
            self.files.note(source, file, place.open(name).to_pybytes())
        needed = {path.name for path in self.files.notes(source, end)}
        self._there[source] = {file: name for file, name in newest.items() if file in needed}
        for file in newest.keys() - needed:
            self.files.drop_note(source, file)
            self._old.append((batch_id, source, newest[file]))

    def _replaced(self, why: str) -> FencedError:
        return FencedError(
            f"another driver {why} on {self.storage}, and this one (generation {self.generation}) has been "
            "replaced; only one can run at a time. If there is no other one, the checkpoint was restored in "
            "parts: restore all of it from one copy"
        )

    def _tidy(self, committed: int) -> None:
        for each in [each for each in self._old if each[0] <= committed]:
            _, source, name = each
            self._place(source).delete(name)
            self._old.remove(each)

    def _place(self, source: int) -> Storage:
        return self.storage.within(f"sources-{source}")
