from __future__ import annotations

import os
import pty
import subprocess
import sys

PROGRAM = """
import subprocess, sys, threading
from tidegate.view.stderr_capture import StderrCapture

told = threading.Event()
def tell(line):
    print(f"told: {line}", flush=True)
    told.set()

with StderrCapture(tell):
    subprocess.run("echo news >&2", shell=True)
    assert told.wait(30)
subprocess.run("echo afterwards >&2", shell=True)
"""


def on_a_terminal(program: str) -> list[str]:
    """What a terminal shows of the program."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while more := os.read(ours, 4096):
            seen += more
    except OSError:
        pass  # the terminal reports the end of the child as an error
    finally:
        os.close(ours)
    assert child.wait(30) == 0, seen.decode()
    return seen.decode().splitlines()


def test_lines_of_children_are_told() -> None:
    assert on_a_terminal(PROGRAM) == ["told: news", "afterwards"]


def test_what_is_not_a_terminal_is_left_alone() -> None:
    program = """
import subprocess
from tidegate.view.stderr_capture import StderrCapture
with StderrCapture(print):
    subprocess.run("echo news >&2", shell=True)
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (answer.stdout, answer.stderr) == ("", "news\n")
