"""A real Kafka broker: one process that is broker and controller, fetched by the Ivy inside PySpark."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.errors import MissingExtraError
from tidegate.spark import ivy, java, standalone
from tidegate.testing.servers.daemon import ServerError, free_port, home, running

VERSION = "4.1.1"
_COORDINATES = ("org.apache.kafka", "kafka_2.13", VERSION)
# A small, quick-starting Java for a broker that lives for a few tests.
_JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n%throwable
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


@contextmanager
def kafka() -> Iterator[str]:
    """Run a broker for the length of the block and yield its bootstrap address.

    Topics are not created automatically. The first call on a machine downloads the broker (about 45 MB)
    into the user's cache; all its data is removed at the end.
    """
    libraries = installed()
    with home("kafka") as folder:
        port, controller = free_port(), free_port()
        settings = folder / "server.properties"
        settings.write_text(_settings(folder, port, controller))
        logging = folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        log = folder / "server.log"
        command = [
            _java(),
            *_JAVA_OPTIONS,
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            os.pathsep.join([f"{libraries}/*", *_logging_jars()]),
        ]
        _format_storage(command, settings, log)
        address = f"127.0.0.1:{port}"
        with running(
            [*command, "kafka.Kafka", str(settings)],
            name=f"Kafka {VERSION}",
            log=log,
            answers=lambda: _answers(address),
            stop_signal=signal.SIGKILL,  # it has nothing to save
        ):
            yield address


def installed() -> Path:
    """The folder with the broker's jars, downloaded when it is not there yet."""
    target = ivy.cache() / f"kafka-{VERSION}"
    with ivy.locked():
        if not target.is_dir():
            _download(target)
    return target


def _download(target: Path) -> None:
    # Renamed when complete: an interrupted download is never mistaken for a complete one.
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        command = [
            _java(),
            *("-jar", str(_spark_jar("ivy-"))),
            *("-dependency", *_COORDINATES),
            *("-retrieve", f"{partial}/[artifact]-[revision].[ext]"),
            *("-confs", "runtime,default"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not any(partial.glob("kafka_*.jar")):
            story = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise ServerError(
                f"Kafka {VERSION} could not be downloaded; with a working network, try: "
                f"{' '.join(command)}\n{story}"
            )
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _settings(home: Path, port: int, controller: int) -> str:
    values = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": home / "data",
        "auto.create.topics.enable": "false",
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _format_storage(command: list[str], settings: Path, log: Path) -> None:
    options = ["format", "-t", "dGlkZWdhdGUtdGVzdHMtMQ", "-c", str(settings)]
    command = [*command, "kafka.tools.StorageTool", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerError(f"Kafka {VERSION} could not format its storage:\n{done.stdout}{done.stderr}")
    log.write_text(done.stdout)


def _answers(address: str) -> bool:
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError:
        raise MissingExtraError("kafka", "a Kafka test server") from None
    # Its own complaints about a broker that is still starting would only confuse.
    client = AdminClient({"bootstrap.servers": address, "log_level": 0})
    try:
        return bool(client.list_topics(timeout=1.0).brokers)
    except KafkaException:
        return False


def _java() -> str:
    if problem := java.missing():
        raise ServerError(f"Kafka needs Java, but {problem}. {java.remedy()}")
    return java.command()


def _spark_jar(prefix: str) -> Path:
    jars = sorted((standalone.spark_home() / "jars").glob(f"{prefix}[0-9]*.jar"))
    if not jars:
        raise ServerError(
            f"PySpark's package has no {prefix}*.jar; reinstall it: pip install --force-reinstall pyspark"
        )
    return jars[-1]


def _logging_jars() -> list[str]:
    # The broker's own dependencies have no logger, so a failed start would be silent.
    return [str(_spark_jar(name)) for name in ("log4j-slf4j2-impl-", "log4j-api-", "log4j-core-")]
