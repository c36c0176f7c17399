"""The control API of a running pipeline, served from a thread of its driver."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Self
from uuid import uuid4

from tidegate.control.contact import FILE, Contact
from tidegate.control.controls import Controls
from tidegate.disk import DISK
from tidegate.errors import ControlError
from tidegate.security.contexts import serving
from tidegate.security.security import Security

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
        security: Security | None = None,
    ) -> None:
        """`security` is the driver's; None makes one, for plain HTTP."""
        self._security = security or Security.of_run("control", tls=False)
        self.token = self._security.token
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
        tls = self._security.party("control", _names(listening)).tls
        self.url = _url(listening, "https" if tls else "http")
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
        config.load()
        config.ssl = serving(tls) if tls else None
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
        tls = self._security.tls
        contact = Contact(
            self.url,
            self.token,
            os.getpid(),
            self._controls.status().pipeline,
            tls.authority if tls else None,
            tls.name if tls else None,
        )
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


def _names(listening: socket.socket) -> list[str]:
    """How this machine and others may call the host of the socket."""
    host = listening.getsockname()[0]
    if not ipaddress.ip_address(host).is_unspecified:
        return [host]
    own = socket.gethostname()
    with suppress(OSError):
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(own, None)}
        return ["127.0.0.1", "::1", "localhost", own, *sorted(found)]
    return ["127.0.0.1", "::1", "localhost", own]


def _url(listening: socket.socket, scheme: str) -> str:
    """Where this machine reaches the socket."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"{scheme}://{address}:{port}" if address.version == 4 else f"{scheme}://[{address}]:{port}"
