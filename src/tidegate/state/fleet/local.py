"""State nodes as processes on this machine."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.security.security import VARIABLE, Security
from tidegate.state.fleet import child
from tidegate.state.fleet.child import Child
from tidegate.state.fleet.fleet import Fleet
from tidegate.state.fleet.provider import NodeHandle
from tidegate.state.fleet.sockets import SocketFolder
from tidegate.state.node.spec import NodeSpec
from tidegate.state.wire.access import OPTIONS, SOCKET

LOCALHOST = "localhost"
"""The host of nodes that only this machine can reach."""
_LOGS = 10
"""So many logs of earlier nodes are kept, the newest ones."""


class LocalNodes(Fleet):
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
        security: Security | None = None,
        options: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        generation: int = 0,
    ) -> None:
        """`memory` is for each node, in bytes; `timeout` as in `Fleet`. `bind` is an address of this machine,
        for tasks on others. `security` is the driver's; None makes one. `options` are for the backend and may
        be secret. A node's own words go to `scratch`/NAME.log. What nodes of smaller generations left in
        `scratch` is removed, but for their newest logs."""
        security = security or Security.of_run(pipeline, tls=bind is not None)
        spec = NodeSpec(
            pipeline, log, backend, memory, durable, environment=environment(security, options or {})
        )
        launcher = LocalLauncher(spec, scratch=scratch, generation=generation, bind=bind)
        super().__init__(
            launcher,
            count,
            pipeline=pipeline,
            security=security,
            generation=generation,
            timeout=timeout,
        )


def environment(security: Security, options: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a node hears what is secret; `security` is the driver's."""
    return {VARIABLE: security.party("node").as_text(), OPTIONS: json.dumps(dict(options))}


class LocalLauncher:
    """Starts nodes as children of this process."""

    def __init__(self, spec: NodeSpec, *, scratch: Path, generation: int, bind: str | None = None) -> None:
        self._spec = spec
        self._scratch = scratch
        self._bind = bind
        self._sockets = SocketFolder()
        self._ended = deque[str]()
        self._forgetting = threading.Lock()
        scratch.mkdir(parents=True, exist_ok=True)
        _tidy(scratch, generation)

    def hosts(self) -> Sequence[str]:
        return (self._bind or LOCALHOST,)

    def leaving(self) -> frozenset[str]:
        return frozenset()

    def start(self, name: str, host: str, *, gently: bool = False) -> LocalNode:
        bind = self._bind or f"{SOCKET}{self._sockets.path()}"
        started = child.start(self._spec, name=name, scratch=self._scratch, bind=bind, gently=gently)
        return LocalNode(NodeHandle(name, started.address, started.pid, host), started, self)

    def renew(self) -> None:
        """Nothing outlives this process."""

    def lost(self, host: str) -> None:
        """It is this machine."""

    def close(self) -> None:
        self._sockets.close()

    def has_ended(self, name: str) -> None:
        """Its last words stay for a while: in a long run nodes come and go."""
        with self._forgetting:
            self._ended.append(name)
            while len(self._ended) > _LOGS:
                child.log_of(self._scratch, self._ended.popleft()).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node that is a child of this process."""

    handle: NodeHandle
    child: Child
    launcher: LocalLauncher

    @property
    def alive(self) -> bool:
        return self.child.alive

    def request_end(self) -> None:
        self.child.request_end()

    def end(self, seconds: float) -> None:
        self.child.end(seconds)
        self.launcher.has_ended(self.handle.name)


def _tidy(scratch: Path, generation: int) -> None:
    """Remove the folders of nodes of earlier generations, and all but the newest of their logs: a node that
    was killed, or whose driver was, could not do so itself."""
    logs = []
    for path in scratch.iterdir():
        found = re.match(r"g(\d+)-", path.name)
        if found is None or int(found[1]) >= generation:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix == ".log":
            with contextlib.suppress(FileNotFoundError):
                logs.append((int(found[1]), path.stat().st_mtime, path))
    for _, _, path in sorted(logs)[:-_LOGS]:
        path.unlink(missing_ok=True)
