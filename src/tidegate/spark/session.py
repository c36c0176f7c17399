"""The Spark session that a pipeline runs in."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import SessionError
from tidegate.spark import class_archive, ivy, java, python, stderr
from tidegate.spark.reasons import reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).parent / "log4j2.properties"
"""Of drivers and executors."""
# Maven modules of our own: they only name others, where what others publish does not fit together.
_REPOSITORY = Path(__file__).parent / "maven"
# Settings that the engine relies on or that pay on every batch; a user's own come on top.
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A route decides which partition a row goes to; adaptive execution would merge partitions again.
    "spark.sql.adaptive.enabled": "false",
    # The faster hash map of Spark's aggregates also where one is not followed by another: ours is not.
    "spark.sql.codegen.aggregate.map.twolevel.partialOnly": "false",
    # Without it, stopping a query during a batch overflows the stack of Spark's error classifier.
    "spark.driver.extraJavaOptions": f"-Xss8m -Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # Over TCP, rows for Python wait up to 40 ms for an acknowledgement of those before.
    "spark.python.unix.domain.socket.enabled": "true",
    # State arrives as it lies in a message, and Arrow would print a line when a user's function groups it.
    "spark.executorEnv.ACERO_ALIGNMENT_HANDLING": "ignore",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # How soon a trigger without new rows is reported: that is how `until_done` sees the end.
    "spark.sql.streaming.noDataProgressEventInterval": "100",
    # Spark writes two small files per batch, and starts processes for them. By its other interface for files
    # these are 4 (chmod) instead of 10 (chmod, readlink); see also `write_checksums`.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # A file source writes down every file that it has ever seen each time it compacts its log: by default
    # with every tenth batch, which after a month of small batches is most of the work.
    "spark.sql.streaming.fileSource.log.compactInterval": "1000",
    # How many bytes a file counts for beside its own when files are divided into tasks. By default these are
    # more than many a batch has in all: there would be one task, however many were asked for.
    "spark.sql.files.openCostInBytes": "65536",
    # All but Kafka: by the newer interface Spark tells how many messages it wrote.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
    # Output files of an attempt are named by a receipt, so a rename per task buys nothing.
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_TASK_FAILURES = 2
_LAST_WORDS = 1000
"""Milliseconds that a Python worker gets to end."""


def start(
    name: str,
    *,
    master: str = "local[*]",
    driver_memory: str = "2g",
    packages: Iterable[str] = (),
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark with the engine's settings below those in `conf`.

    `packages` are Maven coordinates; Spark resolves them once and keeps them in its cache.
    """
    if not is_running() and (problem := java.missing()):
        raise SessionError(f"Spark needs Java {java.OLDEST} or newer, but {problem}. Do: {java.remedy()}")
    if not is_running() and master.startswith("local") and (problem := python.problem()):
        raise SessionError(f"Spark's workers cannot run: {problem}. Do: {python.remedy()}")
    # Workers must run this interpreter: any other would lack our packages and die unexplained.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    # PySpark logs each wrong expression with the whole stack; the engine tells it in one line.
    for expressions in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(expressions).setLevel(logging.CRITICAL)
    # Py4J logs at the root what it then raises, such as a Ctrl-C during a call.
    logging.getLogger().addFilter(_is_not_of_py4j)
    if master.startswith("local[") and "," not in master:
        # Local Spark does not retry a failed task unless told how often.
        master = f"{master[:-1]},{_TASK_FAILURES}]"
    settings = {
        "spark.app.name": name,
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        **_settings(packages, conf or {}),
    }
    try:
        with ivy.locked() if "spark.jars.packages" in settings else nullcontext():
            stderr.launch(settings)
            spark = SparkSession.builder.config(map=dict(settings)).getOrCreate()
    except Exception as error:
        raise SessionError(f"Spark could not start on {master!r}: {_cause(error)}") from error
    write_checksums(spark, False)
    _ignore_hangup(spark)
    _ignore_end(spark)
    return spark


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def ended(*, patience: float = 0.0) -> str:
    """How Spark's Java has ended, which as a rule ends with this process; empty if it still runs after this
    many seconds."""
    from pyspark import SparkContext

    java: Any = getattr(SparkContext._gateway, "proc", None)
    try:
        code = java.wait(patience) if java is not None else None
    except subprocess.TimeoutExpired:
        return ""
    if code is None:
        return ""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def stop(spark: SparkSession) -> None:
    """Stop Spark. What its Python workers say of sockets that it has closed is not shown."""
    with ExitStack() as stack:
        if ended():
            stack.enter_context(suppress(Exception))  # There is nobody to answer.
        else:
            stack.enter_context(_muted(spark))
        spark.stop()


