"""State nodes as processes on this machine: started together, watched, replaced."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import StateError, TidegateError
from tidegate.state.fleet.provider import NodeHandle
from tidegate.state.fleet.sockets import SocketFolder
from tidegate.state.wire.access import IDENTITY, OPTIONS, SOCKET, TOKEN, Identity
from tidegate.state.wire.client import NodeClient

_log = logging.getLogger(__name__)

_START = 60.0
"""Seconds that a node has until it listens."""
_STARTS = 3
"""So often a node is started that is killed before it listens."""
_END = 5.0
"""Seconds that nodes have to end by themselves."""
_LOW = 15
"""The priority of a node that starts while others work, as `nice` has it."""
_LOGS = 10
"""So many logs of earlier nodes are kept, the newest ones."""


class _KilledError(StateError):
    """A node was killed before it listened."""


@dataclass(frozen=True, slots=True)
class _Running:
    handle: NodeHandle
    process: subprocess.Popen[bytes]
    client: NodeClient
    folder: Path


class LocalNodes:
    """`count` nodes, at Unix sockets unless told otherwise. They end with this object, and with this process,
    however that ends."""

    def __init__(
        self,
        count: int,
        *,
        pipeline: str,
        log: str,
        scratch: Path,
        backend: str = "columnar",
        memory: int = 1 << 30,
        durable: bool = True,
        bind: str | None = None,
        options: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        prefix: str = "",
    ) -> None:
        """`memory` is for each node, in bytes; `timeout`, in seconds, is how long a live node may take to
        answer or to work on one request. `bind` is an address of this machine, for tasks on others; `options`
        are for the backend and may be secret. `prefix` begins the names of the nodes. A node's own words go
        to `scratch`/NAME.log. When `prefix` is `gN-`, what nodes of smaller N left in `scratch` is removed,
        but for their newest logs."""
        self.token = secrets.token_urlsafe(32)
        self._pipeline = pipeline
        self._prefix = prefix
        self._scratch = scratch
        self._timeout = timeout
        self.identity = Identity.create() if bind is not None else None
        self._bind = bind
        self._arguments = [
            *("--pipeline", pipeline, "--log", str(log), "--backend", backend, "--memory", str(memory)),
            "--durable" if durable else "--no-durable",
        ]
        self._secrets = {TOKEN: self.token, OPTIONS: json.dumps(dict(options or {}))}
        if self.identity is not None:
            pair = self.identity.certificate, self.identity.key
            self._secrets[IDENTITY] = json.dumps([part.decode() for part in pair])
        self._sockets = SocketFolder()
        scratch.mkdir(parents=True, exist_ok=True)
        _tidy(scratch, _generation(prefix))
        self._running: list[_Running] = []
        self._change = threading.Lock()  # of which nodes there are
        self._ended: list[str] = []
        self.grow(count)

    @property
    def nodes(self) -> tuple[NodeHandle, ...]:
        return tuple(running.handle for running in self._running)

    def grow(self, count: int, *, gently: bool = False) -> None:
        """`gently`: one after the other, and they leave the machine to others until they listen, where this
        process may arrange that."""
        first = len(self._running)
        with ThreadPoolExecutor(1 if gently else max(count - first, 1)) as pool:
            starts = [pool.submit(self._start, index, gently=gently) for index in range(first, count)]
        started = [start.result() for start in starts if start.exception() is None]
        problem = next((start.exception() for start in starts if start.exception() is not None), None)
        if problem is not None:
            self._end(started)
            raise problem
        with self._change:
            in_time = len(self._running) == first
            if in_time:
                self._running = [*self._running, *started]
        if not in_time:
            self._end(started)
            raise StateError("no state node was added: the nodes were ended in the meantime")

    def shrink(self, count: int) -> threading.Thread:
        """Keep the first `count` nodes. The others are out at once; join the answer to see them ended."""
        with self._change:
            leaving, self._running = self._running[count:], self._running[:count]
        ending = threading.Thread(target=self._end, args=(leaving,), name="ending-nodes")
        ending.start()
        return ending

    def dead(self) -> list[int]:
        """Indexes of the nodes whose process is gone, that do not answer in time, or that have been at one
        request for longer than the time-out. Takes no longer than that itself."""
        running = self._running
        with ThreadPoolExecutor(max(len(running), 1)) as pool:
            found = list(pool.map(self._is_dead, running))
        return [index for index, dead in enumerate(found) if dead]

    def replace(self, index: int) -> NodeHandle:
        """End a node, whatever it is doing, and start another one in its place under a name of its own."""
        before = self._running
        if index < len(before):
            _kill(before[index])
            started = self._start(index)
            with self._change:
                in_time = index < len(self._running) and self._running[index] is before[index]
                if in_time:
                    self._running = [*self._running[:index], started, *self._running[index + 1 :]]
            if in_time:
                return started.handle
            self._end([started])
        raise StateError(f"state node {index} was not replaced: it was ended in the meantime")

    def replace_all(self, indexes: Sequence[int]) -> list[NodeHandle]:
        """`replace` for several nodes side by side. When some do not start, the first error is raised once
        the others have; those that did not stay dead."""
        with ThreadPoolExecutor(max(len(indexes), 1)) as pool:
            starts = [pool.submit(self.replace, index) for index in indexes]
        return [start.result() for start in starts]

    def close(self) -> None:
        """End all nodes. May be called again."""
        self.shrink(0).join()

    def __enter__(self) -> LocalNodes:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _end(self, leaving: Sequence[_Running]) -> None:
        for running in leaving:
            _hang_up(running)
        until = time.monotonic() + _END
        for running in leaving:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.0, until - time.monotonic()))
            _kill(running)
        # Their last words stay for a while: in a long run nodes come and go.
        self._ended += [running.handle.name for running in leaving]
        while len(self._ended) > _LOGS:
            (self._scratch / f"{self._ended.pop(0)}.log").unlink(missing_ok=True)
        if not self._running:
            self._sockets.close()

    def _is_dead(self, running: _Running) -> bool:
        if running.process.poll() is not None:
            return True
        try:
            # A little less than the time-out: the node saw the request after the one who gave it up.
            return running.client.status().busy > 0.9 * self._timeout
        except TidegateError:
            return True

    def _start(self, index: int, *, gently: bool = False) -> _Running:
        """One that says why it cannot start is believed; one that was killed is replaced."""
        for _ in range(_STARTS - 1):
            try:
                return self._start_once(index, gently=gently)
            except _KilledError as error:
                _log.warning("%s; starting another one", error)
        return self._start_once(index, gently=gently)

    def _start_once(self, index: int, *, gently: bool) -> _Running:
        name = f"{self._prefix}node-{index}-{secrets.token_hex(4)}"
        folder = self._scratch / name
        with (self._scratch / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "tidegate.state.node.process"),
                    *("--name", name, "--scratch", str(folder), *self._arguments),
                    *("--bind", self._bind or f"{SOCKET}{self._sockets.path()}"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._secrets},
                # Ctrl-C is the driver's to handle; it still needs its nodes to end the batch.
                start_new_session=True,
            )
        gently = gently and os.geteuid() == 0  # Others may not take it back.
        if gently:
            _prioritise(process.pid, _LOW)
        line = _first_line(process, _START)
        if gently:
            _prioritise(process.pid, 0)
        if not line.endswith(b"\n"):
            # One that closed its output has ended, or is about to.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END)
            in_time = process.returncode is not None
            process.kill()
            process.communicate()
            shutil.rmtree(folder, ignore_errors=True)
            said = (self._scratch / f"{name}.log").read_text(errors="replace")[-2000:].strip()
            kind = _KilledError if in_time and process.returncode < 0 else StateError
            raise kind(
                f"state node {name} did not start (exit code {process.returncode}): {said or 'no output'}"
            )
        told = json.loads(line)
        handle = NodeHandle(told["name"], told["address"], told["pid"])
        client = NodeClient(
            handle.address,
            token=self.token,
            pipeline=self._pipeline,
            timeout=self._timeout,
            identity=self.identity,
        )
        return _Running(handle, process, client, folder)


def _generation(name: str) -> int | None:
    """The number in a name that begins with `gN-`; None when it does not."""
    found = re.match(r"g(\d+)-", name)
    return int(found[1]) if found else None


def _tidy(scratch: Path, generation: int | None) -> None:
    """Remove the folders of nodes of earlier generations, and all but the newest of their logs: a node that
    was killed, or whose driver was, could not do so itself."""
    if generation is None:
        return
    logs = []
    for path in scratch.iterdir():
        number = _generation(path.name)
        if number is None or number >= generation:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix == ".log":
            with contextlib.suppress(FileNotFoundError):
                logs.append((number, path.stat().st_mtime, path))
    for _, _, path in sorted(logs)[:-_LOGS]:
        path.unlink(missing_ok=True)


def _prioritise(pid: int, nice: int) -> None:
    """Set how much of a busy machine a process gets; Linux has a say per session as well."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def _first_line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """What a process says first; without its line end when the process ended or the time is over before."""
    assert process.stdout is not None
    until, line = time.monotonic() + seconds, b""
    with process.stdout as stream:
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            said = os.read(stream.fileno(), 4096) if ready else b""
            if not said:
                break
            line += said
    return line


def _hang_up(running: _Running) -> None:
    running.client.close()
    if running.process.stdin is not None:
        running.process.stdin.close()


def _kill(running: _Running) -> None:
    _hang_up(running)
    running.process.kill()
    running.process.wait()
    shutil.rmtree(running.folder, ignore_errors=True)
    if running.handle.address.startswith(SOCKET):
        Path(running.handle.address.removeprefix(SOCKET)).unlink(missing_ok=True)
