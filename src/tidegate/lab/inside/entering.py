"""Runs a command on a host: enters its namespaces, hands on signals, and ends as the command ends.

`nsenter` would do but for the signals: a command it started cannot be interrupted or terminated through it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

_NAMESPACES = ("ipc", "uts", "net", "pid", "mnt")
_DIE_WITH_PARENT = 1
_FROM_TERMINAL = 0x80
"""A signal from the terminal; it reaches the command without help."""
_HANDED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def main() -> int:
    order = json.loads(sys.argv[1])
    command = sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for folder in order["cgroups"]:
            (Path(folder) / "cgroup.procs").write_text(str(os.getpid()))
        for fd in [os.open(f"/proc/{order['pid']}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]:
            if libc.setns(fd, 0) < 0:
                raise OSError(os.strerror(ctypes.get_errno()))
            os.close(fd)
    except OSError as error:
        print(f"the host cannot be entered; it may be down: {error}", file=sys.stderr)  # noqa: T201 - as below
        return 126
    watched = {*_HANDED_ON, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)
        try:
            os.chdir(order["folder"])
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error}", file=sys.stderr, flush=True)  # noqa: T201 - a program of its own
            os._exit(127)
    while True:
        came = signal.sigwaitinfo(watched)
        if came.si_signo != signal.SIGCHLD:
            if came.si_code != _FROM_TERMINAL:
                os.kill(child, came.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return _end_as(status)


def _end_as(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
