"""Links by a switch in userspace, for any kernel with TUN devices."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import Any

from tidegate.errors import LabError
from tidegate.lab.addresses import NETWORK
from tidegate.lab.link import Link


class Switched:
    """Starts the switch, and asks it."""

    tun = True

    def __init__(self, seed: int) -> None:
        self._turn = threading.Lock()
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lab = os.pidfd_open(os.getpid())
        with other:
            command = [sys.executable, "-m", "tidegate.lab.switch", *map(str, (other.fileno(), lab, seed))]
            self._process = subprocess.Popen(
                command, pass_fds=[other.fileno(), lab], stdin=subprocess.DEVNULL, start_new_session=True
            )
        os.close(lab)
        self.realtime = bool(self._answer()["realtime"])

    def setup(self, address: str) -> str:
        return f"link set lo up\naddress add {address}/{NETWORK} dev eth0\nlink set eth0 up\n"

    def attach(self, address: str, pid: int, device: int | None) -> None:
        assert device is not None, "a host of the switch has a device"
        self._ask({"do": "attach", "address": address}, [device])

    def detach(self, address: str) -> None:
        self._ask({"do": "detach", "address": address})

    def shape(self, source: str, target: str, link: Link) -> None:
        self._ask({"do": "shape", "source": source, "target": target, "link": asdict(link)})

    def close(self) -> None:
        self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._process.wait()

    def _ask(self, request: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
        with self._turn:
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], fds or [])
            except OSError as error:
                raise LabError("the switch has ended: all links are down; start the lab again") from error
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        text = self._channel.recv(65_536)
        if not text:
            raise LabError("the switch has ended: all links are down; start the lab again")
        answer: dict[str, Any] = json.loads(text)
        return answer
