from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tidegate.cli import doctor
from tidegate.cli.main import app
from tidegate.view.findings import Finding, Need, report

GOOD = Finding("thing", "required", True, "2.0", "sudo get thing")


def reported(*findings: Finding) -> tuple[bool, str]:
    stream = io.StringIO()
    return report(findings, Console(file=stream, width=100)), stream.getvalue()


def test_only_what_is_required_fails_the_doctor() -> None:
    assert reported(GOOD)[0] is True
    assert reported(replace(GOOD, need="lab", ok=False), replace(GOOD, need="optional", ok=False))[0] is True
    assert reported(GOOD, replace(GOOD, ok=False))[0] is False


@pytest.mark.parametrize("need", ["required", "optional", "lab"])
def test_whatever_is_missing_comes_with_its_fix(need: Need) -> None:
    assert "fix: sudo get thing" in reported(replace(GOOD, need=need, ok=False))[1]
    assert "fix" not in reported(replace(GOOD, need=need))[1]


def test_every_check_has_a_fix_to_offer() -> None:
    findings = [finding for check in doctor.CHECKS for finding in check()]
    assert all(finding.fix for finding in findings)
    assert {finding.need for finding in findings} == {"required", "optional", "lab"}


def test_this_machine_is_ready() -> None:
    """The tests themselves need what the doctor requires."""
    answer = CliRunner().invoke(app, ["doctor"])
    assert answer.exit_code == 0, answer.stdout
    assert "ready to run pipelines" in answer.stdout


def test_without_java_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = CliRunner().invoke(app, ["doctor"])
    assert answer.exit_code == 1
    assert "apt-get install -y openjdk-17-jre-headless" in answer.stdout
    assert "cannot run pipelines yet: Java 17 or newer" in answer.stdout


@pytest.mark.parametrize(
    ("version", "ok"), [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("21", True)]
)
def test_java_must_be_17_or_newer(
    version: str, ok: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (finding,) = doctor.java()
    assert finding.ok is ok
    assert version in finding.found


def test_packages_outside_their_range_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def oks(**versions: str) -> dict[str, bool]:
        monkeypatch.setattr(doctor, "version", versions.__getitem__)
        return {finding.name: finding.ok for finding in doctor.packages()}

    assert set(oks(pyspark="4.3.0", pandas="2.3.3", pyarrow="18.0.0").values()) == {True}
    assert set(oks(pyspark="4.4.0", pandas="3.0.0", pyarrow="17.0.0").values()) == {False}


def test_another_python_for_the_workers_is_noticed_if_it_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python"
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    finding = next(doctor.environment())
    assert not finding.ok
    assert finding.fix.startswith("unset PYSPARK_PYTHON")
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    assert next(doctor.environment()).ok


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="Linux only")
def test_trying_the_scheduler_leaves_it_as_it_was() -> None:
    before = os.sched_getscheduler(0)
    list(doctor.real_time())
    assert os.sched_getscheduler(0) == before


@pytest.mark.spark
@pytest.mark.slow
def test_spark_is_started_on_demand() -> None:
    (finding,) = doctor.spark_starts()
    assert finding.ok, finding.found
