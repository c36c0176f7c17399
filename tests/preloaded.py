"""What Spark forks Python workers from, with all imported that they need: one that died is soon replaced."""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.flight  # noqa: F401
from pyspark import daemon

import tidegate.operators.aggregate
import tidegate.operators.task
import tidegate.operators.windowed  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
