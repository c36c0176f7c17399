"""The process that carries packets between hosts: one TUN device per host, links as `exchange` has them.

It is asked through a socket, a JSON object per request, and answers each; it ends with the lab.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import gc
import json
import os
import select
import socket
import struct
import sys
import time
from contextlib import suppress

from tidegate.lab.exchange import Exchange
from tidegate.lab.link import Link

_TUNSETOFFLOAD = 0x400454D0
_CHECKSUMS, _SEGMENTS = 0x01, 0x02 | 0x04
_HEADER = 10
"""Bytes that the kernel puts before a packet, to say what is still to be done with it."""
_TARGET = slice(_HEADER + 16, _HEADER + 20)
"""Where an IPv4 packet says where it goes."""
_LARGEST = _HEADER + 65_535
_AT_ONCE = 32
"""Packets of one host that are read before others have their turn."""
_PRIORITY = 10
_MONOTONIC, _NONBLOCK, _ABSOLUTE = 1, 0o4000, 1


class _Alarm:
    """A timer of the kernel; the time-out of epoll counts in milliseconds, which is too coarse."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = int(self._libc.timerfd_create(_MONOTONIC, _NONBLOCK))
        self._set: float | None = None

    def set(self, at: float | None) -> None:
        """Ring then; None for never."""
        if at == self._set:
            return
        self._set = at
        whole, part = divmod(round((at or 0.0) * 1e9), 10**9)
        self._libc.timerfd_settime(self.fd, _ABSOLUTE, struct.pack("qqqq", 0, 0, whole, part), None)

    def rang(self) -> None:
        self._set = None
        with suppress(BlockingIOError):  # It was set anew meanwhile.
            os.read(self.fd, 8)


class _Switch:
    def __init__(self, control: socket.socket, lab: int, seed: int) -> None:
        self._control = control
        self._lab = lab
        self._exchange = Exchange(seed)
        self._alarm = _Alarm()
        self._ports: dict[int, bytes] = {}
        self._devices: dict[bytes, int] = {}
        self._poll = select.epoll()
        for fd in (control.fileno(), lab, self._alarm.fd):
            self._poll.register(fd, select.EPOLLIN)

    def run(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._ports:
                    self._receive(fd)
                elif fd == self._alarm.fd:
                    self._alarm.rang()
                elif fd == self._lab or (fd == self._control.fileno() and not self._serve()):
                    return
            self._send()

    def _receive(self, fd: int) -> None:
        source = self._ports[fd]
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(fd, _LARGEST)
            except BlockingIOError:
                return
            except OSError:
                self._detach(source)  # Its host has died.
                return
            self._exchange.take(time.monotonic(), source, packet[_TARGET], packet)

    def _send(self) -> None:
        """All that is due, and have the alarm ring for the next."""
        for target, packet in self._exchange.release(time.monotonic()):
            device = self._devices.get(target)
            if device is not None:
                with suppress(OSError):  # Its host dies, or takes no more: on a wire it would be lost too.
                    os.write(device, packet)
        self._alarm.set(self._exchange.next)

    def _serve(self) -> bool:
        """One request; false if the lab has closed the socket."""
        room = socket.CMSG_SPACE(array.array("i").itemsize)
        text, ancillary, _, _ = self._control.recvmsg(65_536, room)
        if not text:
            return False
        asked = json.loads(text)
        match asked["do"]:
            case "attach":
                (fd,) = array.array("i", ancillary[0][2])
                self._attach(socket.inet_aton(asked["address"]), fd)
            case "detach":
                self._detach(socket.inet_aton(asked["address"]))
            case "shape":
                source, target = (socket.inet_aton(asked[end]) for end in ("source", "target"))
                self._exchange.shape(source, target, Link(**asked["link"]))
                self._offload(source)
        self._control.send(b"{}")
        return True

    def _attach(self, address: bytes, fd: int) -> None:
        os.set_blocking(fd, False)
        self._ports[fd], self._devices[address] = address, fd
        self._poll.register(fd, select.EPOLLIN)
        self._offload(address)

    def _offload(self, address: bytes) -> None:
        """Let the host's kernel hand over large segments where no link needs to see the packets."""
        if address in self._devices:
            flags = _CHECKSUMS if self._exchange.whole(address) else _CHECKSUMS | _SEGMENTS
            fcntl.ioctl(self._devices[address], _TUNSETOFFLOAD, flags)

    def _detach(self, address: bytes) -> None:
        fd = self._devices.pop(address, None)
        if fd is not None:
            del self._ports[fd]
            self._poll.unregister(fd)
            os.close(fd)


def _realtime() -> bool:
    """Ahead of everything else: without it, packets wait for whoever has the CPU. False if not allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except PermissionError:
        return False
    return True


def main() -> None:
    control, lab, seed = map(int, sys.argv[1:])
    with socket.socket(fileno=control) as channel:
        switch = _Switch(channel, lab, seed)
        gc.collect()
        gc.freeze()
        gc.disable()
        channel.send(json.dumps({"realtime": _realtime()}).encode())
        switch.run()


if __name__ == "__main__":
    main()
