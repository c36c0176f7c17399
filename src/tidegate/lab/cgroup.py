"""CPU, memory and disk limits of a host, by cgroups of version 1 or 2."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from pathlib import Path

from tidegate.errors import LabError

Writes = list[tuple[Path, str]]
"""Files of a cgroup, and what to write into them."""
_PERIOD = 20_000
"""Microseconds; the kernel's usual 100 ms would stop a busy host for most of a tenth of a second."""
PREFIX = "tidegate-lab-"
"""What names of groups begin with."""
_CONTROLLERS = ("cpu", "memory", "blkio")


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where each controller is mounted. With version 2, that is one place for all."""

    version: int
    mounts: dict[str, Path]
    occupied: bool = False
    """Whether version 2 gives no controllers to groups since processes are beside them."""

    def folders(self, group: str) -> list[Path]:
        """The folders of a group."""
        return sorted({mount / group for mount in self.mounts.values()})

    def cpu(self, group: str, cpus: float | None) -> Writes:
        """At most as much time as so many CPUs have; None for no limit."""
        quota = None if cpus is None else round(cpus * _PERIOD)
        folder = self._folder("cpu", group)
        if self.version == 2:
            return [(folder / "cpu.max", f"{'max' if quota is None else quota} {_PERIOD}")]
        return [
            (folder / "cpu.cfs_period_us", str(_PERIOD)),
            (folder / "cpu.cfs_quota_us", str(-1 if quota is None else quota)),
        ]

    def memory(self, group: str, limit: int | None) -> Writes:
        """Bytes, with what is in a disk in memory; a process of a host that needs more is killed."""
        folder = self._folder("memory", group)
        if self.version == 2:
            return [(folder / "memory.max", "max" if limit is None else str(limit))]
        return [(folder / "memory.limit_in_bytes", str(-1 if limit is None else limit))]

    def disk(self, group: str, device: str, rate: int | None) -> Writes:
        """Bytes per second that a device reads and writes at most. With version 1, that is when synced."""
        folder = self._folder("blkio", group)
        if self.version == 2:
            limit = "max" if rate is None else rate
            return [(folder / "io.max", f"{device} rbps={limit} wbps={limit}")]
        return [
            (folder / f"blkio.throttle.{way}_bps_device", f"{device} {rate or 0}")
            for way in ("read", "write")
        ]

    def _folder(self, controller: str, group: str) -> Path:
        if controller not in self.mounts:
            other = "start the lab where it can be (in a container: a privileged one)"
            if self.occupied:
                other = "start the container with --cgroupns=host: its own cgroup holds processes"
            raise LabError(
                f"the cgroup controller {controller!r} cannot be used here: leave the limit out, or {other}"
            )
        return self.mounts[controller] / group


def parse(mounts: str, controllers: str) -> Cgroups:
    """From /proc/mounts; `controllers`: those that version 2 has, from its cgroup.controllers.

    >>> parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "cpu io memory").mounts["blkio"]
    PosixPath('/sys/fs/cgroup')
    """
    first, second = {}, None
    for line in mounts.splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2":
            second = Path(place)
        elif kind == "cgroup":
            first.update({name: Path(place) for name in options.split(",") if name in _CONTROLLERS})
    has = {"blkio" if name == "io" else name for name in controllers.split()}
    if second is not None and has & set(_CONTROLLERS) and not first:
        return Cgroups(2, {name: second for name in _CONTROLLERS if name in has})
    return Cgroups(1, first)


def of_machine() -> Cgroups:
    """Those that this process may make groups in, ready for use."""
    mounts = Path("/proc/mounts").read_text()
    second = next((Path(line.split()[1]) for line in mounts.splitlines() if " cgroup2 " in line), None)
    controllers = (second / "cgroup.controllers").read_text() if second else ""
    found, occupied = parse(mounts, controllers), False
    if found.version == 2 and second is not None:
        for name in found.mounts:
            try:
                (second / "cgroup.subtree_control").write_text(f"+{'io' if name == 'blkio' else name}")
            except OSError as error:  # It may be on already: the next line looks.
                occupied = occupied or error.errno == errno.EBUSY
        enabled = (second / "cgroup.subtree_control").read_text()
        found = parse(mounts, enabled)
    usable = {name: at for name, at in found.mounts.items() if os.access(at, os.W_OK)}
    return replace(found, mounts=usable, occupied=occupied)


def groups_of(pid: int) -> list[Path]:
    """The folders of the lab's cgroups that a process is in."""
    found = of_machine()
    groups = names(Path(f"/proc/{pid}/cgroup").read_text())
    return [folder for group in groups for folder in found.folders(group) if folder.exists()]


def names(groups: str) -> set[str]:
    """The lab's cgroups in a /proc/PID/cgroup; in a container, paths may begin outside of it.

    >>> names("1:cpu:/docker/4f/tidegate-lab-23c084-near")
    {'tidegate-lab-23c084-near'}
    """
    last = (line.rpartition("/")[2] for line in groups.splitlines())
    return {name for name in last if name.startswith(PREFIX)}
