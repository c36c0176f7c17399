"""What Spark forks Python workers from: PySpark's own daemon, with workers that end quietly.

Over a Unix socket a worker sees at once that Spark has closed its end, as it does when a run ends, and
PySpark's daemon would print that with a stack trace.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark import daemon


def keep_quiet() -> None:
    """Have workers not tell that Spark no longer listens."""
    daemon.print = _print  # type: ignore[attr-defined]


def _print(*words: Any, **options: Any) -> None:
    if not isinstance(sys.exception(), BrokenPipeError):
        print(*words, **options)  # noqa: T201 - in place of that of PySpark


if __name__ == "__main__":
    keep_quiet()
    daemon.manager()
