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


@contextmanager
def hangup_kept() -> Iterator[None]:
    """Processes that are started in this block ignore SIGHUP, as a closed terminal sends it to all of them:
    Java would end before its last batch does. For this process the signal waits for the end of the block."""
    before = signal.getsignal(signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
