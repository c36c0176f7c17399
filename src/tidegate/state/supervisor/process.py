"""A supervisor as a process that belongs to one driver: `python -m tidegate.state.supervisor.process --help`.

Prints one JSON line, {"address", "pid"}, when it listens. Ends on SIGTERM, and when its lease has run out:
its driver is gone, or cannot be reached. Nodes end with it. Its `Security` comes in the environment, as that
of a node does.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegate.errors import TidegateError
from tidegate.state.fleet.sockets import SocketFolder
from tidegate.state.supervisor.service import SupervisorService
from tidegate.state.supervisor.supervisor import Supervisor
from tidegate.state.wire.access import at
from tidegate.state.wire.serving import announce, told_security

_log = logging.getLogger(__name__)

_TIDY = 1.0
"""Seconds between two looks at the nodes."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    security = told_security()
    folder = SocketFolder(given.scratch)
    try:
        supervisor = Supervisor(host=given.host, scratch=folder.path(), lease=given.lease)
        service = SupervisorService(supervisor, security=security, bind=at(given.host, 0))
        announce({"address": at(given.host, service.port), "pid": os.getpid()})
        signal.signal(signal.SIGTERM, lambda *_: supervisor.stopped.set())
        while not supervisor.stopped.wait(_TIDY):
            supervisor.tidy()
            left = supervisor.lease_left
            if left is not None and left <= 0:
                _log.warning("no driver has asked for this supervisor for as long as its lease; it gives up")
                break
        service.shutdown()
        supervisor.close()
    except TidegateError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        folder.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidegate.state.supervisor.process", description="Start state nodes for one driver."
    )
    parser.add_argument("--host", required=True, help="address of this machine to listen on, with its nodes")
    parser.add_argument("--scratch", type=Path, help="where to make a folder for files of nodes")
    parser.add_argument("--lease", required=True, type=float, help="seconds without a driver until it ends")
    return parser


if __name__ == "__main__":
    sys.exit(main())
