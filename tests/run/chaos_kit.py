"""A pipeline with state, drivers in processes of their own, and what a run leaves behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal
from uuid import uuid4

import pyspark

import tidegate as tg
from tests.java import DRIVER_JAVA, SMALL
from tidegate import config
from tidegate.ledger.ledger import Ledger
from tidegate.spark import session
from tidegate.state.node.shard import Shard
from tidegate.state.table.rows import encoded
from tidegate.storage.place import open_storage

NAME = "watched"
ROWS = 200
"""Of a batch. A running count gives one row per key and batch, so batches have to be the same in all runs."""
_TABLES = ("counts", "windows")
_ROOT = Path(__file__).parents[2]
_PATIENCE = 600.0
"""Seconds after which something that should happen is taken not to happen."""

SETTINGS: Mapping[str, str | int] = {
    "engine.interval": "20 ms",
    "engine.retry_wait": "20 ms",
    "engine.tries": 10,
    "engine.parallelism": 2,
    "state.timeout": "3 s",
    "state.key_groups": 16,
    "admission.min_rows": ROWS,
    "admission.max_rows": ROWS,
    "admission.initial_rows": ROWS,
}
_MASTER, _MEMORY = "local[2]", "512m"


def pipeline(folder: Path, batches: int) -> tg.Pipeline:
    """A running count, and beside it a count of windows that a second step adds up."""
    p = tg.Pipeline(NAME)
    readings = p.source(
        tg.sources.Sensors(
            sensors=40, rate=tg.sources.Constant(100), rows=batches * ROWS, start="2024-01-01T00:00:00"
        )
    )
    counts = readings.key_by("id").aggregate(n=tg.agg.count(), most=tg.agg.max("value"))
    counts.sink(tg.sinks.Files(folder / "counts"))
    windows = readings.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
    total = windows.key_by("id").aggregate(windows=tg.agg.count(), rows=tg.agg.sum("n"))
    total.sink(tg.sinks.Files(folder / "windows"))
    return p


@dataclass(frozen=True, slots=True)
class Left:
    """What a run leaves: the rows of each sink, and the rows of state by table and key group."""

    rows: Mapping[str, Counter[tuple[object, ...]]]
    state: Mapping[tuple[str, int], tuple[bytes, ...]]
    batches: int
    """Those with rows."""


def left(folder: Path, checkpoint: Path | str) -> Left:
    """What is there after a run of `pipeline(folder, ...)`."""
    place = open_storage(checkpoint)
    last = Ledger(place.within("ledger")).last
    assert last is not None
    assert last.state is not None
    manifest = last.state
    with tempfile.TemporaryDirectory() as scratch:
        shard = Shard(place.within("state"), name="reader", scratch=Path(scratch))
        shard.begin(manifest, frozenset(range(manifest.groups)))
        state = {
            (table.name, group): tuple(sorted(encoded(shard.scan(table.name, frozenset({group})))))
            for table in manifest.tables
            for group in range(manifest.groups)
        }
        shard.close()
    rows = {name: Counter(map(tuple, _rows(folder / name))) for name in _TABLES}
    closing = all(cut.start == cut.end for cut in last.cut.values())
    return Left(rows, state, last.batch_id + (0 if closing else 1))


def _rows(place: Path) -> Iterator[tuple[object, ...]]:
    return zip(*tg.read(place).to_pydict().values(), strict=True)


@dataclass(frozen=True, slots=True)
class Finished:
    """A run in this process."""

    left: Left
    slowest: float
    """Seconds of its slowest batch; the first one, which warms up the machine, does not count."""


def finish(folder: Path, batches: int, **settings: object) -> Finished:
    """Run to the end in this process."""
    told: list[tg.BatchProgress] = []
    given = {**SETTINGS, "engine.checkpoint": str(folder / "checkpoint"), **settings}
    effective = config.load(environ={}, overrides=given)
    pipeline(folder, batches).run(config=effective, listeners=[told.append], until_done=True)
    slowest = max((batch.batch_seconds for batch in told[1:]), default=0.0)
    return Finished(left(folder, folder / "checkpoint"), slowest)


class Driver:
    """The pipeline in a process of its own, with its checkpoint and its output in `folder`. A `standby` has
    Spark at the ready, and waits for `go`."""

    def __init__(
        self,
        folder: Path,
        batches: int,
        *,
        environ: Mapping[str, str] | None = None,
        settings: Mapping[str, str | int] | None = None,
        java: str | None = None,
        standby: bool = False,
        take_over: bool = False,
    ) -> None:
        java = java or quick_start()
        file = folder / f"watched-{uuid4().hex}.py"
        self._go = file.with_suffix(".go")
        lines = [
            "from pathlib import Path",
            "from tests.run.chaos_kit import at_the_ready, pipeline",
            f"at_the_ready({java!r}, Path({str(self._go)!r}))" if standby else "",
            f"p = pipeline(Path({str(folder)!r}), {batches})",
        ]
        file.write_text("\n".join(lines))
        command = [sys.executable, "-m", "tidegate.cli.main", "run", file.name, "--until-done", "--quiet"]
        command += ["--take-over"] if take_over else []
        spark = {"spark.master": _MASTER, "spark.driver_memory": _MEMORY, f"spark.conf.{DRIVER_JAVA}": java}
        given = {**SETTINGS, **spark, **(settings or {})}
        command += [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the driver
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        # What configures the tests is no configuration of a pipeline, and would be refused as such.
        mine = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env={**mine, "PYTHONPATH": path, **(environ or {})},
        )

    def go(self) -> None:
        """Let a standby begin; if it has not started Spark yet, it does so first."""
        self._go.touch()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def wait(self, more: float = 0.0) -> int:
        """Until it has ended; its exit code, negative for a signal. `more`: seconds that it has to work."""
        try:
            return self.process.wait(_PATIENCE + more)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end; it said: {self.said}") from None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Hold it and all that it started, as a machine that sleeps would."""
        held = [self.process.pid, *(part.pid for part in parts(self.process.pid))]
        for pid in held:
            _send(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in held:
                _send(pid, signal.SIGCONT)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        """End it, if it is still there."""
        if self.alive:
            self.process.kill()
            self.process.wait()
        self._errors.close()


def at_the_ready(java: str, go: Path) -> None:
    """What a standby does before it reads its pipeline."""
    # All that a run imports.
    from tidegate.run import runner  # noqa: F401

    tests = os.getppid()
    session.start(NAME, master=_MASTER, driver_memory=_MEMORY, conf={DRIVER_JAVA: java})
    while not go.exists():
        if os.getppid() != tests:
            sys.exit("nobody waits for this standby any more")
        time.sleep(0.02)


@cache
def quick_start() -> str:
    """Options of Java for drivers that start often and do not live long.

    What Java has to read and check of Spark's classes is a fifth of what a start costs. The first time it
    is kept in an archive beside them, for all drivers that follow. It fits those very jars: Java looks at
    their times."""
    jars = [f"{jar} {jar.stat().st_mtime_ns}" for jar in sorted(Path(pyspark.__path__[0]).glob("jars/*.jar"))]
    installed = sha256("\n".join(jars).encode()).hexdigest()[:12]
    archive = Path(sys.prefix) / f"tests-{installed}.jsa"
    options = f"{SMALL} -XX:SharedArchiveFile={archive}"
    # Of several processes that run tests, one makes it.
    with (
        archive.with_suffix(".lock").open("w") as lock,
        tempfile.TemporaryDirectory(dir=archive.parent) as scratch,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.exists():
            return options
        folder, draft = Path(scratch), Path(scratch) / "draft.jsa"
        with Driver(folder, 2, java=f"{SMALL} -XX:ArchiveClassesAtExit={draft}") as running:
            await_that(lambda: last_batch(folder) >= 1 or not running.alive, "both batches were committed")
            java = [part.pid for part in parts(running.process.pid) if part.kind == "jvm"]
            assert running.wait() == 0, running.said
        # Java writes when it ends, and that is after its driver.
        await_that(lambda: not any(map(_command, java)), "Java ended")
        if draft.exists():
            draft.replace(archive)
    return options


Kind = Literal["jvm", "node", "worker"]


@dataclass(frozen=True, slots=True)
class Part:
    """A process that a driver has started, itself or by others."""

    kind: Kind
    pid: int

    @property
    def role(self) -> str:
        """The Python modules that it runs; empty for a process that has ended."""
        words = _command(self.pid).split("\0")
        return " ".join(word for word in words if word.startswith(("pyspark.", "tidegate.")))


def parts(driver: int) -> list[Part]:
    """All that run now. Spark's Python workers, and the one that forks them, are under its JVM."""
    children: dict[int, list[int]] = defaultdict(list)
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # It has ended meanwhile.
        children[int(parent)].append(int(place.name))
    found: list[Part] = []
    for child in children[driver]:
        kind: Kind = "node" if "tidegate.state.node.process" in _command(child) else "jvm"
        found.append(Part(kind, child))
        below = list(children[child]) if kind == "jvm" else []
        while below:
            found.append(Part("worker", below.pop()))
            below += children[found[-1].pid]
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def checkpoint_of(folder: Path) -> Path:
    """Where `Driver` has its checkpoint."""
    return folder / ".tidegate" / NAME


def last_batch(folder: Path) -> int:
    """The last one that was committed there; -1 for none."""
    last = Ledger(checkpoint_of(folder) / "ledger").last
    return last.batch_id if last else -1


def await_that(condition: Callable[[], object], what: str) -> None:
    """Wait until it holds."""
    until = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"waited in vain until {what}")
        time.sleep(0.02)
