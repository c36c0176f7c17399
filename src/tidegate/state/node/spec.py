"""What the nodes of a run are started with, wherever that is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from tidegate.errors import MissingFileError, StateError
from tidegate.state.codec import Between, FormError, Like
from tidegate.storage.storage import Storage

_OURS = "TIDEGATE_"
_STORES = ("AWS_", "AZURE_", "GOOGLE_")
"""How the variables begin that tell where an object store is, and who may use it."""
PROBE = ".probe"
"""How the file ends by which a node knows that it sees the log of its driver."""

Secret: TypeAlias = Annotated[str, Like(re.compile(r"[^\0]{0,100000}"), "any text")]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """The same for all nodes of a run."""

    pipeline: str
    log: str
    """Where the durable log is, as `open_storage` takes it."""
    backend: str
    memory: Annotated[int, Between(1)]
    """Bytes that the state of one node may take in memory."""
    durable: bool
    lease: float | None = None
    """Seconds that a node goes on without its driver; None if it ends with the process that started it."""
    probe: str | None = None
    """A file in the log that the driver has written, and every node must see."""
    environment: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    """Variables: what is secret is told here, for other users of a machine can read arguments."""

    def check(self) -> None:
        for name in self.environment:
            if not name.startswith((_OURS, *_STORES)):
                raise FormError(f"the variable {name[:100]!r} is not one that a node is started with")

    def arguments(self) -> list[str]:
        """Of the process of a node, see `tidegate.state.node.process`."""
        given = ["--pipeline", self.pipeline, "--log", self.log, "--backend", self.backend]
        given += ["--memory", str(self.memory), "--durable" if self.durable else "--no-durable"]
        if self.lease is not None:
            given += ["--lease", str(self.lease)]
        if self.probe is not None:
            given += ["--probe", self.probe]
        return given


def inherited() -> dict[str, str]:
    """The variables of this process that a node on another machine needs as well."""
    return {name: value for name, value in os.environ.items() if name.startswith((_OURS, *_STORES))}


def write_probe(log: Storage, generation: int) -> str:
    """Leave a file in the log by which nodes know that it is the one of their driver; its name. Those of
    earlier drivers go."""
    name = f"g{generation}{PROBE}"
    for old in log.names():
        if old.endswith(PROBE) and old != name:
            log.delete(old)
    log.write(name, [b"A state node that does not see this file is not at the log of its driver.\n"])
    return name


def check_probe(log: Storage, probe: str, host: str) -> None:
    """Raise StateError when a log, as it is seen from this machine, is not the one of the driver."""
    try:
        log.size(probe)
    except MissingFileError:
        raise StateError(
            f"the log at {log} is not there as seen from {host}: a folder that the driver's machine does not "
            "share with the machines of its state nodes. Set state.log to an object store (s3://bucket/name) "
            "or to a folder that all of them mount at the same path"
        ) from None
