"""The program of a lab's store: moto's S3 server, which can be told to go wrong.

    python -m tidegate.lab.serving ADDRESS PORT

Each line of its input is what is wrong from then on, as JSON; it answers with a line when that is in force.
It ends with its input.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tidegate.lab.store import Wrong

_BUSY = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>busy</Message></Error>'


class Faulty:
    """A WSGI application in front of another."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self.wrong = Wrong()
        self._application = application
        self._chance = Random(0)

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


def main(address: str, port: int) -> None:
    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server(address, port, application, threaded=True, request_handler=_Quiet)
    server.verify_request = lambda *_: not application.wrong.away  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _say("ready")
    for line in sys.stdin:
        application.wrong = Wrong(**json.loads(line))
        _say("done")


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
