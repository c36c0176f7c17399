"""What Spark forks Python workers from, with all imported that they need: one that died is soon replaced."""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.flight  # noqa: F401
from pyspark import daemon

if __name__ == "__main__":
    daemon.manager()
