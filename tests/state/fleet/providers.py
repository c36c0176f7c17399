"""Every kind of provider, ready to be used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.config.settings import StateSettings
from tidegate.run import fleet
from tidegate.security import token_file
from tidegate.security.security import Security
from tidegate.state.fleet.fleet import Fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = "sensors"
KINDS = ("local", "executors", "remote")
LEASE = "4 seconds"


@dataclass(frozen=True, slots=True)
class Supervisor:
    """`tidegate node` as a process."""

    process: subprocess.Popen[bytes]
    address: str


@contextmanager
def supervisor(folder: Path, host: str) -> Iterator[Supervisor]:
    """One that is registered in `folder`; killed in the end."""
    tokens = folder / "token"
    if not tokens.exists():
        token_file.create(tokens)
    arguments = ["--listen", host, "--token-file", str(tokens), "--register", str(folder / "registry")]
    with (folder / f"{host}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate.cli.main", "node", *arguments, "--scratch", str(folder)],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / f"{host}.log").read_text()
        yield Supervisor(process, json.loads(line)["address"])
    finally:
        process.kill()
        process.communicate()


def settings(kind: str, folder: Path, **more: Any) -> StateSettings:
    """What chooses a provider. `folder` is that of the supervisors."""
    given: dict[str, Any] = {"provider": kind, "timeout": "5 seconds", **more}
    if kind != "local":
        given["lease"] = LEASE
    if kind == "remote":
        given |= {"registry": str(folder / "registry"), "token_file": str(folder / "token")}
    return StateSettings(**given)


def opened(
    kind: str, folder: Path, spark: SparkSession | None, place: Path, count: int = 2, generation: int = 1
) -> Fleet:
    """Nodes by a provider, with their files in `place`."""
    return fleet.opened(
        settings(kind, folder),
        count,
        security=Security.of_run(PIPELINE, tls=kind != "local"),
        spark=spark,
        staying=frozenset,
        pipeline=PIPELINE,
        log=str(place / "log"),
        scratch=place / "nodes",
        options={},
        generation=generation,
    )


def main(arguments: Sequence[str]) -> None:
    """A driver that has nodes, tells their names and processes, and then does nothing more."""
    import time

    from tidegate.spark import session

    kind, folder, place = arguments
    with ExitStack() as stack:
        spark = None
        if kind == "executors":
            spark = session.start("driver", master="local[1]", driver_memory="512m")
            stack.callback(spark.stop)
        nodes = stack.enter_context(opened(kind, Path(folder), spark, Path(place)))
        sys.stdout.write(json.dumps([[node.name, node.pid] for node in nodes.nodes]) + "\n")
        sys.stdout.flush()
        time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1:])
