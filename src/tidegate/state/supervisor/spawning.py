"""Starts a supervisor that outlives the process which does so: a task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidegate.state.fleet.child import first_line

_START = 60.0
"""Seconds that it has until it listens."""


def spawn(host: str, lease: float, told: Mapping[str, str]) -> tuple[str | None, str]:
    """The address of a supervisor that listens at `host`, an address of this machine; or None, and why there
    is none. `told` are variables of its environment."""
    # Where Spark keeps what is of this machine alone.
    scratch = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0] or tempfile.gettempdir()
    Path(scratch).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "tidegate.state.supervisor.process"),
                *("--host", host, "--lease", str(lease), "--scratch", scratch),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **told},
            # Of its own, so that it does not end with what ends this process.
            start_new_session=True,
        )
        line = first_line(process, _START)
        if line.endswith(b"\n"):
            address: str = json.loads(line)["address"]
            return address, ""
        process.kill()
        process.wait()
        errors.seek(0)
        # The last line of a traceback is the cause.
        said = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return None, said or f"it ended with exit code {process.returncode}"
