"""The Java that Spark starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.spark import java

PIPELINE = """
import tidegate as tg

p = tg.Pipeline("needs-java")
p.source(tg.sources.Sensors(rows=10)).sink(tg.sinks.Discard())
"""


@pytest.mark.parametrize(
    ("home", "why"), [(None, "no java on the PATH"), ("no/such", "JAVA_HOME is no/such")]
)
def test_without_java_the_last_line_says_what_to_install(home: str | None, why: str, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PIPELINE)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = str(tmp_path)
    if home is not None:
        environment["JAVA_HOME"] = home
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "p.py"]
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("Error: Spark needs Java 17 or newer, but")
    assert why in last
    assert java.INSTALL in last
    assert "Traceback" not in ended.stderr


def test_a_java_that_can_be_started_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.missing() is None
    assert java.version() == "11.0.2"
    assert not java.is_new_enough(java.version())
