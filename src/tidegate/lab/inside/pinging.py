"""Measures round trips from one host to others; prints address -> seconds, as JSON.

The other kernel answers, and this one says when the answer came, so neither end waits for a CPU.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from contextlib import suppress

_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_TIMESTAMP_NS = 35
_PRIORITY = 5
_PAUSE = 0.01


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _request(number: int, sequence: int, payload: bytes) -> bytes:
    body = struct.pack("!HH", number, sequence) + payload
    checksum = _checksum(struct.pack("!BBH", _ECHO_REQUEST, 0, 0) + body)
    return struct.pack("!BBH", _ECHO_REQUEST, 0, checksum) + body


class _Pinger:
    def __init__(self, targets: list[str]) -> None:
        self.trips: dict[str, list[float]] = {target: [] for target in targets}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMP_NS, 1)
        self._number = os.getpid() & 0xFFFF

    def send(self, target: str, sequence: int) -> None:
        sent = struct.pack("!Q48x", time.clock_gettime_ns(time.CLOCK_REALTIME))
        with suppress(OSError):  # As good as lost.
            self._socket.sendto(_request(self._number, sequence, sent), (target, 0))

    def receive(self, seconds: float) -> None:
        """What comes during that time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left)[0]:
                self._take(*self._socket.recvmsg(2048, 64))

    def _take(
        self, packet: bytes, notes: list[tuple[int, int, bytes]], _: int, sender: tuple[str, int]
    ) -> None:
        start = 4 * (packet[0] & 0x0F)
        kind, _code, _sum, number, _sequence, sent = struct.unpack_from("!BBHHHQ", packet, start)
        trips = self.trips.get(sender[0])
        if kind == _ECHO_REPLY and number == self._number and trips is not None:
            whole, part = struct.unpack("qq", notes[0][2])
            trips.append((whole * 10**9 + part - sent) / 1e9)


def main() -> None:
    order = json.loads(sys.argv[1])
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    pinger = _Pinger(order["targets"])
    for sequence in range(order["count"]):
        for target in order["targets"]:
            pinger.send(target, sequence)
        pinger.receive(_PAUSE)
    pinger.receive(order["wait"])
    print(json.dumps(pinger.trips))  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
