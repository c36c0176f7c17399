"""Pipelines on a cluster of several machines: `python -m benchmarks.hosts [--quick] [--json] [--only TEXT]`.

The machines are hosts of a lab on this one (`tidegate.lab`, needs root): one with the master, one with the
driver, one where another driver can start, three with a worker each, and one that joins later. All share one
folder, which holds the checkpoints of both sides: Spark's own needs a file system, and its package has no
connector for object stores. Both sides have the same master, workers and time limits of Spark.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.comparison import Row, tell
from benchmarks.on_host import INTERVAL, WORK
from benchmarks.rescale import PAYLOAD
from tidegate.lab import Lab

WORKERS = ("a", "b", "c")
AWAY = "25 ms"
"""What comes to the host that is away takes so long: so does a round trip to one that is not."""
LOAD = 0.6
"""The part of what the cluster can do that comes in while something happens to it."""
AFTER = 10
"""Batches that are looked at after that."""
_WORKER_MEMORY = "2g"
"""An executor takes all of it, so that there is one on each worker."""
_STEADY = 6
_PATIENCE = 600.0
"""Seconds after which what should happen is taken not to happen."""
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The hosts, and the folder that they share."""

    lab: Lab
    folder: Path
    quick: bool
    only: str

    def wanted(self, names: Iterable[str]) -> list[str]:
        """Those of these rows that are to be measured."""
        left_out = _LONG if self.quick and not self.only else ()
        return [name for name in names if self.only in name and name not in left_out]

    def settings(self, provider: str, *, tls: bool = False) -> dict[str, Any]:
        """Of a pipeline with its state nodes there."""
        given: dict[str, Any] = {
            "spark.master": self.lab.spark.url,
            "spark.driver_memory": "1g",
            "cluster.memory": _WORKER_MEMORY,
            "engine.parallelism": len(WORKERS),
            "state.nodes": len(WORKERS),
            "state.provider": provider,
            "security.tls": "on" if tls else "off",
            "security.spark": "off",
        }
        if provider == "local":
            given["state.bind"] = self.lab["near"].address
        return given

    def environment(self) -> dict[str, str]:
        mine = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        # Temporary checkpoints, too, have to be where all hosts see them.
        return {**mine, "PYTHONPATH": path, "TMPDIR": str(self.folder)}

    def start(self, host: str, *command: str, **pipes: Any) -> subprocess.Popen[str]:
        return self.lab[host].start(
            [sys.executable, "-m", *command], cwd=self.folder, env=self.environment(), text=True, **pipes
        )


@contextmanager
def cluster(*, quick: bool, only: str) -> Iterator[Cluster]:
    """All hosts but the late one, with the workers of Spark."""
    with tempfile.TemporaryDirectory(prefix="tidegate-hosts-", ignore_cleanup_errors=True) as folder:
        workers: dict[str, dict[str, Any]] = {name: {"disk": "4g"} for name in WORKERS}
        # A machine that joins has cores of its own: what it starts must not take those of the others.
        late = {"up": False, "disk": "4g", "cpus": 0.5}
        declared = {
            "lab": {"shared": [folder]},
            "hosts": {"head": {}, "near": {}, "other": {}, **workers, "late": late},
            "spark": {"master": "head", "workers": [*WORKERS, "late"], "cores": 2, "memory": _WORKER_MEMORY},
        }
        with Lab(declared) as lab:
            yield Cluster(lab, Path(folder), quick, only)


