"""The file system of a host: all that the machine has, each write on the host's own disk.

Every file system of the machine is the lower layer of an overlay whose upper layer is on the disk. So
programs, packages and data are at their usual places, and nothing is shared by accident. What the kernel
makes up (/dev, /sys) is shared, /proc and /dev/shm are the host's own. Folders can be shared on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

ROOT = "/dev/shm/root"
"""Where it is put together before it becomes the root."""
_STAGE = "/dev/shm"
_DISK = "/dev/shm/disk"
DISK = "DISK"
"""The source of a mount that is a block device made for the host."""

BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
_KERNEL = ("/dev", "/sys")


@dataclass(frozen=True, slots=True)
class Mount:
    """One call of mount, after these folders were made."""

    source: str
    target: str
    kind: str = ""
    options: str = ""
    flags: int = 0
    folders: tuple[str, ...] = ()
    optional: bool = False
    """A file system of the machine that cannot be a lower layer is left out."""


def folders(mountinfo: str) -> list[str]:
    """Where the machine has file systems, parents first, from /proc/self/mountinfo."""
    found = {line.split()[4].encode().decode("unicode_escape") for line in mountinfo.splitlines()}
    return sorted(found)


def within(place: str, folders: Iterable[str]) -> bool:
    return any(place == folder or place.startswith(f"{folder}/") for folder in folders)


def mounts(
    machine: Sequence[str], *, disk_bytes: int, in_memory: bool, shared: Sequence[str] = ()
) -> list[Mount]:
    """All mounts of a host, in order. `machine`: the folders where the machine has file systems."""
    disk = f"size={disk_bytes}"
    return [
        Mount("none", _STAGE, "tmpfs", "mode=755"),
        Mount("none", _DISK, "tmpfs", disk, folders=(_DISK, ROOT))
        if in_memory
        else Mount(DISK, _DISK, "ext4", folders=(_DISK, ROOT)),
        *_layers(machine),
        *(
            Mount(place, ROOT + place, flags=BIND)
            for place in machine
            if within(place, _KERNEL) and not within(place, [_STAGE])
        ),
        Mount("proc", f"{ROOT}/proc", "proc"),
        Mount("none", f"{ROOT}{_STAGE}", "tmpfs", "mode=1777"),
        *(
            Mount(folder, ROOT + folder, flags=BIND | RECURSIVE, folders=(ROOT + folder,))
            for folder in shared
        ),
    ]


def _layers(machine: Sequence[str]) -> Iterator[Mount]:
    apart = [place for place in machine if not within(place, (*_KERNEL, "/proc"))]
    for number, place in enumerate(apart):
        upper, work = f"{_DISK}/{number}/upper", f"{_DISK}/{number}/work"
        # What means something in the options of a mount cannot be in a name.
        if not set(place) & set(",:\\"):
            yield Mount(
                "overlay",
                ROOT + place.rstrip("/"),
                "overlay",
                f"lowerdir={place},upperdir={upper},workdir={work},index=off,xino=off",
                folders=(upper, work),
                optional=place != "/",
            )
