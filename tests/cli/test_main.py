from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tidegate.cli.main import main

HEAVY = ("pyspark", "numpy", "pyarrow", "pandas", "rich.console", "fastapi", "uvicorn")


def tidegate(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """What makes `--help` quick; counted, because time depends on the machine."""
    program = f"""
import sys
from tidegate.cli.main import main
sys.argv = ["tidegate", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_command() -> None:
    answer = tidegate("--help")
    assert answer.returncode == 0
    listed = [
        line.split()[0] for line in answer.stdout.partition("Commands:")[2].splitlines() if line.strip()
    ]
    commands = ["run", "show", "generate", "state", "savepoint", "sim", "lab", "config", "doctor"]
    commands += ["version", "status", "plan", "scale", "rebalance", "history", "stop", "node"]
    assert sorted(listed) == sorted(commands)


def test_version_names_what_matters() -> None:
    lines = tidegate("version").stdout.splitlines()
    assert f"tidegate {version('tidegate')}" in lines
    assert f"pyspark {version('pyspark')}" in lines


def test_wrong_usage_ends_with_2() -> None:
    assert tidegate("no-such-command").returncode == 2
    assert tidegate("run", "x.py", "--json", "--quiet").returncode == 2


def test_a_wrong_configuration_ends_with_2_and_one_line(tmp_path: Path) -> None:
    answer = tidegate("config", "--set", "engine.tres=3", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr == ("Error: engine.tres (command line): unknown key; did you mean engine.tries?\n")
    assert answer.stdout == ""


def test_a_wrong_pipeline_ends_with_1_and_no_traceback(tmp_path: Path) -> None:
    answer = tidegate("show", "no.py", cwd=tmp_path)
    assert answer.returncode == 1
    assert answer.stderr.startswith("Error: ")
    assert "no.py" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_error_with_a_story_tells_it(tmp_path: Path) -> None:
    failure = 'BatchError("batch 7 failed", batch_id=7, tries=3, story=("attempt 1: failed: no node",))'
    (tmp_path / "job.py").write_text(f"from tidegate.errors import BatchError\nraise {failure}\n")
    answer = tidegate("show", "job.py", cwd=tmp_path)
    assert answer.returncode == 1
    told = ["What happened before:", "  attempt 1: failed: no node", "Error: batch 7 failed"]
    assert answer.stderr.splitlines() == told


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    answer = tidegate("--debug", "show", "no.py", cwd=tmp_path)
    assert answer.returncode == 1
    assert "Traceback" in answer.stderr


def test_errors_are_red_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "argv", ["tidegate", "config", "--set", "nonsense"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "--set nonsense: write it as section.key=value" in capsys.readouterr().err
