"""Runs one command until its own input ends, then ends the command and all of its descendants.

It is run by its path, with only the standard library, and makes the processes of a cluster end with their
driver: the driver holds the other end of the input, which closes however the driver ends. Orphans below the
guard become its children, so that none escapes.

    python guard.py FOLDER COMMAND...

It writes the command's process id, and its exit status when it ends by itself. What the command says goes to
FOLDER/log. FOLDER goes last; so does the folder around it, when nothing else is in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(folder: Path, command: list[str]) -> None:
    """Run the command to its end, or to that of the input."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this system does not reparent orphaned processes to the guard")
    try:
        with (folder / "log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                # Should the guard itself be killed, at least the command goes with it.
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )
        _say(child.pid)
        ended = os.pidfd_open(child.pid)
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            _end_children()
            _say("ended")
            select.select([0], [], [])  # Keep the log for as long as somebody may read it.
        _end_children()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.parent.rmdir()


def _say(word: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{word}\n".encode())


def _end_children() -> None:
    """Kill the children, then theirs, which are ours from then on, until there are none."""
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of a program stands in brackets and may hold anything: count from behind it.
            if int(status.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(status.parent.name))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
