"""What connects hosts: one interface, two ways."""

from __future__ import annotations

import subprocess
from typing import Literal, Protocol

from tidegate.errors import LabError
from tidegate.lab.link import Link

Kind = Literal["auto", "switch", "netem"]


class Network(Protocol):
    """Carries packets between hosts as each link says. May be used by several threads."""

    tun: bool
    """Whether a host comes with a TUN device, whose other end is given to `attach`."""
    realtime: bool
    """Whether packets go before all programs of this machine."""

    def setup(self, address: str) -> str:
        """What a host does at its start with its devices, as commands of `ip -batch`."""

    def attach(self, address: str, pid: int, device: int | None) -> None:
        """Connect a host that has started, by its links as they were last shaped."""

    def detach(self, address: str) -> None:
        """Disconnect a host, before it ends or when it has."""

    def shape(self, source: str, target: str, link: Link) -> None:
        """One direction between two hosts, in force on return; for hosts to come, too."""

    def close(self) -> None: ...


def network(kind: Kind, seed: int) -> Network:
    """`auto` takes netem where the kernel has it."""
    from tidegate.lab.netem import Netem
    from tidegate.lab.switched import Switched

    if kind == "switch":
        return Switched(seed)
    if has_netem():
        return Netem()
    if kind == "netem":
        raise LabError('this kernel has no netem (module sch_netem): set links = "switch", or leave it out')
    return Switched(seed)


def has_netem() -> bool:
    """Tried out in a network of its own."""
    command = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
