"""What Java and Python workers write to standard error, without what only looks like an error."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from tidegate.spark.authentication import public

_STDERR = 2
_LAST_WORDS = 5.0
"""Seconds that the lines of a Java that has ended get to arrive."""
_EVERY_START = re.compile(
    r"""WARNING:\ Using\ incubator\ modules
    | Using\ Spark's\ default\ log4j\ profile
    | Setting\ default\ log\ level\ to
    | To\ adjust\ logging\ level\ use
    | [\d/]+\ [\d:]+\ WARN\ (Utils:\ (Your\ hostname|Set\ SPARK_LOCAL_IP)|NativeCodeLoader:)
    """,
    re.VERBOSE,
)
_TRACEBACK = "Traceback (most recent call last):"
_CLOSED = "BrokenPipeError: "


class Filter:
    """Takes line by line, and gives back those that are to be shown.

    Left out are lines that Spark writes at every start, and the stack traces of idle Python workers: Spark
    closes their sockets after a minute, and PySpark's daemon tells that as a BrokenPipeError.
    """

    def __init__(self) -> None:
        self._held: list[str] = []
        """Stack traces that have begun. Those of several workers may be interleaved."""
        self._begun = 0

    def __call__(self, line: str) -> list[str]:
        if line == _TRACEBACK:
            self._begun += 1
        elif not (self._begun and line.startswith(" ")):
            if self._begun and line.startswith(_CLOSED) and "pyspark" in "".join(self._held):
                self._begun -= 1
                if not self._begun:
                    self._held.clear()
                return []
            return [*self.rest(), *([] if _EVERY_START.match(line) else [line])]
        self._held.append(line)
        return []

    def rest(self) -> list[str]:
        """What no further line has decided on."""
        held, self._held, self._begun = self._held, [], 0
        return held


def launch(settings: Mapping[str, str]) -> None:
    """Start Spark's Java, unless this process has one already, with its standard error filtered."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    # The rest follows once there is a connection: arguments can be read by everybody.
    conf = SparkConf().setAll(list(public(settings).items()))
    with _filtered() as stderr:
        gateway = launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)


@contextmanager
def _filtered() -> Iterator[int]:
    """A file descriptor for a process that starts in this block; it is read as long as that process lives."""
    arriving, leaving = os.pipe()
    reader = threading.Thread(target=_pass_on, args=(arriving,), name="java-stderr", daemon=True)
    reader.start()
    try:
        yield leaving
    except BaseException:
        os.close(leaving)
        # What Java has said comes before the error that it did not start.
        reader.join(_LAST_WORDS)
        raise
    os.close(leaving)


def _pass_on(arriving: int) -> None:
    """Without a reader, standard error is lost, and Java goes on."""
    show = Filter()
    with suppress(OSError), os.fdopen(arriving, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            _write(show(line.rstrip("\n")))
        _write(show.rest())


def _write(lines: list[str]) -> None:
    if lines:
        os.write(_STDERR, "".join(f"{line}\n" for line in lines).encode())
