"""Links by the kernel's own netem: a pair of devices between any two hosts, a queue per direction."""

from __future__ import annotations

import subprocess
import threading
from contextlib import suppress

from tidegate.errors import LabError
from tidegate.lab.link import Link

_QUEUE_PACKETS = 1_000_000


def device(address: str) -> str:
    """The device that leads to an address.

    >>> device("10.77.0.12")
    'to12'
    """
    return f"to{address.rpartition('.')[2]}"


def pair(source: str, target: str, target_pid: int) -> str:
    """Commands of `ip -batch`, on the host `source`, for a pair of devices to the host `target`."""
    made = f"link add {device(target)} type veth peer name {device(source)} netns {target_pid}\n"
    return made + end(source, target)


def end(source: str, target: str) -> str:
    """Commands of `ip -batch` for one end of a pair."""
    way = device(target)
    return f"link set {way} up\nroute add {target}/32 dev {way} src {source}\n"


def queue(target: str, link: Link) -> list[str]:
    """The command that shapes the direction to `target`.

    >>> " ".join(queue("10.77.0.2", Link(delay=0.0125, jitter=0.001, loss=0.01, rate=10_000_000)))
    'qdisc replace dev to2 root netem limit 1000000 delay 12500us 1000us loss 1% rate 10000000bit'
    >>> " ".join(queue("10.77.0.2", Link()))
    'qdisc replace dev to2 root noqueue'
    """
    way = ["qdisc", "replace", "dev", device(target), "root"]
    if link == Link():
        return [*way, "noqueue"]
    parts = [*way, "netem", "limit", str(_QUEUE_PACKETS)]
    parts += ["delay", f"{link.delay * 1e6:.0f}us"]
    parts += [f"{link.jitter * 1e6:.0f}us"] if link.jitter else []
    loss = 1.0 if link.cut else link.loss
    parts += ["loss", f"{loss * 100:g}%"] if loss else []
    return parts + (["rate", f"{link.rate}bit"] if link.rate else [])


class Netem:
    """Devices and queues are the hosts' own, and end with them."""

    tun = False
    realtime = True

    def __init__(self) -> None:
        self._pids: dict[str, int] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._turn = threading.Lock()

    def setup(self, address: str) -> str:
        return f"link set lo up\naddress add {address}/32 dev lo\n"

    def attach(self, address: str, pid: int, device: int | None) -> None:
        with self._turn:
            self._pids[address] = pid
            for other, other_pid in self._pids.items():
                if other != address:
                    _run(pid, ["ip", "-batch", "-"], pair(address, other, other_pid))
                    _run(other_pid, ["ip", "-batch", "-"], end(other, address))
                    self._queue(address, other)
                    self._queue(other, address)

    def detach(self, address: str) -> None:
        with self._turn:
            if self._pids.pop(address, None) is not None:
                # The kernel does so too, but later: the host may be back before.
                for pid in self._pids.values():
                    with suppress(LabError):  # The other one may be dead, too.
                        _run(pid, ["ip", "link", "delete", device(address)])

    def shape(self, source: str, target: str, link: Link) -> None:
        with self._turn:
            self._links[source, target] = link
            self._queue(source, target)

    def _queue(self, source: str, target: str) -> None:
        link = self._links.get((source, target))
        if link is not None and source in self._pids and target in self._pids:
            _run(self._pids[source], ["tc", *queue(target, link)])

    def close(self) -> None:
        self._pids.clear()


def _run(pid: int, command: list[str], text: str = "") -> None:
    """On the network of a host."""
    entered = ["nsenter", "--target", str(pid), "--net", *command]
    done = subprocess.run(entered, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
