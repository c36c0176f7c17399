from __future__ import annotations

import pytest

from tidegate.spark.stderr import Filter

IDLE = """\
Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager
  File "/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
BrokenPipeError: [Errno 32] Broken pipe"""
USER = """\
Traceback (most recent call last):
  File "/home/user/pipeline.py", line 3, in send
BrokenPipeError: [Errno 32] Broken pipe"""
IMPORT = """\
Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/daemon.py", line 264, in manager
ModuleNotFoundError: No module named 'pandas'"""


def shown(text: str) -> str:
    show = Filter()
    lines = [line for arrived in text.splitlines() for line in show(arrived)]
    return "\n".join([*lines, *show.rest()])


@pytest.mark.parametrize("text", ["news", "  indented", USER, IMPORT, "Traceback (most recent call last):"])
def test_what_tells_something_is_shown_as_it_came(text: str) -> None:
    assert shown(f"before\n{text}\nafter") == f"before\n{text}\nafter"
    assert shown(text) == text


@pytest.mark.parametrize(
    "text",
    [
        IDLE,
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "Using Spark's default log4j profile: x",
    ],
)
def test_what_says_nothing_is_not_shown(text: str) -> None:
    assert shown(f"before\n{text}\nafter") == "before\nafter"


def test_stack_traces_of_idle_workers_may_be_interleaved() -> None:
    both = "\n".join(line for line in IDLE.splitlines() for _ in range(2))
    assert shown(f"{both}\nafter") == "after"


def test_an_idle_worker_hides_nothing_that_came_in_between() -> None:
    head, *rest = IMPORT.splitlines()
    assert shown("\n".join([head, *IDLE.splitlines(), *rest])).endswith("No module named 'pandas'")
