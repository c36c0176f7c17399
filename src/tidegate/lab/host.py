"""A host: network, processes, mounts and name of its own, a disk of its own, limits of its own."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidegate.errors import LabError
from tidegate.lab import filesystem
from tidegate.lab.cgroup import PREFIX, Cgroups, Writes
from tidegate.lab.inside import entering, holder
from tidegate.lab.network import Network
from tidegate.lab.spec import HostSpec, changed
from tidegate.units import size

_FILLER = "/.full"
"""The file that fills a disk."""
_CHUNKS = tuple(4096 << power for power in range(20, -1, -4))
PYTHON = (sys.executable, "-I", "-S")
"""How programs start that need nothing but Python's own modules."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the hosts of a lab share."""

    lab: str
    network: Network
    cgroups: Cgroups
    hosts_file: str
    shared: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Running:
    keeper: subprocess.Popen[bytes]
    channel: socket.socket
    pid: int
    disk: str | None


class Host:
    """One host of a lab. It sees the files of the machine, and what it writes is its own, until it is killed.

    Its methods may be called by several threads."""

    def __init__(self, name: str, address: str, spec: HostSpec, around: Surroundings) -> None:
        self.name = name
        self.address = address
        self._spec = spec
        self._around = around
        self._running: _Running | None = None
        self._change = threading.RLock()
        self._group = f"{PREFIX}{around.lab}-{name}"

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"

    # Life and death

    @property
    def alive(self) -> bool:
        return self._running is not None and self._running.keeper.poll() is None

    @property
    def pid(self) -> int:
        """Of its first process, as the machine sees it."""
        return self._now().pid

    @property
    def disk(self) -> str | None:
        """The block device of a disk in a file, as major:minor."""
        return self._now().disk

    def boot(self) -> None:
        """Start it, with an empty disk; nothing if it is up."""
        with self._change:
            if self.alive:
                return
            self.kill()
            self._running, device = self._start()
            try:
                self._around.network.attach(self.address, self.pid, device)
            finally:
                if device is not None:
                    os.close(device)

    def kill(self) -> None:
        """End it as a power cut would: processes, network and disk are gone. Nothing if it is down."""
        with self._change:
            running, self._running = self._running, None
            if running is None:
                return
            try:
                self._around.network.detach(self.address)
            finally:
                # Nothing on the host can see it coming; the keeper clears up behind it.
                # Not just closed, since a fork of this process may have it open, too.
                running.channel.shutdown(socket.SHUT_RDWR)
                running.channel.close()
                running.keeper.wait()

    def _start(self) -> tuple[_Running, int | None]:
        channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lab = os.pidfd_open(os.getpid())
        with other:
            keeper = subprocess.Popen(
                [*PYTHON, str(holder.__file__), str(lab), self._around.lab, self.name],
                stdin=other.fileno(),
                pass_fds=[lab],
                start_new_session=True,
            )
        os.close(lab)
        channel.send(json.dumps(self._order()).encode())
        told: dict[str, Any] = {}
        device: int | None = None
        while not {"pid", "disk"} <= told.keys():
            text, fds, _, _ = socket.recv_fds(channel, 65_536, 1)
            device = fds[0] if fds else device
            said = json.loads(text) if text else {"error": "its first process ended"}
            if "error" in said:
                channel.close()
                keeper.wait()
                raise LabError(f"host {self.name} does not start: {said['error']}")
            told |= said
        return _Running(keeper, channel, told["pid"], told["disk"]), device

    def _order(self) -> dict[str, Any]:
        around = self._around
        mounts = filesystem.mounts(
            filesystem.folders(Path("/proc/self/mountinfo").read_text()),
            disk_bytes=size(self._spec.disk),
            in_memory=self._spec.disk_in == "memory",
            shared=around.shared,
        )
        return {
            "name": self.name,
            "cgroups": [str(folder) for folder in around.cgroups.folders(self._group)],
            "limits": [(str(file), text) for file, text in self._limits()],
            "private": filesystem.RECURSIVE | filesystem.PRIVATE,
            "mounts": [asdict(mount) for mount in mounts],
            "root": filesystem.ROOT,
            "disk_folder": "/var/tmp",
            "disk_bytes": size(self._spec.disk),
            "tun": around.network.tun,
            "ip": around.network.setup(self.address),
            "hosts": around.hosts_file,
        }

    def _now(self) -> _Running:
        running = self._running
        if running is None or running.keeper.poll() is not None:
            raise LabError(f"host {self.name} is down; boot() starts it")
        return running

    # Programs

    def start(
        self, command: Sequence[str | Path], *, cwd: str | Path | None = None, **popen: Any
    ) -> subprocess.Popen[Any]:
        """Start a program on the host, as `subprocess.Popen` does; with other arguments of that.

        A signal that is sent to it reaches the program; if it is killed, so is the program."""
        return subprocess.Popen(self.command_line(command, cwd=cwd), **popen)

    def run(
        self, command: Sequence[str | Path], *, cwd: str | Path | None = None, **run: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program on the host to its end, as `subprocess.run` does; with other arguments of that."""
        return subprocess.run(self.command_line(command, cwd=cwd), **run)

    def command_line(self, command: Sequence[str | Path], *, cwd: str | Path | None = None) -> list[str]:
        """What, started on the machine, runs a command on the host, as long as the host is up."""
        return entered(self.pid, self._groups(), command, cwd)

    def path(self, inside: str | Path) -> Path:
        """Where the machine finds a file of the host, as long as the host is up."""
        return Path(f"/proc/{self.pid}/root") / str(inside).lstrip("/")

    def processes(self, matching: str = "") -> list[int]:
        """Programs on the host whose command line contains the text, by their pids on the machine."""
        namespace, first = _namespace(self.pid), self.pid
        numbers = (int(place.name) for place in Path("/proc").glob("[0-9]*"))
        return [
            number
            for number in numbers
            if number != first and _namespace(number) == namespace and matching in _command(number)
        ]

    def signal(self, number: signal.Signals, matching: str = "") -> int:
        """Send a signal to such programs; how many there were."""
        found = self.processes(matching)
        for process in found:
            _signal(process, number)
        return len(found)

    def freeze(self, matching: str = "") -> int:
        """Stop all such programs, until `thaw`; how many there were.

        Its kernel goes on: connections stay open, nobody answers."""
        before: set[int] = set()
        while (found := set(self.processes(matching))) - before:
            # One that was just about to start another may have done so.
            self.signal(signal.SIGSTOP, matching)
            before = found
        return len(found)

    def thaw(self, matching: str = "", but: Iterable[str] = ()) -> None:
        """Let such programs go on; but not those with one of these texts in their command line."""
        for process in set(self.processes(matching)).difference(*map(self.processes, but)):
            _signal(process, signal.SIGCONT)

    def _groups(self) -> list[Path]:
        return self._around.cgroups.folders(self._group)

    # Limits

    def limit(
        self, *, cpus: float | None = None, speed: float | None = None, memory: str | None = None
    ) -> None:
        """Change what is given, from now on and for every later start."""
        self._spec = changed(self._spec, cpus=cpus, speed=speed, memory=memory)
        if self.alive:
            _write(self._limits())

    def _limits(self) -> Writes:
        """Of what has a limit, or had one."""
        cgroups, spec, writes = self._around.cgroups, self._spec, []
        if {"cpus", "speed"} & spec.model_fields_set:
            limited = spec.cpus is not None or spec.speed < 1
            cpus = (spec.cpus or float(os.cpu_count() or 1)) * spec.speed
            writes += cgroups.cpu(self._group, cpus if limited else None)
        if spec.memory is not None:
            writes += cgroups.memory(self._group, size(spec.memory))
        return writes

    # The disk

    def fill_disk(self) -> None:
        """Leave no room, until `empty_disk`."""
        with self.path(_FILLER).open("ab", buffering=0) as filler:
            for chunk in _CHUNKS:
                _fill(filler.fileno(), chunk)

    def empty_disk(self) -> None:
        """Give back the room that `fill_disk` took."""
        self.path(_FILLER).unlink(missing_ok=True)

    def slow_disk(self, rate: str | None) -> None:
        """Let the disk read and write so many bytes per second at most; None for as fast as it can."""
        disk = self.disk
        if disk is None:
            raise LabError(f'the disk of host {self.name} is memory: set disk_in = "file" to slow it down')
        limit = None if rate is None else size(rate)
        _write(self._around.cgroups.disk(self._group, disk, limit))


def entered(
    pid: int, groups: Iterable[Path], command: Sequence[str | Path], cwd: str | Path | None
) -> list[str]:
    """The command line that runs a command on the host with that first process."""
    order = {"pid": pid, "cgroups": [str(group) for group in groups], "folder": str(cwd or Path.cwd())}
    return [*PYTHON, str(entering.__file__), json.dumps(order), *map(str, command)]


def _fill(file: int, chunk: int) -> None:
    end = os.fstat(file).st_size
    while True:
        try:
            os.posix_fallocate(file, end, chunk)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return
        end += chunk


def _write(writes: Writes) -> None:
    for file, text in writes:
        file.write_text(text)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
