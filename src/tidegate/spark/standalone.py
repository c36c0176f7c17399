"""The processes of Spark's standalone mode: how to start them, and what can be read of them from outside."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from tidegate.errors import ClusterError
from tidegate.spark import java

LOOPBACK = "127.0.0.1"
_LOGGING = Path(__file__).parent / "standalone.log4j2.properties"
# They only pass messages: small, and quick to start.
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_OPENED = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic sun.nio.ch sun.nio.cs sun.security.action"
)
# A pipeline whose executors are killed again and again is not to be given up.
_MASTER = ("-Dspark.deploy.maxExecutorRetries=-1", "-Dspark.master.rest.enabled=false")


def master_command(host: str = LOOPBACK, port: int = 0, properties: Path | None = None) -> list[str]:
    """A master at that address; without a port, at any that is free. `properties` is a file with settings of
    Spark."""
    arguments = f"--host {host} --port {port} --webui-port 0"
    main = "org.apache.spark.deploy.master.Master"
    return [*_java(*_MASTER), main, *arguments.split(), *_read(properties)]


def worker_command(
    folder: Path,
    master: str,
    *,
    cores: int,
    memory: str,
    host: str = LOOPBACK,
    properties: Path | None = None,
) -> list[str]:
    """A worker at that address, whose executors run in `folder`."""
    options = f"--host {host} --webui-port 0 -c {cores} -m {memory} -d"
    main = "org.apache.spark.deploy.worker.Worker"
    return [*_java(), main, *options.split(), str(folder), *_read(properties), master]


def _read(properties: Path | None) -> list[str]:
    return [] if properties is None else ["--properties-file", str(properties)]


def environment(host: str = LOOPBACK) -> dict[str, str]:
    """What both need beside the environment of this process."""
    return {
        "SPARK_HOME": str(spark_home()),
        # PySpark's package lacks the folders from which Spark would tell it.
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": host,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
    }


def master_address(log: str) -> str | None:
    """The address of the master that wrote this log, once it is ready: it turns away a worker that comes
    earlier, which then tries again only much later."""
    if "New state: ALIVE" not in log:
        return None
    found = re.search(r"Starting Spark master at (spark://\S+)", log)
    return found and found[1]


def registered_workers(log: str) -> frozenset[str]:
    """The hosts of the workers that ever registered with the master that wrote this log."""
    return frozenset(re.findall(r"Registering worker (\S+):\d+ with", log))


def launched_executors(folder: Path, application: str) -> frozenset[str]:
    """The ids of the executors that a worker with this folder ever started: each has a folder in it."""
    try:
        return frozenset(path.name for path in (folder / application).iterdir())
    except FileNotFoundError:
        return frozenset()


def _java(*options: str) -> list[str]:
    if problem := java.missing():
        raise ClusterError(f"Spark needs Java {java.OLDEST} or newer, but {problem}. {java.remedy()}")
    opened = (f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED.split())
    logging = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    return [java.command(), *_JAVA, *opened, logging, *options, "-cp", f"{spark_home()}/jars/*"]


def spark_home() -> Path:
    """The Spark that PySpark's package holds, found without importing it, which takes a second."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ClusterError("this needs the Spark of PySpark's package: pip install pyspark")
    return Path(spec.origin).parent
