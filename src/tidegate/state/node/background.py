"""What a state node does beside its requests: compaction, and getting state from other nodes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tidegate.state.node.node import StateNode

_log = logging.getLogger(__name__)

_YIELD = 4.0
"""Background work yields to a batch for up to this many times as long as it has worked itself."""


class Background:
    """Two threads of a node, from its start until `close`. Reads and the batch protocol go on beside."""

    def __init__(self, node: StateNode) -> None:
        self._node = node
        self._signals = node.signals
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=name, args=(event, work), daemon=True)
            for name, event, work in (
                ("compaction", self._signals.committed, self._compact),
                ("pull", self._signals.pullable, self._pull),
            )
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Wait for what is being done to end."""
        self._closing = True
        self._signals.set()
        for thread in self._threads:
            thread.join()

    def _work(self, event: threading.Event, work: Callable[[], None]) -> None:
        """Each time that something has happened."""
        while True:
            event.wait()
            event.clear()
            try:
                work()
            except Exception:
                # Nothing is lost: what there was to do is still there the next time.
                _log.exception("%s failed", threading.current_thread().name)
            if self._closing:
                return

    def _compact(self) -> None:
        """Once after each commit, so that runs do not pile up under steady load, then as long as there is
        something to compact and no batch begins."""
        while not self._closing and self._node.compact_once(self._resting()) and self._signals.idle.is_set():
            pass

    def _pull(self) -> None:
        """Between two batches, which take no longer for it then; now and then in one, if there is no time
        between."""
        rest = self._resting()
        self._node.tidy()
        while not self._closing and self._node.pull_once(rest):
            pass

    def _resting(self) -> Callable[[], None]:
        """To be called after each part of some work, which begins now."""
        since = time.monotonic()

        def rest() -> None:
            nonlocal since
            self._signals.idle.wait(_YIELD * (time.monotonic() - since))
            since = time.monotonic()

        return rest
