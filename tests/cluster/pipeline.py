"""A pipeline as `tidegate run` runs it, and Spark's own record of what its executors did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.driver import MEMORY
from tests.cluster.kit import Child, await_that
from tests.java import DRIVER_JAVA, EXECUTOR_JAVA, SMALL
from tests.run.steering import settings
from tidegate.control.client import ControlClient
from tidegate.rescale.model import Ask, Rescale

_COUNTING = """
from pathlib import Path
from tests.run.steering import counting

p = counting(Path("out"))
"""
MAPPING = """
from pathlib import Path
from tests.rescale.test_sources import pipeline
from tests.run.readings import sensors
from tests.run.steering import MANY

p = pipeline(sensors(MANY), Path("out"), name="count")
"""
"""The same sensors, without state."""
_SETTINGS = {
    **{name.replace("__", "."): value for name, value in settings().items()},
    "cluster.workers": 1,
    "cluster.memory": MEMORY,
    "engine.parallelism": 1,
    f"spark.conf.{DRIVER_JAVA}": SMALL,
    f"spark.conf.{EXECUTOR_JAVA}": SMALL,
    "spark.conf.spark.eventLog.compress": "false",
    "spark.conf.spark.eventLog.enabled": "true",
    "spark.conf.spark.eventLog.rolling.enabled": "false",
    # On a busy machine a new executor may take longer than the usual three seconds to take its first task.
    "spark.conf.spark.locality.wait.process": "20s",
    "spark.driver_memory": "512m",
    "state.nodes": 1,
}
Event = dict[str, Any]


class Pipeline(Child):
    """`tidegate run` with all of its files in `folder`."""

    def __init__(self, folder: Path, script: str = _COUNTING, **more: object) -> None:
        self._folder = folder
        (folder / "count.py").write_text(script)
        (folder / "events").mkdir()
        overrides = {**_SETTINGS, **{name.replace("__", "."): value for name, value in more.items()}}
        overrides["spark.conf.spark.eventLog.dir"] = (folder / "events").as_uri()
        arguments = ["tidegate.cli.main", "run", "count.py", "--json"]
        arguments += [part for key, value in overrides.items() for part in ("--set", f"{key}={value}")]
        with (folder / "batches").open("w") as batches:
            super().__init__(arguments, folder, stdout=batches)

    @property
    def client(self) -> ControlClient:
        return ControlClient.find(self._folder / ".tidegate" / "count")

    def rescale(self, size: int) -> Rescale:
        """Have so many nodes and partitions; returns when the state is where it belongs."""
        return self.apply(Ask(nodes=size, parallelism=size))

    def apply(self, ask: Ask) -> Rescale:
        """Returns when the rescale is over."""
        asked = self.client.apply(ask)
        await_that(lambda: self.client.rescale(asked.number).over, "the rescale is over", told=self.said)
        rescale = self.client.rescale(asked.number)
        assert rescale.phase != "failed", f"{rescale.why}; {self.said()}"
        return rescale

    def batches(self) -> list[dict[str, Any]]:
        """What was told of each batch so far."""
        told = _lines(self._folder / "batches")
        return [line for line in told if "batch_id" in line]

    def events(self, kind: str) -> list[Event]:
        """Spark's events of one kind so far, the oldest first. It may be late by a job."""
        (file,) = (self._folder / "events").iterdir()
        return [event for event in _lines(file) if event["Event"].endswith(kind)]

    def executors(self) -> set[str]:
        """Those that have come and have not left."""
        come = {event["Executor ID"] for event in self.events("ExecutorAdded")}
        return come - {event["Executor ID"] for event in self.events("ExecutorRemoved")}

    def tasks(self, executor: str) -> list[Event]:
        """The tasks that it has ended."""
        return [event for event in self.events("TaskEnd") if event["Task Info"]["Executor ID"] == executor]

    def warm_up(self, executor: str) -> list[Event]:
        """The tasks of the job that warmed it up, wherever they ran."""
        told = (
            event
            for event in self.events("JobStart")
            if _description(event) == f"warm-up of executor {executor}"
        )
        stages = {stage for event in told for stage in event["Stage IDs"]}
        return [event for event in self.events("TaskEnd") if event["Stage ID"] in stages]

    def stop(self) -> None:
        """Have it finish its batch and end."""
        self.client.stop()
        assert self.process.wait(120) == 0, self.said()

    def await_first(self) -> None:
        """Wait for the first batch."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.said()
            return bool(self.batches())

        await_that(is_there, "there is a batch", told=self.said)


def _description(job: Event) -> str | None:
    described: str | None = job["Properties"].get("spark.job.description")
    return described


def _lines(file: Path) -> list[dict[str, Any]]:
    # Behind the last line end something is being written.
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]
