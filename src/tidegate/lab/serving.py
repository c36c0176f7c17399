"""The program of a lab's store: moto's S3 server, which can be told to go wrong.

    python -m tidegate.lab.serving ADDRESS PORT FILE

The file says what is wrong with it, at each request anew, so it can be changed while the server stands still.
It writes a line when it takes requests, and ends with its input.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tidegate.lab.store import Wrong

_BUSY = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>busy</Message></Error>'


class Faulty:
    """A WSGI application in front of another."""

    def __init__(self, application: Callable[..., Iterable[bytes]], file: Path) -> None:
        self._file = file
        self._application = application
        self._chance = Random(0)

    @property
    def wrong(self) -> Wrong:
        return Wrong.read(self._file)

    def __call__(self, request: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        wrong = self.wrong
        time.sleep(wrong.delay)
        if self.wrong.away:
            request["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("the store is away")
        if self._chance.random() < wrong.errors:
            # Unread, what the request holds would be taken for the next one.
            request["wsgi.input"].read(int(request.get("CONTENT_LENGTH") or 0))
            start_response(
                "503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(_BUSY)))]
            )
            return [_BUSY]
        return self._application(request, start_response)


class _Quiet(MotoRequestHandler):
    def log(self, *message: object) -> None:
        """Nobody reads it."""


def main(address: str, port: int, file: Path) -> None:
    application = Faulty(DomainDispatcherApplication(create_backend_app), file)
    server = make_server(address, port, application, threaded=True, request_handler=_Quiet)
    server.verify_request = lambda *_: not application.wrong.away  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
