"""The Spark session that a pipeline runs in."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import SessionError
from tidegate.spark import class_archive, ivy, java, python
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
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # How soon a trigger without new rows is reported: that is how `until_done` sees the end.
    "spark.sql.streaming.noDataProgressEventInterval": "100",
    # Spark writes two small files per batch, and starts processes for them. By its other interface for files
    # these are 4 (chmod) instead of 10 (chmod, readlink), and it takes half as long.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # A file source writes down every file that it has ever seen each time it compacts its log: by default
    # with every tenth batch, which after a month of small batches is most of the work.
    "spark.sql.streaming.fileSource.log.compactInterval": "1000",
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
    if master.startswith("local[") and "," not in master:
        # Local Spark does not retry a failed task unless told how often.
        master = f"{master[:-1]},{_TASK_FAILURES}]"
    builder = SparkSession.builder.appName(name).master(master).config("spark.driver.memory", driver_memory)
    settings = _settings(packages, conf or {})
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with ivy.locked() if "spark.jars.packages" in settings else nullcontext():
            spark = builder.getOrCreate()
    except Exception as error:
        raise SessionError(f"Spark could not start on {master!r}: {_cause(error)}") from error
    _ignore_hangup(spark)
    return spark


def stop(spark: SparkSession) -> None:
    """Stop Spark. What its Python workers say of sockets that it has closed is not shown."""
    with ExitStack() as stack:
        with suppress(Exception):  # Java may be gone.
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


def _ignore_hangup(spark: SparkSession) -> None:
    """A closed terminal tells all that run in it: whether and when to end is up to the driver."""
    signals: Any = spark._jvm.sun.misc  # type: ignore[union-attr]
    signals.Signal.handle(signals.Signal("HUP"), signals.SignalHandler.SIG_IGN)


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
