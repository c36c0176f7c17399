"""The Python that Spark's workers run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.spark import python

PIPELINE = """
import tidegate as tg

p = tg.Pipeline("needs-python")
p.source(tg.sources.Sensors(rows=10)).sink(tg.sinks.Discard())
"""


def program(folder: Path, text: str) -> str:
    place = folder / "other"
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
    return str(place)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("""echo '["2.7", []]'""", "is Python 2.7, and this is Python 3"),
        (f'exec {sys.executable} -I -S "$@"', "does not have .*pyarrow"),
        ("exit 3", "does not work as a Python: .* exit status 3"),
        (f'exec {sys.executable} "$@"', None),
    ],
)
def test_another_python_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str | None
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", program(tmp_path, text))
    if why is None:
        assert python.problem() is None
    else:
        assert re.search(why, python.problem() or "")


def test_a_python_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    assert "/no/such/python" in (python.problem() or "")


def test_before_java_starts_the_last_line_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PIPELINE)
    environment = {**os.environ, "PYSPARK_PYTHON": program(tmp_path, "exit 3")}
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "p.py"]
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    (last,) = ended.stderr.splitlines()
    assert last.startswith("Error: Spark's workers cannot run: PYSPARK_PYTHON is ")
    assert last.endswith(f"unset PYSPARK_PYTHON, or set it to {sys.executable}")
