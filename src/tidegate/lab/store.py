"""An object store on a host of a lab."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from tidegate.errors import LabError, MissingExtraError
from tidegate.lab.disruption import Disruption
from tidegate.lab.host import Host
from tidegate.units import seconds

_PORT = 9000
_REGION = "us-east-1"
_PROGRAM = "tidegate.lab.serving"
_WRONG = "/dev/shm/wrong"
"""The file on the host that says what is wrong. In memory: a full disk must not keep it from changing."""
_MAKE_BUCKET = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], method="PUT")
request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=tidegate/20260101/" + sys.argv[2])
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).close()
"""
"""The server tells services apart by who signed a request."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with a store."""

    delay: float = 0.0
    """Seconds until it begins with a request."""
    errors: float = 0.0
    """The share of requests that it answers by 503."""
    away: bool = False
    """Whether it breaks off every connection."""

    def write(self, file: Path) -> None:
        """Whoever reads the file sees this or what was there before."""
        new = file.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(file)

    @classmethod
    def read(cls, file: Path) -> Wrong:
        return cls(**json.loads(file.read_text()))


class Store:
    """A server that speaks S3, from `with` to its end, with one bucket in it. What it holds is gone with it,
    and with its host.

        with Lab({"hosts": {"near": {}, "depot": {}}, "store": {"host": "depot"}}) as lab:
            command = ["tidegate", "run", "job.py", "--checkpoint", f"{lab.store.url}/job"]
            lab["near"].start(command, env={**os.environ, **lab.store.environment})
            with lab.store.errors(0.5):
                ...

    What goes wrong may overlap: then the longest delay holds, and the largest share of errors.
    """

    def __init__(self, host: Host) -> None:
        if find_spec("moto") is None:
            raise MissingExtraError("lab", "the store of a lab")
        self.url = "s3://tidegate"
        """The bucket."""
        self._host = host
        self._server: subprocess.Popen[str] | None = None
        self._wrong: dict[object, Wrong] = {}
        self._change = threading.Lock()

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables with which programs on the hosts find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self._host.name}:{_PORT}",
            "AWS_ACCESS_KEY_ID": "tidegate",
            "AWS_SECRET_ACCESS_KEY": "tidegate",
            "AWS_REGION": _REGION,
        }

    def __enter__(self) -> Self:
        Wrong().write(self._host.path(_WRONG))
        self._server = self._host.start(
            [sys.executable, "-m", _PROGRAM, self._host.address, str(_PORT), _WRONG],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the lab's to handle.
        )
        try:
            assert self._server.stdout is not None
            if not self._server.stdout.readline():
                raise LabError(f"the store on host {self._host.name} has ended; what it said is above")
            bucket = f"http://{self._host.address}:{_PORT}/{self.url.removeprefix('s3://')}"
            service = f"{_REGION}/s3/aws4_request"
            self._host.run([sys.executable, "-I", "-S", "-c", _MAKE_BUCKET, bucket, service], check=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        if self._server is not None:
            with self._server as server:
                server.kill()
            self._server = None

    def slow(self, delay: str) -> Disruption:
        """Let it take so long until it begins with a request."""
        return self._go_wrong(Wrong(delay=seconds(delay)))

    def errors(self, share: float = 1.0) -> Disruption:
        """Let it answer that share of requests by 503, without carrying them out."""
        return self._go_wrong(Wrong(errors=share))

    def away(self) -> Disruption:
        """Let it break off every connection, new ones and old ones, without an answer."""
        return self._go_wrong(Wrong(away=True))

    def _go_wrong(self, wrong: Wrong) -> Disruption:
        key = object()
        with self._change:
            self._wrong[key] = wrong
            self._tell()

        def heal() -> None:
            with self._change:
                del self._wrong[key]
                self._tell()

        return Disruption(heal)

    def _tell(self) -> None:
        now = self._wrong.values()
        wrong = Wrong(
            delay=max((each.delay for each in now), default=0.0),
            errors=max((each.errors for each in now), default=0.0),
            away=any(each.away for each in now),
        )
        if self._server is None or self._server.poll() is not None or not self._host.alive:
            raise LabError(f"the store on host {self._host.name} has ended, and what it held is gone")
        wrong.write(self._host.path(_WRONG))
