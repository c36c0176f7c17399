"""An object store that is slow, busy, forgetful or away: a proxy before a server that speaks S3."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from urllib.parse import parse_qs, urlsplit

_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})
"""Headers that belong to one connection, or that the proxy says itself."""
_BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class FaultyStore:
    """Passes requests on to `endpoint`. Its faults may be set at any moment, from any thread."""

    def __init__(self, endpoint: str, *, bind: str = "127.0.0.1", port: int = 0, seed: int = 0) -> None:
        self.delay = 0.0
        """Seconds that each request waits before it is passed on."""
        self.busy = 0.0
        """The share of requests that is answered 503, and not passed on."""
        self.forgetful = 0.0
        """The share of requests that is carried out, and whose answer is lost."""
        self.away = False
        """Whether connections are closed without an answer, those that are open, too."""
        self.requests: list[tuple[str, str]] = []
        """What was asked for: "GET", "PUT", "HEAD", "DELETE" or "LIST", and the path or the prefix."""
        self._target = urlsplit(endpoint)
        self._rng = Random(seed)
        self._server = _Server((bind, port), self)
        self.endpoint = f"http://{bind}:{self._server.server_address[1]}"

    def asked(self, action: str, within: str = "") -> int:
        """How many requests of this kind there were whose path has this in it."""
        return sum(1 for done, path in list(self.requests) if done == action and within in path)

    def _strikes(self, share: float) -> bool:
        return self._rng.random() < share


@contextmanager
def faulty_store(
    endpoint: str, *, bind: str = "127.0.0.1", port: int = 0, seed: int = 0
) -> Iterator[FaultyStore]:
    """A proxy for the length of the block, without faults until some are set."""
    store = FaultyStore(endpoint, bind=bind, port=port, seed=seed)
    thread = threading.Thread(target=store._server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.away = True  # Whoever waits in a request gives up.
        store._server.shutdown()
        store._server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], store: FaultyStore) -> None:
        self.store = store
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        target = self.server.store._target
        self._upstream = HTTPConnection(target.hostname or "", target.port)

    def finish(self) -> None:
        self._upstream.close()
        super().finish()

    def _pass_on(self) -> None:
        store = self.server.store
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        store.requests.append(_kind(self.command, self.path))
        if store.away:
            self.close_connection = True
            return
        if store.delay:
            time.sleep(store.delay)
        if store._strikes(store.busy):
            self._answer(503, [("Content-Type", "application/xml")], _BUSY)
            return
        try:
            self._upstream.request(self.command, self.path, body=content, headers=dict(self.headers))
            answer = self._upstream.getresponse()
            told = answer.read()
        except (OSError, HTTPException):
            self.close_connection = True
            return
        if store.away or store._strikes(store.forgetful):
            self.close_connection = True
            return
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(answer.status, headers, told, length=length)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on  # noqa: N815

    def _answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, length: str | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Tests have no use for a line per request."""


def _kind(method: str, path: str) -> tuple[str, str]:
    parts = urlsplit(path)
    asked = parse_qs(parts.query, keep_blank_values=True)
    if method == "GET" and "list-type" in asked:
        return "LIST", f"{parts.path}/{asked.get('prefix', [''])[0]}"
    return method, parts.path
