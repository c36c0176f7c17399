"""The pipeline of `tests.run.chaos_kit` with its driver on a host of a lab."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.java import DRIVER_JAVA, EXECUTOR_JAVA, SMALL
from tests.lab.kit import await_that
from tests.run.chaos_kit import SETTINGS, Left
from tidegate.lab import Lab

_ROOT = Path(__file__).parents[2]
_PATIENCE = 240.0

ON_A_CLUSTER: Mapping[str, str | int] = {
    **SETTINGS,
    "cluster.memory": "512m",
    # The master of a lab has no secret: nobody reaches it from outside.
    "security.spark": "off",
    "spark.driver_memory": "512m",
    f"spark.conf.{DRIVER_JAVA}": SMALL,
    f"spark.conf.{EXECUTOR_JAVA}": SMALL,
}


def environment(lab: Lab) -> dict[str, str]:
    """For programs on the hosts: where Python finds the tests, and the store if the lab has one."""
    # What configures the tests is no configuration of a pipeline, and would be refused as such.
    mine = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    store = lab.store.environment if lab.spec.store else {}
    return {**mine, "PYTHONPATH": path, **store}


class Driver:
    """`tidegate run` of the pipeline on a host, with its file and what it says in `folder`, which the hosts
    share; its outputs are there, too."""

    def __init__(
        self,
        lab: Lab,
        host: str,
        folder: Path,
        batches: int,
        *,
        checkpoint: str,
        settings: Mapping[str, str | int],
        take_over: bool = False,
    ) -> None:
        file = folder / f"watched-{host}.py"
        file.write_text(
            "from pathlib import Path\nfrom tests.run.chaos_kit import pipeline\n"
            f"p = pipeline(Path({str(folder)!r}), {batches})\n"
        )
        given = {**ON_A_CLUSTER, "spark.master": lab.spark.url, **settings}
        command = [sys.executable, "-m", "tidegate.cli.main", "run", file.name, "--until-done", "--json"]
        command += ["--checkpoint", checkpoint, *(["--take-over"] if take_over else [])]
        command += [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        self._host, self._checkpoint, self._environment = lab[host], checkpoint, environment(lab)
        self._told = folder / f"told-{host}"
        self._errors = folder / f"errors-{host}"
        with self._told.open("w") as told, self._errors.open("w") as errors:
            self.process: subprocess.Popen[bytes] = lab[host].start(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=errors,
                env=self._environment,
            )

    def batches(self) -> list[dict[str, Any]]:
        """What it has told of each batch."""
        lines = self._told.read_text().split("\n")[:-1]  # Behind the last line end something is written.
        return [told for line in lines if "batch_id" in (told := json.loads(line))]

    @property
    def last(self) -> int:
        """The last batch that it told of; -1 for none."""
        return max((int(batch["batch_id"]) for batch in self.batches()), default=-1)

    def await_batch(self, number: int) -> None:
        """Until that batch or a later one was committed."""

        def there() -> bool:
            assert self.process.poll() in (None, 0), self.said
            return self.last >= number

        await_that(there, f"batch {number} was committed, but: {self.said}", seconds=_PATIENCE)

    def await_more(self, count: int = 2) -> None:
        self.await_batch(self.last + count)

    def await_switched(self, number: int) -> None:
        """Until a rescale is on its new route."""

        def switched() -> bool:
            return self.tidegate("history", str(number))["first_batch"] is not None

        await_that(switched, f"rescale {number} switched", seconds=_PATIENCE)

    def tidegate(self, command: str, *arguments: str) -> Any:
        """What a command on the running pipeline answers, on the driver's host, where its control API is."""
        call = [sys.executable, "-m", "tidegate.cli.main", command, self._checkpoint, *arguments, "--json"]
        done = self._host.run(call, capture_output=True, text=True, env=self._environment)
        assert done.returncode == 0, f"{done.stderr}; the driver said: {self.said}"
        return json.loads(done.stdout)

    def wait(self) -> int:
        try:
            return self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end; it said: {self.said}") from None

    @property
    def said(self) -> str:
        return self._errors.read_text()[-5000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def left_on(lab: Lab, host: str, folder: Path, checkpoint: str) -> Left:
    """What a run left, as seen from a host: it may be in the lab's store."""
    program = (
        "import base64, pickle, sys; from pathlib import Path; from tests.run.chaos_kit import left\n"
        "found = left(Path(sys.argv[1]), sys.argv[2])\n"
        "print(base64.b64encode(pickle.dumps(found)).decode())"
    )
    done = lab[host].run(
        [sys.executable, "-c", program, str(folder), checkpoint],
        check=True,
        capture_output=True,
        text=True,
        env=environment(lab),
    )
    found = pickle.loads(b64decode(done.stdout))
    assert isinstance(found, Left)
    return found
