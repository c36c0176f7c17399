"""A state node as a process: `python -m tidegate.state.node.process --help`.

Prints one JSON line, {"name", "address", "pid"}, when it listens. Ends when its standard input does, so that
it does not outlive the driver that started it, or on SIGTERM. The token is in TIDEGATE_TOKEN: other users of
the machine can read arguments.
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
from tidegate.state.log.storage import open_storage
from tidegate.state.node.background import Background
from tidegate.state.node.node import StateNode
from tidegate.state.node.service import StateService
from tidegate.state.node.shard import Shard
from tidegate.state.wire.client import client_for
from tidegate.state.wire.commands import Limits

TOKEN = "TIDEGATE_TOKEN"
_WILDCARDS = ("0.0.0.0", "::")
_GRACE = 3.0
"""Seconds that requests at work have when the node is told to end."""


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
    token = os.environ.pop(TOKEN, "")
    tls, root = _tls(given)
    # Other nodes of the pipeline have the same token, and certificates like ours.
    connect = partial(
        client_for, token=token, pipeline=given.pipeline, timeout=given.peer_timeout, tls_root=root
    )
    shard = Shard(
        open_storage(given.log),
        name=given.name,
        scratch=given.scratch,
        backend=given.backend,
        memory=given.memory,
        durable=given.durable,
        options=dict(given.option),
        connect=connect,
    )
    limits = Limits(data=given.request_limit)
    node = StateNode(shard, name=given.name, staged=limits.staged)
    background = Background(node)
    service = StateService(
        node,
        pipeline=given.pipeline,
        token=token,
        bind=given.bind,
        port=given.port,
        tls=tls,
        limits=limits,
    )
    host = given.advertise or given.bind
    address = f"[{host}]:{service.port}" if ":" in host else f"{host}:{service.port}"
    _tell({"name": given.name, "address": address, "pid": os.getpid()})
    threading.Thread(target=_wait_for_end_of_input, args=(ended,), daemon=True).start()
    ended.wait()
    closing = threading.Thread(target=_close, args=(service, background, node), daemon=True)
    closing.start()
    closing.join(_GRACE)
    shutil.rmtree(given.scratch, ignore_errors=True)
    # A request that hangs must not keep the process: what is not in the ledger by now does not count.
    os._exit(0)


def _close(service: StateService, background: Background, node: StateNode) -> None:
    service.shutdown()
    background.close()
    node.close()


def _tell(line: dict[str, object]) -> None:
    """Nothing else goes to standard output: nobody reads it from here on."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _wait_for_end_of_input(ended: threading.Event) -> None:
    # Not by sys.stdin: its lock, held by a daemon thread, is fatal when the interpreter ends.
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    ended.set()


def _tls(given: argparse.Namespace) -> tuple[tuple[bytes, bytes] | None, bytes | None]:
    """Our certificate chain with its key, and what vouches for other nodes; None without TLS."""
    if bool(given.tls_cert) != bool(given.tls_key):
        raise StateError("TLS needs both --tls-cert and --tls-key")
    try:
        own = (given.tls_cert.read_bytes(), given.tls_key.read_bytes()) if given.tls_cert else None
        return own, given.tls_root.read_bytes() if given.tls_root else own and own[0]
    except OSError as error:
        raise StateError(f"cannot read the certificate or its key: {error}") from error


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
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--advertise", help="host under which others reach it, if not as bound")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--durable", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--option", action="append", default=[], type=_option, metavar="KEY=VALUE")
    parser.add_argument(
        "--request-limit", type=int, default=Limits().data, help="bytes of rows in one request"
    )
    parser.add_argument(
        "--peer-timeout", type=float, default=5.0, help="seconds that another node has to answer"
    )
    parser.add_argument("--tls-root", type=Path, help="what vouches for other nodes, PEM; else --tls-cert")
    parser.add_argument("--tls-cert", type=Path, help="certificate chain, PEM")
    parser.add_argument("--tls-key", type=Path, help="its private key, PEM")
    return parser


def _option(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