@contextmanager
def _muted(spark: SparkSession) -> Iterator[None]:
    """Have Java throw away what it would write to standard error, its own and that of Python workers, until
    the block is over and the workers have ended: this process may start Spark again in the same Java."""
    java: Any = spark._jvm.java  # type: ignore[union-attr]
    target = java.lang.Class.forName("java.io.FilterOutputStream").getDeclaredField("out")
    target.setAccessible(True)
    shown = target.get(java.lang.System.err)
    target.set(java.lang.System.err, java.io.OutputStream.nullOutputStream())
    try:
        yield
    finally:
        with suppress(Exception):
            for thread in java.lang.Thread.getAllStackTraces().keySet():
                if thread.getName().startswith("stderr reader for"):
                    thread.join(_LAST_WORDS)
            target.set(java.lang.System.err, shown)


def write_checksums(spark: SparkSession, wanted: bool) -> None:
    """Whether there is a file `.X.crc` beside each file X that this Java writes to a local disk.

    Each takes some milliseconds. The ledger tells whether Spark's files are as they were written, and Parquet
    has checksums of its own.
    """
    jvm: Any = spark._jvm
    configuration: Any = spark._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), configuration).setWriteChecksum(
        wanted
    )


def _ignore_hangup(spark: SparkSession) -> None:
    """A closed terminal tells all that run in it: whether and when to end is up to the driver."""
    signals: Any = spark._jvm.sun.misc  # type: ignore[union-attr]
    signals.Signal.handle(signals.Signal("HUP"), signals.SignalHandler.SIG_IGN)


def _ignore_end(spark: SparkSession) -> None:
    """When Java dies, PySpark's server for accumulators would print a stack trace of its own."""
    server: Any = spark.sparkContext._accumulatorServer
    shown = server.handle_error

    def handle_error(request: object, client: object) -> None:
        if not isinstance(sys.exc_info()[1], EOFError):
            shown(request, client)

    server.handle_error = handle_error


def is_running() -> bool:
    """Whether this process has a Spark already, whichever thread started it."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _cause(error: Exception) -> str:
    """Why Spark did not start. When Java ends before it answers, all that it says is on standard error."""
    text = reason(error).rstrip(".")
    if "JAVA_GATEWAY_EXITED" in str(error):
        with suppress(OSError):
            found = java.version()
            if not java.is_new_enough(found):
                found = found or "unknown"
                return f"it needs Java {java.OLDEST} or newer, and this is {found}. Do: {java.remedy()}"
    return f"{text}. `tidegate doctor --spark` looks for the cause"


def _settings(packages: Iterable[str], conf: Mapping[str, str]) -> dict[str, str]:
    """The defaults below the user's own; where both must hold, both."""
    from pyspark import __version__ as spark_version

    settings = {**_DEFAULTS, **conf}
    java = "spark.driver.extraJavaOptions"
    parts = (_DEFAULTS[java], class_archive.options(conf), conf.get(java, ""))
    settings[java] = " ".join(filter(None, parts))
    ours = {package.format(spark=spark_version) for package in packages}
    theirs = set(filter(None, conf.get("spark.jars.packages", "").split(",")))
    if ours:
        settings["spark.jars.packages"] = ",".join(sorted(ours | theirs))
        places = [_REPOSITORY.as_uri(), *filter(None, conf.get("spark.jars.repositories", "").split(","))]
        settings["spark.jars.repositories"] = ",".join(places)
    return settings


@contextmanager
def lent(conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """The session that this process has already, with the engine's settings until the block ends.

    Its master, memory and packages stay what they are.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    with changed(spark, {k: v for k, v in {**_DEFAULTS, **conf}.items() if spark.conf.isModifiable(k)}):
        yield spark


@contextmanager
def changed(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Other settings until the block ends. A streaming query keeps those that it was started with."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
