"""The control API of a running pipeline, served from a thread of its driver."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from uuid import uuid4

from tidegate.control.controls import Controls
from tidegate.disk import DISK
from tidegate.errors import ControlError

FILE = "control.json"
"""In the checkpoint: where the pipeline answers, and the token it wants."""


@dataclass(frozen=True, slots=True)
class Contact:
    """What that file says; the process is the driver's."""

    url: str
    token: str
    pid: int
    pipeline: str


_PATIENCE = 0.5
"""Seconds that requests under way get at the end."""


class ControlServer:
    """Serves `controls` while the context lasts, and says where in `<checkpoint>/control.json`.

    Port 0 takes a free one. Of two drivers on one checkpoint the file belongs to the later; each removes only
    its own.
    """

    def __init__(
        self,
        controls: Controls,
        *,
        checkpoint: Path,
        bind: str = "127.0.0.1",
        port: int = 0,
        scale_by_get: bool = False,
    ) -> None:
        self.token = secrets.token_urlsafe(32)
        self.url = ""
        """Where it answers; empty before the context is entered."""
        self._controls = controls
        self._file = checkpoint / FILE
        self._bind = bind
        self._port = port
        self._scale_by_get = scale_by_get

    def __enter__(self) -> Self:
        # A pipeline that nobody steers need not wait for these imports.
        import uvicorn

        from tidegate.control.api import app

        listening = _listen(self._bind, self._port)
        self.url = _url(listening)
        # In a thread uvicorn leaves signals alone, and without a `log_config` logging.
        config = uvicorn.Config(
            app(self._controls, self.token, scale_by_get=self._scale_by_get),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            server_header=False,
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), name="tidegate-control", daemon=True
        )
        self._thread.start()
        try:
            self._await_start()
            self._announce()
        except BaseException:
            self._end()
            listening.close()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._withdraw()
        self._end()

    def _await_start(self) -> None:
        while not self._server.started:
            if not self._thread.is_alive():
                raise ControlError(f"the control API at {self.url} did not start")
            time.sleep(0.005)

    def _announce(self) -> None:
        contact = Contact(self.url, self.token, os.getpid(), self._controls.status().pipeline)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_name(f".{FILE}.{uuid4().hex}")
        try:
            with DISK.create(draft, private=True) as file:
                file.write(json.dumps(asdict(contact)).encode())
            draft.replace(self._file)
        except OSError as error:
            raise ControlError(f"cannot write {self._file}: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)

    def _withdraw(self) -> None:
        try:
            told = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(told, dict) and told.get("token") == self.token:
            self._file.unlink(missing_ok=True)

    def _end(self) -> None:
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(_PATIENCE / 2)


def _listen(bind: str, port: int) -> socket.socket:
    """A socket at this address, taking connections."""
    try:
        family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ControlError(
            f"the control API cannot listen at {bind}, port {port}: {error.strerror}; choose another "
            "address, or port 0 for a free one"
        ) from error


def _url(listening: socket.socket) -> str:
    """Where this machine reaches the socket."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"http://{address}:{port}" if address.version == 4 else f"http://[{address}]:{port}"
