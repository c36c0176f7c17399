"""Which machines are out of reach: by what their kernels say, whatever the processes there have to do."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

_EVERY = 0.5
_ANSWER = 1.5
"""Seconds. A kernel says again after one what got no answer: a knock is lost only if both are."""
_AT_ONCE = 64
"""Knocks: three are under way at each machine that does not answer."""
_MISSED = 4
"""So many knocks in a row without an answer, about three seconds, and a machine is out of reach. Where a
tenth of all packets is lost in either direction, that happens by chance once in days."""


class Reach:
    """Knocks at machines again and again, until `close`. A kernel answers for a process that is busy or
    frozen, and refuses for one that is gone: only a machine that is dead, or cut off, says nothing."""

    def __init__(self, addresses: Callable[[], Iterable[str]], lost: Callable[[str], object]) -> None:
        """One of its addresses, as host:port, stands for each machine. `lost` is called with a host that has
        just got out of reach; who asks about it meanwhile waits for that."""
        self._addresses = addresses
        self._lost = lost
        self._missed = Counter[str]()
        self._change = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reach", daemon=True)
        self._thread.start()

    def out_of(self, address: str) -> bool:
        with self._change:
            return self._missed[host_of(address)] >= _MISSED

    def close(self) -> None:
        """May be called again."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="knock") as pool:
            while not self._closing.wait(_EVERY):
                for address in {host_of(address): address for address in self._addresses()}.values():
                    pool.submit(self._knock, address)

    def _knock(self, address: str) -> None:
        answered, host = answers(address), host_of(address)
        with self._change:
            self._missed[host] = 0 if answered else self._missed[host] + 1
            if self._missed[host] == _MISSED:
                self._lost(host)


def host_of(address: str) -> str:
    """
    >>> host_of("[::1]:80"), host_of("10.0.0.5:7400")
    ('::1', '10.0.0.5')
    """
    return address.rpartition(":")[0].strip("[]")


def answers(address: str) -> bool:
    """Whether there is a machine at host:port."""
    try:
        socket.create_connection((host_of(address), int(address.rpartition(":")[2])), _ANSWER).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
