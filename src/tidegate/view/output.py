"""The stream that lines go to."""

from __future__ import annotations

import os
import signal
import threading
from typing import TextIO


class Output:
    """Writes lines. When their reader goes away (`| head`), it asks the run to end and falls silent."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._gone = False

    def write(self, line: str) -> None:
        if self._gone:
            return
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except BrokenPipeError:
            self._gone = True
            self._drain()
            # Only where a run listens for it: after the run, or in a thread, it would kill the process.
            if callable(signal.getsignal(signal.SIGTERM)):
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, signal.SIGTERM)

    def _drain(self) -> None:
        """What is still in the buffer would fail once more when Python exits and flushes it."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
