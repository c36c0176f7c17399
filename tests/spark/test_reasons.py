"""What is made of an error of Spark: the line with its cause, and whether trying again can help."""

from __future__ import annotations

import sys

import pytest

from tidegate.errors import SinkError, StepError
from tidegate.spark.reasons import mistake, reason


class PythonException(Exception):  # noqa: N818
    """As PySpark calls it."""


def in_worker(last: str, *, file: str = "/home/me/pipeline.py") -> PythonException:
    return PythonException(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        f'  File "{file}", line 29, in root\n    return 1 / 0\n{last}'
    )


def test_a_full_disk_is_the_cause_of_a_task_that_failed_to_write() -> None:
    text = (
        "An error occurred while calling o145.parquet.\n"
        ": org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out. "
        "SQLSTATE: 58030\n\tat org.apache.spark.Some.thing(X.scala)\n"
        "Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device\n\tat x(Y)\n"
        "Caused by: java.io.IOException: No space left on device\n\t... 41 more\n"
    )
    told = reason(RuntimeError(text))
    assert told.startswith(
        "Task failed while writing rows to file:/out: No space left on device; free some space"
    )
    # However often it is handed on, what to do is said once.
    assert reason(SinkError(f"writing to sink-1 failed: {told}")) == f"writing to sink-1 failed: {told}"


def test_a_cause_without_words_is_passed_over() -> None:
    text = (
        "An error occurred while calling o212.collectToPython.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 13.0 failed 2 "
        "times, most recent failure: Lost task 1.1 in stage 13.0 (TID 37) (192.0.2.2 executor driver): "
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).\n\tat org.apache\n"
        "Caused by: java.io.EOFException\n\tat java.base\n"
    )
    assert reason(RuntimeError(text)) == "Python worker exited unexpectedly (crashed)."


@pytest.mark.parametrize(
    "last",
    [
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
        "different version: 3.9 than that in driver: 3.11",
        "ModuleNotFoundError: No module named 'pyarrow'",
    ],
)
def test_another_python_on_the_workers_is_told_with_the_way_out(last: str) -> None:
    told = reason(in_worker(last))
    assert told.startswith(last)
    assert f"set it to {sys.executable}" in told


def test_a_worker_that_does_not_start_is_told_with_where_to_look() -> None:
    told = reason(RuntimeError("Spark ended: Python worker failed to connect back."))
    assert told.startswith("Spark ended: Python worker failed to connect back; ")
    assert "PYSPARK_PYTHON" in told


def test_a_broker_that_is_away_is_told_as_such() -> None:
    text = "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: x"
    assert "no Kafka broker answers" in reason(RuntimeError(text))


def test_a_mistake_is_found_behind_the_sink_that_met_it() -> None:
    step = in_worker("tidegate.errors.StepError: map_arrow-1 (declared at p.py:3), in line 6: KeyError: 'a'")
    sink = SinkError("writing to sink-1 failed")
    sink.__cause__ = step
    found = mistake(sink)
    assert found is not None
    assert found.reason == "map_arrow-1 (declared at p.py:3), in line 6: KeyError: 'a'"


def test_a_function_of_the_users_is_told_with_its_line() -> None:
    found = mistake(in_worker("ZeroDivisionError: division by zero"))
    assert found is not None
    assert found.reason == "ZeroDivisionError: division by zero (in /home/me/pipeline.py:29)"


@pytest.mark.parametrize(
    "error",
    [
        in_worker("ConnectionRefusedError: [Errno 111] Connection refused"),
        in_worker("httpx.ConnectTimeout: timed out"),
        in_worker("RuntimeError: map_arrow-1 (declared at p.py:3), in line 6: OSError: away"),
        in_worker(
            "ValueError: truncated", file="/usr/lib/python3/site-packages/tidegate/state/task/state.py"
        ),
        in_worker("tidegate.errors.NodeError: node 1 does not answer"),
        RuntimeError("Python worker exited unexpectedly (crashed)"),
        OSError("No space left on device"),
    ],
    ids=str,
)
def test_what_may_pass_is_no_mistake(error: Exception) -> None:
    assert mistake(error) is None


def test_a_mistake_that_is_known_already_stays_one() -> None:
    found = mistake(StepError("process-1: no"))
    assert found is not None
    assert found.reason == "process-1: no"
