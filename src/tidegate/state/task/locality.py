"""Whether what a task sends to a node crosses hosts."""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import ip_address

from tidegate.state.wire.access import SOCKET


@lru_cache(maxsize=1024)
def is_here(address: str) -> bool:
    """Whether the node at an address, unix:PATH or host:port, is on the host of this process.

    What Spark, a container or the user calls the host may differ from process to process. The kernel does
    not guess: what it sends to an address of its own comes from that address.

    >>> is_here("unix:/run/a.sock"), is_here("127.0.0.1:7000")
    (True, True)
    """
    if address.startswith(SOCKET):
        return True
    host, _, port = address.rpartition(":")
    try:
        places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_is_own(family, place) for family, _, _, _, place in places)


def _is_own(family: int, place: tuple[object, ...]) -> bool:
    target = ip_address(str(place[0]).partition("%")[0])
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(place)  # It only finds the way: nothing is sent.
        except OSError:
            return False
        return target.is_loopback or ip_address(probe.getsockname()[0].partition("%")[0]) == target
