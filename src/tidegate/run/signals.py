"""SIGINT, SIGTERM and SIGHUP as a request to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def calling(stop: Callable[[], None]) -> Iterator[None]:
    """A first signal calls `stop`; a second one goes its usual way. Of no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]  # Under nohup a pipeline is meant to outlive its terminal.

    def handle(number: int, _: object) -> None:
        stop()
        signal.signal(number, signal.SIG_DFL)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
