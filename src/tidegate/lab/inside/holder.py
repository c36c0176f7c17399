"""What a host is: a keeper outside, which owns its cgroups, and its first process, which owns the rest.

Both end with the lab, however that ends: the keeper watches it, and the first process dies with the keeper.
With the first process the kernel ends all others of the host, its network and its mounts. The keeper then
removes the cgroups. Nothing else outlives a process: the file of a disk has no name.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _NEW_NAME, _NEW_IPC, _NEW_PIDS, _NEW_NETWORK = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x20000000,
    0x40000000,
)
_DIE_WITH_PARENT = 1
_DETACH = 2
_TUNSETIFF = 0x400454CA
_TUN, _NO_INFO, _HEADER = 0x0001, 0x1000, 0x4000
_LOOP_GET_FREE, _LOOP_CONFIGURE, _LOOP_AUTOCLEAR = 0x4C82, 0x4C0A, 4
_REMOVAL_SECONDS = 10.0


def _call(what: str, result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _tool(*command: str, text: str = "", fds: Sequence[int] = ()) -> None:
    done = subprocess.run(command, input=text, pass_fds=fds, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()}")


def _watch(*fds: int) -> None:
    """Until one of them says something, or is closed at the other end."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    poll.poll()


def keep(channel: socket.socket, order: dict[str, Any], lab: int) -> None:
    """Have the host as long as the lab lives and wants it."""
    folders = [Path(folder) for folder in order["cgroups"]]
    try:
        for folder in folders:
            folder.mkdir(exist_ok=True)
        for file, text in order["limits"]:
            Path(file).write_text(text)
        keeper = os.pidfd_open(os.getpid())
        _call("unshare", _LIBC.unshare(_NEW_PIDS))
        first = os.fork()
        if first == 0:
            _begin(channel, order, keeper)
        try:
            channel.send(json.dumps({"pid": first}).encode())
            _watch(lab, channel.fileno(), os.pidfd_open(first))
        finally:
            os.kill(first, signal.SIGKILL)
            os.waitpid(first, 0)
    finally:
        for folder in folders:
            _remove(folder)


def _remove(folder: Path) -> None:
    """A cgroup, as soon as those who entered the host have ended with it."""
    until = time.monotonic() + _REMOVAL_SECONDS
    while time.monotonic() < until:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def _begin(channel: socket.socket, order: dict[str, Any], keeper: int) -> NoReturn:
    """The first process of the host, to its end."""
    try:
        _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if select.select([keeper], [], [], 0)[0]:
            os._exit(1)
        for folder in order["cgroups"]:
            (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
        _call("unshare", _LIBC.unshare(_NEW_MOUNTS | _NEW_NAME | _NEW_IPC | _NEW_NETWORK))
        socket.sethostname(order["name"])
        fds = [_device()] if order["tun"] else []
        disk = _mount_all(order)
        with contextlib.suppress(OSError):  # A kernel without IPv6.
            Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
        _tool("ip", "-batch", "-", text=order["ip"])
        Path("/etc/hosts").write_text(order["hosts"])
        Path("/etc/hostname").write_text(f"{order['name']}\n")
        socket.send_fds(channel, [json.dumps({"disk": disk}).encode()], fds)
    except Exception as error:
        channel.send(json.dumps({"error": str(error)}).encode())
        os._exit(1)
    channel.close()
    for fd in fds:
        os.close(fd)
    # Whose parent has ended belongs to the first process; what ends is not kept as a zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        signal.pause()


def _device() -> int:
    """The network device of the host, whose other end is whoever holds the descriptor."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TUN | _NO_INFO | _HEADER))
    return fd


def _mount_all(order: dict[str, Any]) -> str | None:
    """Make the file system of the host as ordered; the device of its disk, if it has one of its own."""
    _mount({"source": "none", "target": "/", "flags": order["private"]})
    device = None
    for mount in order["mounts"]:
        if mount["source"] == "DISK":
            with _disk(order["disk_folder"], order["disk_bytes"]) as path:
                device = Path(path).stat().st_rdev
                _mount({**mount, "source": path})
        else:
            try:
                _mount(mount)
            except OSError:
                if not mount["optional"]:
                    raise
    os.chdir(order["root"])
    _call("pivot_root", _LIBC.pivot_root(b".", b"."))
    _call("umount", _LIBC.umount2(b".", _DETACH))
    os.chdir("/")
    return None if device is None else f"{os.major(device)}:{os.minor(device)}"


def _mount(mount: dict[str, Any]) -> None:
    for folder in mount.get("folders", ()):
        Path(folder).mkdir(parents=True, exist_ok=True)
    source, target, kind, options = (
        os.fsencode(mount.get(part, "")) for part in ("source", "target", "kind", "options")
    )
    _call(
        f"mount {mount['target']}",
        _LIBC.mount(source, target, kind, ctypes.c_ulong(mount["flags"]), options),
    )


@contextlib.contextmanager
def _disk(folder: str, size: int) -> Iterator[str]:
    """A block device over a file without a name, both of which are gone once nothing is mounted from it."""
    file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.truncate(file, size)
    _tool("mkfs.ext4", "-q", "-F", "-m", "0", f"/proc/self/fd/{file}", fds=[file])
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    while True:
        path = f"/dev/loop{fcntl.ioctl(control, _LOOP_GET_FREE)}"
        loop = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(loop, _LOOP_CONFIGURE, struct.pack("II52xI176x64x", file, 0, _LOOP_AUTOCLEAR))
        except BlockingIOError:
            os.close(loop)
        except OSError as error:
            os.close(loop)
            if error.errno != 16:  # Another lab was quicker.
                raise
        else:
            break
    yield path
    for fd in (loop, file, control):
        os.close(fd)


def main() -> None:
    lab = int(sys.argv[1])
    with socket.socket(fileno=0) as channel:
        order = json.loads(channel.recv(1 << 20))
        try:
            keep(channel, order, lab)
        except OSError as error:
            with contextlib.suppress(OSError):
                channel.send(json.dumps({"error": str(error)}).encode())


if __name__ == "__main__":
    main()