class Meter:
    """A driver that measures what it is told to, in one process, so that its code stays compiled."""

    def __init__(self, hosts: Cluster) -> None:
        self._process = hosts.start(
            "near", "benchmarks.on_host", "measure", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def rows_per_second(self, **job: Any) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the driver that measures has ended; what it said is above")
        return float(json.loads(line)["rows_per_second"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def metered(hosts: Cluster) -> Iterator[Meter]:
    meter = Meter(hosts)
    try:
        yield meter
    finally:
        meter.close()


class Running:
    """A stateful pipeline of ours, or query of Spark's own, under load; it tells of its batches.

    With `spare`, its executors leave as much room for those of another driver, however long it takes Spark's
    master to notice that the first one is gone."""

    def __init__(self, hosts: Cluster, keys: int, rate: float, *, own: bool, spare: bool) -> None:
        self.checkpoint = tempfile.mkdtemp(prefix="checkpoint-", dir=hosts.folder)
        self._hosts, self._keys, self._rate, self._own = hosts, keys, rate, own
        self._executors = {"memory": "1g", "cores": len(WORKERS)} if spare else {"memory": _WORKER_MEMORY}
        self._told: list[Path] = []
        self.start("near")

    def start(self, host: str) -> None:
        """Start its driver there."""
        self._told.append(Path(self.checkpoint).with_suffix(f".told-{host}"))
        if self._own:
            asked = {
                "master": self._hosts.lab.spark.url,
                "checkpoint": self.checkpoint,
                "keys": self._keys,
                "rate": self._rate,
                "partitions": len(WORKERS),
                **self._executors,
            }
            command = ["benchmarks.on_host", "query", json.dumps(asked)]
        else:
            file = self._hosts.folder / f"load-{self._keys}.py"
            file.write_text(
                f"from benchmarks.rescale import pipeline\np = pipeline({self._keys}, {self._rate})\n"
            )
            given = {
                **self._hosts.settings("executors"),
                "engine.interval": f"{INTERVAL} seconds",
                "state.memory": "1g",
                "cluster.memory": self._executors["memory"],
            }
            if "cores" in self._executors:
                given["spark.conf.spark.cores.max"] = self._executors["cores"]
            command = ["tidegate.cli.main", "run", file.name, "--json", "--take-over"]
            command += ["--checkpoint", self.checkpoint]
            command += [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        with self._told[-1].open("w") as told:
            self._process = self._hosts.start(host, *command, stdout=told, stdin=subprocess.DEVNULL)

    def batches(self) -> list[dict[str, Any]]:
        """What all of its drivers have told, in order of time."""
        lines = [line for file in self._told for line in file.read_text().split("\n")[:-1]]
        return [told for line in lines if "batch_id" in (told := json.loads(line))]

    def ends(self) -> list[float]:
        """When its batches were committed."""
        return [datetime.fromisoformat(batch["finished_at"]).timestamp() for batch in self.batches()]

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _PATIENCE
        while not reached():
            if time.monotonic() > until:
                raise SystemExit(f"waited in vain until {what}")
            time.sleep(0.1)

    def await_steady(self) -> None:
        """Until its state is there and it keeps up."""

        def steady() -> bool:
            if self._process.poll() is not None:
                raise SystemExit("the driver under load has ended; what it said is above")
            latest = self.ends()[-_STEADY - 1 :]
            gaps = [after - before for before, after in pairwise(latest)]
            return len(self.ends()) > 2 * _STEADY and max(gaps) < 1.5 * INTERVAL

        self.wait(steady, "batches keep to their interval")

    def await_more(self, count: int) -> None:
        first = len(self.ends())
        self.wait(lambda: len(self.ends()) >= first + count, "there are more batches")

    def gap(self, since: float) -> float:
        """The longest distance of two batches of which the later one was committed after that moment."""
        return max(after - before for before, after in pairwise(self.ends()) if after > since)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


@contextmanager
def running(hosts: Cluster, size: int, rate: float, *, own: bool, spare: bool = False) -> Iterator[Running]:
    """With so many bytes of state, and steady."""
    started = Running(hosts, size // PAYLOAD, rate, own=own, spare=spare)
    try:
        started.await_steady()
        yield started
    finally:
        started.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one turn and 0.1 GB of state; unless named, long rows are left out",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--only", default="", help="just the rows whose name contains this")
    asked = parser.parse_args(arguments)
    rows: list[Row] = []
    with cluster(quick=asked.quick, only=asked.only) as hosts:
        for measure, names in _MEASURES.items():
            for row in measure(hosts) if hosts.wanted(names) else ():
                rows.append(row)
                print(f"{row.name}: {row.ratio:.3g} ({row.goal})", file=sys.stderr, flush=True)
    tell("On hosts of a cluster", rows, as_json=asked.json)


_KINDS: Mapping[str, tuple[bool, float]] = {
    "executors, TLS off": (False, 0.95),
    "executors, TLS on": (True, 0.85),
}
_AWAY = f"throughput, 1 s batches, one host {AWAY} away against all near"
_KILLED = "longest gap, host killed under load, Spark's own against ours"
_LARGER = "longest gap, host killed under load, 1 GB against 0.1 GB"
_RESTART = "driver's host killed, seconds to the next batch, Spark's own against ours"
_JOIN = "longest gap in intervals, scale-out to a host that joins"
_ACROSS = "state bytes that cross hosts, of all"


def _named(work: str, kind: str) -> str:
    return f"throughput, {work}, {kind}"


_LONG = {_AWAY, _LARGER, _RESTART, *(_named(work, kind) for work in WORK for kind in _KINDS)}
"""Rows that `--quick` has no time for."""


def _throughput(hosts: Cluster) -> Iterator[Row]:
    """State nodes on the hosts of executors against nodes beside the driver."""
    turns, batches = (1, 8) if hosts.quick else (3, 14)
    with metered(hosts) as meter:
        for work in WORK:
            kinds = [kind for kind in _KINDS if hosts.wanted([_named(work, kind)])]
            if not kinds:
                continue
            sides = {"local": hosts.settings("local")}
            sides |= {kind: hosts.settings("executors", tls=_KINDS[kind][0]) for kind in kinds}
            found: dict[str, list[float]] = {side: [] for side in sides}
            meter.rows_per_second(work=work, batches=batches, settings=sides["local"])  # warms up
            for turn in range(turns):
                for side in (list(sides), list(reversed(sides)))[turn % 2]:
                    measured = meter.rows_per_second(work=work, batches=batches, settings=sides[side])
                    found[side].append(measured)
            for kind in kinds:
                least = _KINDS[kind][1]
                yield _row(_named(work, kind), found[kind], found["local"], "rows/s", least=least)


def _one_away(hosts: Cluster) -> Iterator[Row]:
    turns, seconds = (1, 12.0) if hosts.quick else (3, 25.0)
    job = {"work": "keyed count", "seconds": seconds, "settings": hosts.settings("executors")}
    found: dict[str, list[float]] = {"near": [], "away": []}
    with metered(hosts) as meter:
        for turn in range(turns + 1):
            for place in (("near", "away"), ("away", "near"))[turn % 2]:
                back = hosts.lab.delay("b", AWAY) if place == "away" else None
                found[place].append(meter.rows_per_second(**job))
                if back is not None:
                    back()
    yield _row(_AWAY, found["away"][1:], found["near"][1:], "rows/s", least=0.9)


@cache
def _rate(hosts: Cluster) -> float:
    """The load: a part of what the cluster can do with state of this kind."""
    with metered(hosts) as meter:
        job = {"work": "1 kB per key", "seconds": 15.0 if hosts.quick else 30.0}
        return LOAD * meter.rows_per_second(**job, settings=hosts.settings("executors"))


def _under_load(hosts: Cluster) -> Iterator[Row]:
    """What happens to the hosts of workers: another one joins; one dies."""
    rate = _rate(hosts)
    more = {"rows/s": rate}
    small, large = 100_000_000, 100_000_000 if hosts.quick else 1_000_000_000
    ours, theirs = {small: list[float](), large: list[float]()}, list[float]()
    joined, remote, whole = [], [], []
    for _ in range(1 if hosts.quick else 2):
        with running(hosts, small, rate, own=False) as load:
            load.await_more(AFTER)
            steady = load.batches()[-AFTER:]
            remote.append(sum(batch["state_wire_remote"] for batch in steady) / AFTER)
            whole.append(sum(batch["state_wire"] for batch in steady) / AFTER)
            joined.append(_gap_of_join(hosts, load))
        hosts.lab["late"].kill()
        for size in ours:
            with running(hosts, size, rate, own=False) as load:
                ours[size].append(_gap_of_kill(hosts, load))
        with running(hosts, large, rate, own=True) as load:
            theirs.append(_gap_of_kill(hosts, load))
    yield _row(_ACROSS, remote, whole, "bytes", most=0.4, more=more)
    yield _row(_JOIN, joined, [INTERVAL], most=2, more=more)
    yield _row(_KILLED, ours[large], theirs, least=3, more={**more, "bytes of state": large}, shorter=True)
    if large > small:
        yield _row(_LARGER, ours[large], ours[small], most=1.5, more=more)


def _gap_of_kill(hosts: Cluster, load: Running) -> float:
    """A host with an executor and a state node."""
    since = time.time()
    hosts.lab["b"].kill()
    load.await_more(AFTER)
    gap = load.gap(since)
    hosts.lab["b"].boot()
    hosts.lab.spark.await_workers()
    return gap


def _gap_of_join(hosts: Cluster, load: Running) -> float:
    """From the moment that the host boots until its nodes have their state."""
    since = time.time()
    hosts.lab.boot("late")
    hosts.lab.spark.await_workers()
    more = str(len(WORKERS) + 1)
    arguments = ("scale", load.checkpoint, "--nodes", more, "--parallelism", more)
    command = hosts.start("near", "tidegate.cli.main", *arguments)
    if command.wait(_PATIENCE):
        raise SystemExit("the pipeline could not be scaled out; what was said is above")
    load.await_more(AFTER)
    return load.gap(since)


def _driver_killed(hosts: Cluster) -> Iterator[Row]:
    """Its host dies, and at once a driver starts on another one with nothing but the checkpoint's place."""
    rate = _rate(hosts)
    size = 100_000_000
    _run_before(hosts, "other")
    found: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(1 if hosts.quick else 3):
        for own in (True, False) if turn % 2 else (False, True):
            with running(hosts, size, rate, own=own, spare=True) as load:
                since = time.time()
                hosts.lab["near"].kill()
                load.start("other")
                load.wait(lambda: load.ends()[-1] > since, "the other driver has committed a batch")  # noqa: B023
                found[own].append(next(end for end in load.ends() if end > since) - since)
            hosts.lab["near"].boot()
    yield _row(_RESTART, found[False], found[True], least=1.5, more={"rows/s": rate}, shorter=True)


def _run_before(hosts: Cluster, name: str) -> None:
    """Leave there what a run leaves on a machine for the next one: an archive of Spark's classes."""
    file = hosts.folder / "before.py"
    file.write_text("from benchmarks.rescale import pipeline\np = pipeline(100, 100)\n")
    if hosts.start(name, "tidegate.cli.main", "run", file.name, "--quiet", "--for", "2 seconds").wait():
        raise SystemExit(f"no pipeline can be run on {name}; what was said is above")


_MEASURES: Mapping[Callable[[Cluster], Iterator[Row]], Sequence[str]] = {
    _throughput: [_named(work, kind) for work in WORK for kind in _KINDS],
    _one_away: [_AWAY],
    _under_load: [_ACROSS, _JOIN, _KILLED, _LARGER],
    _driver_killed: [_RESTART],
}
"""With the rows that each gives."""


def _row(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    unit: str = "s",
    *,
    least: float | None = None,
    most: float | None = None,
    more: Mapping[str, float] | None = None,
    shorter: bool = False,
) -> Row:
    """The median and the spread of the turns; the ratio is of our side to the other, or how many times
    shorter ours is."""
    peers = list(peer) * (len(ours) // len(peer))
    turns = [b / a if shorter else a / b for a, b in zip(ours, peers, strict=True)]
    ratio = statistics.median(turns)
    goal, met = (
        (f">= {least:g}", ratio >= least) if least is not None else (f"<= {most:g}", ratio <= (most or 0))
    )
    middle = statistics.median(ours), statistics.median(peer)
    return Row(name, *middle, unit, ratio, goal, met, (min(turns), max(turns)), dict(more or {}))


if __name__ == "__main__":
    main()
