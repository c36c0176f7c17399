"""A server that speaks S3, moto's, in a process of its own."""

from __future__ import annotations

import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from tidegate.testing.servers.daemon import ServerError, free_port, home, running

_BUCKET = "tidegate"
_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3:
    """Where a server is, with one bucket in it."""

    endpoint: str
    bucket: str

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a client."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "tidegate",
            "AWS_SECRET_ACCESS_KEY": "tidegate",
            "AWS_REGION": _REGION,
        }


@contextmanager
def s3() -> Iterator[S3]:
    """Run a server for the length of the block. Its data is gone with it."""
    if find_spec("moto") is None:
        raise ServerError("the S3 test server needs moto: pip install 'moto[server]'")
    with home("s3") as folder:
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}"
        with running(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            name="moto's S3 server",
            log=folder / "server.log",
            answers=lambda: _answers(endpoint),
            stop_signal=signal.SIGKILL,  # it has nothing to save
        ):
            _ask(endpoint, f"/{_BUCKET}", "PUT")
            yield S3(endpoint, _BUCKET)


def _answers(endpoint: str) -> bool:
    try:
        _ask(endpoint, "/moto-api/data.json", "GET")
    except OSError:
        return False
    return True


def _ask(endpoint: str, path: str, method: str) -> None:
    # Straight to loopback, whatever proxy the environment names.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{endpoint}{path}", method=method)
    # moto tells services apart by who signed the request.
    credential = f"tidegate/20260101/{_REGION}/s3/aws4_request"
    request.add_header("Authorization", f"AWS4-HMAC-SHA256 Credential={credential}")
    opener.open(request, timeout=5).close()
