"""Hosts of labs that other processes have up, and how to run a command on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import LabError
from tidegate.lab import cgroup
from tidegate.lab.host import entered
from tidegate.lab.inside import holder


@dataclass(frozen=True, slots=True)
class Entry:
    """A host that is up."""

    lab: str
    host: str
    pid: int
    """Of its first process."""

    def command_line(self, command: Sequence[str]) -> list[str]:
        """What runs a command there, in the current folder and within the host's limits."""
        return entered(self.pid, cgroup.groups_of(self.pid), command, None)


def entries() -> Iterator[Entry]:
    """All hosts on this machine."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_text(errors="replace").split("\0")
            status = (place / "status").read_text()
        except OSError:
            continue  # It has ended meanwhile.
        numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid")), [])
        if str(holder.__file__) in words and numbers[1:] == ["1"]:
            lab, host = words[words.index(str(holder.__file__)) + 2 :][:2]
            yield Entry(lab, host, int(place.name))


def find(host: str, lab: str | None = None) -> Entry:
    """The host of that name; the lab need not be named if only one has such a host."""
    up = list(entries())
    there = [entry for entry in up if lab in (None, entry.lab)]
    found = [entry for entry in there if entry.host == host]
    if len(found) == 1:
        return found[0]
    if found:
        raise LabError(f"{len(found)} labs have a host {host}: say which by --lab, {_names(found)}")
    if not up:
        raise LabError("no lab is up: `tidegate lab up FILE.toml` starts one (as root, and so is this)")
    raise LabError(f"no host {host!r} is up; these are: {_names(there or up)}")


def _names(entries: Sequence[Entry]) -> str:
    return ", ".join(sorted(f"{entry.host} of {entry.lab}" for entry in entries))
