"""The Python that Spark's workers run on this machine, and whether it will do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

_NEEDED = ("tidegate", "pyarrow", "pandas", "numpy")
_LOOK = (
    "import importlib.util, json, sys; print(json.dumps(['%d.%d' % sys.version_info[:2], "
    "[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]]))"
)


def problem() -> str | None:
    """What is wrong with the Python of PYSPARK_PYTHON; None when it will do, or is not set."""
    other = os.environ.get("PYSPARK_PYTHON")
    if other is None or shutil.which(other) == sys.executable:
        return None
    try:
        command = [other, "-c", _LOOK, *_NEEDED]
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        version, missing = json.loads(said)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"PYSPARK_PYTHON is {other}, which does not work as a Python: {error}"
    mine = "{}.{}".format(*sys.version_info)
    if version != mine:
        return f"PYSPARK_PYTHON is {other}, which is Python {version}, and this is Python {mine}"
    if missing:
        return f"PYSPARK_PYTHON is {other}, which does not have {', '.join(missing)}"
    return None


def remedy() -> str:
    """What to do then."""
    return f"unset PYSPARK_PYTHON, or set it to {sys.executable}"
