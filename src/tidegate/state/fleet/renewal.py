"""Does something again and again, beside everything else that a process does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Renewal:
    """Calls `renew` every so many seconds until `close`, in a thread that does not keep the process alive."""

    def __init__(self, every: float, renew: Callable[[], object], *, name: str) -> None:
        self._every = every
        self._renew = renew
        self.rounds = 0
        """How often it was done."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """May be called again."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._every):
            try:
                self._renew()
            except Exception:
                # The next one is to come all the same: without it every node would end.
                _log.exception("a renewal failed")
            self.rounds += 1
