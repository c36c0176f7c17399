"""A state node as a process: `python -m tidegate.state.node.process --help`.

Prints one JSON line, {"name", "address", "pid"}, when it listens. Ends when its standard input does, so that
it does not outlive the process that started it, on SIGTERM, and when its lease, if it was given one, has run
out: then it has no driver any more, or none that reaches it. Other users of the machine can read arguments,
so what is secret comes in the environment: the node's `Security` as text in TIDEGATE_SECURITY, and in
TIDEGATE_OPTIONS the options of the backend as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path

import numpy.ma  # noqa: F401  pyarrow loads it at its first conversion: better now than in a batch.

from tidegate import faults
from tidegate.errors import StateError, TidegateError
from tidegate.state.node.background import Background
from tidegate.state.node.node import StateNode
from tidegate.state.node.service import StateService
from tidegate.state.node.shard import Shard
from tidegate.state.node.spec import check_probe
from tidegate.state.wire.access import OPTIONS, at
from tidegate.state.wire.client import client_for
from tidegate.state.wire.commands import Limits
from tidegate.state.wire.serving import announce, told_security
from tidegate.storage.place import open_storage

_log = logging.getLogger(__name__)

_WILDCARDS = ("0.0.0.0", "::")
_GRACE = 3.0
"""Seconds that running requests have when the node is told to end."""
_PEER_TIMEOUT = 5.0
"""Seconds that another node has to answer."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.meta_path.insert(0, _WithoutPandas())
    faults.enter("node")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        _serve(given, ended)
    except TidegateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


class _WithoutPandas(MetaPathFinder):
    """pyarrow loads pandas, 40 MB of it, at its first conversion if it is there; a node has no use for it."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a state node does without pandas", name=fullname)


def _serve(given: argparse.Namespace, ended: threading.Event) -> None:
    if given.bind in _WILDCARDS and not given.advertise:
        raise StateError(f"a node that binds to {given.bind} needs --advertise HOST: where to reach it")
    given.scratch.mkdir(parents=True, exist_ok=True)
    security = told_security()
    connect = partial(client_for, security=security, pipeline=given.pipeline, timeout=_PEER_TIMEOUT)
    log = open_storage(given.log)
    if given.probe is not None:
        check_probe(log, given.probe, given.advertise or given.bind)
    shard = Shard(
        log,
        name=given.name,
        scratch=given.scratch,
        backend=given.backend,
        memory=given.memory,
        durable=given.durable,
        options=json.loads(os.environ.pop(OPTIONS, "{}")),
        connect=connect,
    )
    node = StateNode(shard, name=given.name, staged=Limits().staged, lease=given.lease)
    background = Background(node)
    service = StateService(
        node,
        pipeline=given.pipeline,
        security=security,
        bind=at(given.bind, 0),
    )
    address = at(given.advertise or given.bind, service.port)
    announce({"name": given.name, "address": address, "pid": os.getpid()})
    threading.Thread(target=_wait_for_end_of_input, args=(ended,), daemon=True).start()
    _wait_for_the_end(ended, node)
    closing = threading.Thread(target=_close, args=(service, background, node), daemon=True)
    closing.start()
    closing.join(_GRACE)
    shutil.rmtree(given.scratch, ignore_errors=True)
    # A request that hangs must not keep the process: what is not in the ledger by now does not count.
    os._exit(0)


def _wait_for_the_end(ended: threading.Event, node: StateNode) -> None:
    while not ended.wait(node.lease_left):
        left = node.lease_left
        if left is not None and left <= 0:
            _log.warning("no driver has asked for this node for as long as its lease; it gives up")
            return


def _close(service: StateService, background: Background, node: StateNode) -> None:
    service.shutdown()
    background.close()
    node.close()


def _wait_for_end_of_input(ended: threading.Event) -> None:
    # Not by sys.stdin: its lock, held by a daemon thread, is fatal when the interpreter ends.
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    ended.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidegate.state.node.process", description="Serve keyed state."
    )
    parser.add_argument("--name", required=True, help="unique among all nodes that ever write to the log")
    parser.add_argument("--pipeline", required=True, help="whose state it is; others are refused")
    parser.add_argument("--log", required=True, help="folder or s3:// place of the durable log")
    parser.add_argument(
        "--scratch", required=True, type=Path, help="folder of its own; removed when the node ends"
    )
    parser.add_argument("--backend", default="columnar")
    parser.add_argument("--memory", type=int, default=1 << 30, help="bytes that state may take in memory")
    parser.add_argument("--bind", required=True, help="unix:PATH of a socket, or address to listen on")
    parser.add_argument("--advertise", help="host under which others reach it, if not as bound")
    parser.add_argument("--lease", type=float, help="seconds without a driver after which it ends")
    parser.add_argument("--probe", help="a file that the driver has left in the log")
    parser.add_argument("--durable", action=argparse.BooleanOptionalAction, default=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
