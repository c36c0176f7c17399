"""Captures what other processes write to standard error, so that it does not tear up the live view.

State nodes inherit file descriptor 2, and what Java and Python workers write goes there, too. While the live
view is up, that is a pipe: each line is shown above the view.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Self

_STDERR = 2


class StderrCapture:
    """Passes each line that arrives on file descriptor 2 to `tell`, if that is a terminal.

    Children started in the meantime keep the pipe; after the end, their lines go to the terminal.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._terminal: int | None = None

    def __enter__(self) -> Self:
        if os.isatty(_STDERR):
            self._terminal = os.dup(_STDERR)
            arriving, leaving = os.pipe()
            os.dup2(leaving, _STDERR)
            os.close(leaving)
            threading.Thread(
                target=self._listen, args=(arriving,), name="stderr-capture", daemon=True
            ).start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._terminal is not None:
            self._tell = self._pass_on
            os.dup2(self._terminal, _STDERR)

    def _listen(self, arriving: int) -> None:
        with os.fdopen(arriving, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._tell(line.rstrip("\n"))

    def _pass_on(self, line: str) -> None:
        assert self._terminal is not None
        os.write(self._terminal, f"{line}\n".encode())
