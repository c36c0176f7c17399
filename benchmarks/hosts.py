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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.comparison import Row, tell
from benchmarks.on_host import INTERVAL, WORK
from benchmarks.rescale import PAYLOAD
from tidegate.lab import Host, Lab

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
def cluster(*, quick: bool) -> Iterator[Cluster]:
    """All hosts but the late one, with the workers of Spark."""
    with tempfile.TemporaryDirectory(prefix="tidegate-hosts-", ignore_cleanup_errors=True) as folder:
        workers: dict[str, dict[str, Any]] = {name: {"disk": "4g"} for name in WORKERS}
        declared = {
            "lab": {"shared": [folder]},
            "hosts": {"head": {}, "near": {}, "other": {}, **workers, "late": {"up": False, "disk": "4g"}},
            "spark": {"master": "head", "workers": [*WORKERS, "late"], "cores": 2, "memory": _WORKER_MEMORY},
        }
        with Lab(declared) as lab:
            yield Cluster(lab, Path(folder), quick)


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
                "admission.initial_rows": 200_000,
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
    parser.add_argument("--quick", action="store_true", help="one turn and 0.1 GB of state, in five minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument("--only", default="", help="just the rows whose name contains this")
    asked = parser.parse_args(arguments)
    rows: list[Row] = []
    with cluster(quick=asked.quick) as hosts:
        for measure in _measures(asked.only):
            for row in measure(hosts):
                rows.append(row)
                print(f"{row.name}: {row.ratio:.3g} ({row.goal})", file=sys.stderr, flush=True)
    tell("On hosts of a cluster", rows, as_json=asked.json)


def _measures(only: str) -> list[Callable[[Cluster], Iterator[Row]]]:
    """Those that give a row whose name contains the text."""
    named = {
        _throughput: [f"throughput, {work}, {kind}" for work in WORK for kind in _KINDS],
        _one_away: [_AWAY],
        _host_killed: [_KILLED, _LARGER],
        _driver_killed: [_RESTART],
        _joining: [_JOIN],
        _across: [_ACROSS],
    }
    return [measure for measure, names in named.items() if any(only in name for name in names)]


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


def _throughput(hosts: Cluster) -> Iterator[Row]:
    """State nodes on the hosts of executors against nodes beside the driver."""
    turns, batches = (1, 8) if hosts.quick else (3, 14)
    sides = {"local": hosts.settings("local")}
    sides |= {kind: hosts.settings("executors", tls=tls) for kind, (tls, _) in _KINDS.items()}
    with metered(hosts) as meter:
        for work in WORK:
            found: dict[str, list[float]] = {side: [] for side in sides}
            for turn in range(turns + 1):
                for side in (list(sides), list(reversed(sides)))[turn % 2]:
                    measured = meter.rows_per_second(work=work, batches=batches, settings=sides[side])
                    found[side].append(measured)
            for kind, (_, least) in _KINDS.items():
                # The first turn warms up.
                yield _row(
                    f"throughput, {work}, {kind}", found[kind][1:], found["local"][1:], "rows/s", least=least
                )


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


def _rate(hosts: Cluster) -> float:
    """The load: a part of what the cluster can do with state of this kind."""
    with metered(hosts) as meter:
        job = {"work": "1 kB per key", "seconds": 15.0 if hosts.quick else 30.0}
        return LOAD * meter.rows_per_second(**job, settings=hosts.settings("executors"))


def _host_killed(hosts: Cluster) -> Iterator[Row]:
    """A host with an executor and a state node."""
    rate = _rate(hosts)
    small, large = 100_000_000, 1_000_000_000
    turns = 1 if hosts.quick else 2
    ours, theirs = {small: list[float](), large: list[float]()}, list[float]()
    for _ in range(turns):
        for size in (small,) if hosts.quick else (small, large):
            ours[size].append(_gap_of_kill(hosts, size, rate, own=False))
        theirs.append(_gap_of_kill(hosts, small if hosts.quick else large, rate, own=True))
    compared = small if hosts.quick else large
    yield _row(_KILLED, theirs, ours[compared], least=3, more={"rows/s": rate, "bytes of state": compared})
    if ours[large]:
        yield _row(_LARGER, ours[large], ours[small], most=1.5, more={"rows/s": rate})


def _gap_of_kill(hosts: Cluster, size: int, rate: float, *, own: bool) -> float:
    with running(hosts, size, rate, own=own) as load:
        since = time.time()
        hosts.lab["b"].kill()
        load.await_more(AFTER)
        gap = load.gap(since)
    hosts.lab["b"].boot()
    _await_workers(hosts, "b")
    return gap


def _driver_killed(hosts: Cluster) -> Iterator[Row]:
    """Its host dies, and at once a driver starts on another one with nothing but the checkpoint's place."""
    rate = _rate(hosts)
    size = 100_000_000
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
    yield _row(_RESTART, found[True], found[False], least=1.5, more={"rows/s": rate})


def _joining(hosts: Cluster) -> Iterator[Row]:
    """From the moment that the host boots until its nodes have their state."""
    rate = _rate(hosts)
    gaps = []
    for _ in range(1 if hosts.quick else 3):
        with running(hosts, 100_000_000, rate, own=False) as load:
            since = time.time()
            hosts.lab.boot("late")
            _await_workers(hosts, "late")
            more = str(len(WORKERS) + 1)
            arguments = ("scale", load.checkpoint, "--nodes", more, "--parallelism", more)
            command = hosts.start("near", "tidegate.cli.main", *arguments)
            if command.wait(_PATIENCE):
                raise SystemExit("the pipeline could not be scaled out; what was said is above")
            load.await_more(AFTER)
            gaps.append(load.gap(since))
        hosts.lab["late"].kill()
    yield _row(_JOIN, gaps, [INTERVAL], most=2, more={"rows/s": rate})


def _across(hosts: Cluster) -> Iterator[Row]:
    """In steady state, each worker's host with one node."""
    rate = _rate(hosts)
    with running(hosts, 100_000_000, rate, own=False) as load:
        load.await_more(AFTER)
        steady = load.batches()[-AFTER:]
    remote = [float(batch["state_wire_remote"]) for batch in steady]
    whole = [float(batch["state_wire"]) for batch in steady]
    yield _row(_ACROSS, remote, whole, "bytes", most=0.4)


def _await_workers(hosts: Cluster, name: str) -> None:
    """Until a host that has booted has its worker."""
    host: Host = hosts.lab[name]
    until = time.monotonic() + _PATIENCE
    while not host.processes("deploy.worker.Worker"):
        if time.monotonic() > until:
            raise SystemExit(f"host {name} has no worker of Spark")
        time.sleep(0.1)
    hosts.lab.spark.await_workers()


def _row(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    unit: str = "s",
    *,
    least: float | None = None,
    most: float | None = None,
    more: Mapping[str, float] | None = None,
) -> Row:
    """The median and the spread of the turns; the ratio is of the first side to the second."""
    peers = list(peer) * (len(ours) // len(peer))
    turns = [a / b for a, b in zip(ours, peers, strict=True)]
    ratio = statistics.median(turns)
    goal, met = (
        (f">= {least:g}", ratio >= least) if least is not None else (f"<= {most:g}", ratio <= (most or 0))
    )
    middle = statistics.median(ours), statistics.median(peer)
    return Row(name, *middle, unit, ratio, goal, met, (min(turns), max(turns)), dict(more or {}))


if __name__ == "__main__":
    main()
