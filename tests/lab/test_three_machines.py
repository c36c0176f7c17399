"""The commands of docs/how-to/three-machines.md, as they are written, on hosts of a lab."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.java import DRIVER_JAVA, EXECUTOR_JAVA, SMALL
from tests.lab.kit import await_that
from tidegate.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.s3, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "how-to" / "three-machines.md"
_BLOCK = re.compile(r"^```(\w+)\n# (.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATIENCE = 300.0
_SMALLER = f'\n[spark.conf]\n"{DRIVER_JAVA}" = "{SMALL}"\n"{EXECUTOR_JAVA}" = "{SMALL}"\n'
"""Java that starts sooner; nothing else of the page is changed."""


@dataclass(frozen=True, slots=True)
class Step:
    """A block of the page: a file, or commands and where they run."""

    kind: str
    hosts: tuple[str, ...]
    stays: bool
    text: str


def steps() -> Iterator[Step]:
    for kind, first, text in _BLOCK.findall(_PAGE.read_text()):
        hosts = (
            tuple(re.findall(r"\b(?:one|two|three)\b", first)) if kind == "sh" else ("one", "two", "three")
        )
        yield Step(kind, hosts, first.endswith("let it run"), text if kind == "sh" else f"{first}\n{text}")


@pytest.fixture
def lab() -> Iterator[Lab]:
    hosts: dict[str, dict[str, object]] = {"one": {}, "two": {}, "three": {}, "store": {}}
    with Lab({"hosts": hosts, "store": {"host": "store"}}) as running, ExitStack() as stack:
        for name in ("one", "two", "three"):
            # Step 1: the machine has it all, at another place.
            running[name].run(["ln", "-s", str(_ROOT), "/opt/tidegate"], check=True)
        stack.callback(lambda: [running[name].signal(signal.SIGKILL) for name in ("one", "two", "three")])
        yield running


def test_the_page_can_be_followed_word_for_word(lab: Lab) -> None:
    install, *rest = steps()
    assert "make setup" in install.text
    (read,) = (step.text for step in rest if "rows" in step.text)

    def rows() -> int:
        return int(succeed(lab, "three", read).split()[0])

    before = 0
    for step in rest:
        if step.kind != "sh":
            file, _, content = step.text.partition("\n")
            for name in step.hosts:
                smaller = _SMALLER if file.endswith(".toml") else ""
                # On the host: seen from here, the link of step 1 leads to this machine's own folder.
                command = ["tee", file]
                lab[name].run(command, input=content + smaller, capture_output=True, text=True, check=True)
        elif step.stays:
            if "--take-over" in step.text:
                lab["one"].signal(signal.SIGKILL, "tidegate run")
                await_that(lambda: not lab["one"].processes("tidegate run"), "the driver is gone")
                before = rows()
            for name in step.hosts:
                start(lab, name, step.text)
        else:
            for name in step.hosts:
                succeed(lab, name, step.text)
    assert before > 0
    await_that(
        lambda: rows() > before,
        "the driver on the other machine has committed batches",
        seconds=_PATIENCE,
    )


def start(lab: Lab, host: str, text: str) -> None:
    lab[host].start(["sh", "-c", text], cwd="/", stdin=subprocess.DEVNULL, env=environment())


def succeed(lab: Lab, host: str, text: str) -> str:
    """What the commands print, once they can be carried out and, if they count, have found something."""
    said: list[subprocess.CompletedProcess[str]] = []

    def done() -> bool:
        command = ["sh", "-c", f"set -e\n{text}"]
        ended = lab[host].run(command, cwd="/", capture_output=True, text=True, env=environment())
        said.append(ended)
        return ended.returncode == 0 and not ended.stdout.startswith("0 rows")

    await_that(done, f"this works on host {host}: {text}", seconds=_PATIENCE)
    return said[-1].stdout


def environment() -> dict[str, str]:
    """As on a machine where nothing was set."""
    kept = ("PATH", "HOME", "LANG", "JAVA_HOME")
    return {name: os.environ[name] for name in kept if name in os.environ}
