"""What the processes of a run listen on, and what a stranger is told there.

Each port is asked in all the ways that are known; one that answers in none of them as it should is unknown.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import stat
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_LISTENS = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
_PATIENCE = 10.0
"""Seconds that a port has to answer; not all do."""


@dataclass(frozen=True, slots=True)
class Port:
    """Somewhere a process listens."""

    protocol: str
    host: str
    number: int
    command: str
    """Of the process."""


def processes(mark: str) -> list[int]:
    """All that have this text in their environment: a process and what it starts, however far from it."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
    return found


def command(pid: int) -> str:
    """Its command line; nothing if it has ended meanwhile."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def ports(pids: list[int]) -> set[Port]:
    """Where these processes listen."""
    return {
        Port(protocol, *_place(fields[1]), command(pid))
        for pid in pids
        for protocol, state in _LISTENS.items()
        for fields in _table(pid, protocol)
        if fields[3] == state and fields[9] in _inodes(pid)
    }


def open_sockets(pids: list[int]) -> list[str]:
    """Unix sockets that others than their user can connect to."""
    found = []
    for pid in pids:
        for fields in _table(pid, "unix"):
            if fields[6] not in _inodes(pid) or fields[5] != "01" or int(fields[3], 16) & 0x10000 == 0:
                continue
            path = fields[7] if len(fields) > 7 else ""
            if path.startswith("@") or (path and _others_reach(Path(path))):
                found.append(f"{path} of {command(pid)[:100]}")
    return found


def _others_reach(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        inside = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
        return inside and bool(path.stat().st_mode & stat.S_IWOTH)
    return False


def _table(pid: int, name: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            yield line.split()


def _inodes(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def _place(text: str) -> tuple[str, int]:
    address, number = text.split(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words)).removeprefix("::ffff:"), int(number, 16)


def said(port: Port, sent: bytes, *, tls: ssl.SSLContext | None = None) -> bytes:
    """The first that a port answers to this; nothing when it hangs up, or keeps silent."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((port.host, port.number), _PATIENCE) as plain,
        tls.wrap_socket(plain) if tls else contextlib.nullcontext(plain) as connection,
    ):
        connection.sendall(sent)
        return connection.recv(65536)
    return b""


def unverified() -> ssl.SSLContext:
    """That of somebody who believes everybody, and shows nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


GET = b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
STOP = b"POST /stop HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
RPC = struct.pack(">QBqi", 21 + 4, 3, 7, 4) + b"\xac\xed\0\5"
"""A call in Spark's own protocol whose body begins as a Java object does."""
PY4J = b"j\ni\nrj\ne\n"
PROXY = b"c\np0\ntoString\ne\n"


def refusals(asked: Iterable[Port]) -> dict[Port, str | None]:
    """How each of these turned a stranger away, asked side by side."""
    each = list(asked)
    with ThreadPoolExecutor(max(len(each), 1)) as pool:
        return dict(zip(each, pool.map(refusal, each), strict=True))


def refusal(port: Port) -> str | None:
    """How a port without TLS of our own turned a stranger away; None if it did not, or is unknown."""
    answer = said(port, GET)
    if answer.startswith(b"HTTP/1.1 "):
        status = int(answer.split()[1])
        return f"web page: {status}" if status in (401, 403) else None
    answer = said(port, RPC)
    if b"Sasl" in answer or b"challenge" in answer:
        return "Spark: no secret"
    if "pyspark-shell" in port.command and "java" in port.command and not answer:
        # Py4J's side in Java answers an error to all that comes before the token.
        return "Py4J: no token" if said(port, PY4J).startswith(b"!x") else None
    if "java" not in port.command and not said(port, PROXY):
        return "callbacks: no token"
    return None
