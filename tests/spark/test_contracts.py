"""What the engine relies on of Spark's private parts, one test for each.

A test that fails after an upgrade of Spark tells what has changed; docs/reference/spark-internals.md tells
what it is needed for.
"""

# ruff: noqa: N802
# The tests are named after what they are about.

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import SparkConf
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from tests.cluster.kit import await_that
from tests.java import DRIVER_JAVA, SMALL
from tests.run.readings import sensors
from tests.security import ports
from tidegate.cluster.daemons import start_master, start_worker
from tidegate.errors import SinkError, TidegateError
from tidegate.sinks.data import parquet_form
from tidegate.sources.source import Limit, Position, Waiting
from tidegate.spark import authentication, class_archive, kafka_admin, session, standalone, stderr
from tidegate.spark.arrow_function import map_in_arrow
from tidegate.spark.callbacks import ensure_callbacks
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.spark.executors import (
    Executors,
    executor_hosts,
    executors_of,
    give_up,
    hosts_by_executor,
    rows_on,
)
from tidegate.spark.frames import compute, counted, int_array, merged
from tidegate.spark.listener import Report, drain_listener_bus, watching
from tidegate.spark.partial_aggregate import PreparedAggregate, within_partitions
from tidegate.spark.preferred_locations import PreferredLocations
from tidegate.spark.query import RunningQuery
from tidegate.spark.reasons import Mistake, mistake, reason
from tidegate.spark.row_size import _calls_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


# A query with a Python source of 13 rows and a source of three files, in two batches. The first takes 10
# rows and 1 file, and sets the limits of the second.


@dataclass
class Story:
    """What was seen of it."""

    checkpoint: Path
    run_id: str = ""
    rows: list[int] = field(default_factory=list)
    cuts: list[Any] = field(default_factory=list)
    """As the offset log had them in each batch."""
    observed: list[Any] = field(default_factory=list)
    planned: list[datetime | None] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    idle_reported: threading.Event = field(default_factory=threading.Event)

    def runs(self, run_id: str) -> bool:
        return run_id == self.run_id

    def progressed(self, report: Report) -> None:
        self.reports.append(report)

    def idle(self) -> None:
        self.idle_reported.set()

    def fail(self, failure: TidegateError, cause: Exception) -> None:
        raise failure from cause


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    from pyspark.sql import functions as F

    folder = tmp_path_factory.mktemp("contracts")
    texts = folder / "texts"
    texts.mkdir()
    for number in range(3):
        (texts / f"{number}.txt").write_text(f"line of {number}\n")
    rows = sensors(13).load(spark, parallelism=2, first_rows=10).selectExpr("cast(id as string) as value")
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(texts))
    stream = rows.observe("sensors", F.count("*").alias("rows")).union(
        lines.observe("files", F.count("*").alias("rows"))
    )
    stream = stream.observe("clock", F.max(F.unix_millis(F.current_timestamp())).alias("now"))
    story = Story(folder / "spark")
    started = threading.Event()

    def take(batch: DataFrame, batch_id: int) -> None:
        started.wait()
        story.rows.append(compute(batch))
        story.cuts.append(running.checkpoint.offsets(batch_id) or [])
        story.observed.append(running.observed())
        story.planned.append(running.checkpoint.planned_at(batch_id))
        story.waiting.append(running.waiting())
        story.partitions.append(batch.rdd.getNumPartitions())
        running.limit([Limit("rows", 3), Limit("files", 2)])
        running.split(3, by_limit=[0])

    with watching(spark, story):
        query = (
            stream.writeStream.foreachBatch(take).option("checkpointLocation", str(story.checkpoint)).start()
        )
        try:
            running = RunningQuery(spark, query, story.checkpoint)
            story.run_id = running.run_id
            started.set()
            assert story.idle_reported.wait(120), query.exception()
        finally:
            started.set()
            query.stop()
        drain_listener_bus(spark)
    return story


def test_contract_FileStreamSource_unreadFiles(story: Story) -> None:
    """The files that a batch has left for later, with their sizes."""
    assert story.waiting == [Waiting(2, 2 * len("line of 0\n")), Waiting(0, 0)]


def test_contract_fileSource_log_compactInterval(spark: SparkSession) -> None:
    """Spark knows the setting by which a file source writes down all files it has seen less often."""
    conf: Any = spark._jsparkSession
    interval = "spark.sql.streaming.fileSource.log.compactInterval"
    assert spark.conf.get(interval) == "1000"
    assert conf.sessionState().conf().fileSourceLogCompactInterval() == 1000


def test_contract_StreamExecution_lastExecution(story: Story) -> None:
    """The metrics observed in a batch are complete once its rows have been computed."""
    assert [(seen["sensors"], seen["files"]) for seen in story.observed] == [
        ({"rows": 10}, {"rows": 1}),
        ({"rows": 3}, {"rows": 2}),
    ]


def test_contract_CurrentBatchTimestamp(story: Story) -> None:
    """In a streaming query the current time is the one that the offset log has for the batch."""
    now = [datetime.fromtimestamp(seen["clock"]["now"] / 1000, UTC) for seen in story.observed]
    assert now == story.planned


def test_contract_StreamExecution_uniqueSources(story: Story) -> None:
    """A limit that is set while a batch runs counts for the next one, of a source of files here."""
    files = [CheckpointFiles(story.checkpoint).source_files(1, cut[1]) for cut in story.cuts]
    assert [len(taken) for taken in files] == [1, 2]


def test_contract_PythonStreamingSourceReadLimit(story: Story) -> None:
    """The reader of a Python source gets the limit that was set, and the number of partitions with it."""
    assert story.cuts[1][0]["offset"] - story.cuts[0][0]["offset"] == 3
    assert story.partitions == [2 + 1, 3 + 2]


def test_contract_KafkaOffsetRangeCalculator_minPartitions(spark: SparkSession) -> None:
    """The fields that say into how many ranges a Kafka source splits a cut; that they count for the next
    batch of a running query is tried with a broker, in tests/rescale/test_sources.py."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    package = "org.apache.spark.sql.kafka010"
    reader = loader.loadClass(f"{package}.KafkaMicroBatchStream").getDeclaredField("kafkaOffsetReader")
    assert reader.getType().getSimpleName() == "KafkaOffsetReader"
    for name in ("KafkaOffsetReaderAdmin", "KafkaOffsetReaderConsumer"):
        kind = loader.loadClass(f"{package}.{name}")
        calculator = kind.getDeclaredField("rangeCalculator").getType()
        for each in (kind, calculator):
            assert each.getDeclaredField("minPartitions").getType().getSimpleName() == "Option"


def test_contract_PythonStreamingQueryListenerWrapper(story: Story) -> None:
    """It calls a Python object with each batch that Spark has committed, and when nothing is left to do."""
    assert [report.batch_id for report in story.reports] == [0, 1]
    assert {"triggerExecution", "latestOffset", "queryPlanning", "walCommit", "commitOffsets"} <= {
        *story.reports[0].seconds
    }
    first, second = (report.positions[0] for report in story.reports)
    assert (first.start, first.end["offset"]) == (None, 10)
    assert second == Position(first.end, {**first.end, "offset": 13}, {**first.end, "offset": 13})
    assert story.idle_reported.is_set()


def test_contract_java_archives_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's JVM writes an archive of its classes while it runs, and one that does not fit is passed over
    in silence."""
    from pyspark import java_gateway

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = class_archive.archive()
    assert place is not None
    recording = class_archive.options({})
    conf = SparkConf(loadDefaults=False).set(DRIVER_JAVA, f"{SMALL} {recording}")
    gateway: Any = java_gateway.launch_gateway(conf)  # type: ignore[no-untyped-call]
    try:
        place.parent.mkdir(parents=True)
        class_archive.write(gateway, place)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
    assert place.stat().st_size > 1_000_000
    using = class_archive.options({})
    assert using == class_archive.existing() != recording
    place.write_bytes(b"damaged")
    said = subprocess.run(["java", *using.split(), "-version"], capture_output=True, text=True, check=True)
    assert said.stdout == ""


def test_contract_ensure_callback_server_started(story: Story, spark: SparkSession) -> None:
    """PySpark has a server on which Java reaches Python, and starts only one; nobody else reaches it."""
    gateway: Any = spark.sparkContext._gateway
    found = set()
    for _ in range(2):
        ensure_callbacks(spark)
        found.add(gateway.get_callback_server().get_listening_port())
    (number,) = found
    assert ports.said(ports.Port("tcp", "127.0.0.1", number, ""), ports.PROXY) == b""
    assert story.reports, "but Java does"


def test_contract_LiveListenerBus_waitUntilEmpty(story: Story, spark: SparkSession) -> None:
    """When it returns, listeners have been told of everything, such as the last batch of a stopped query."""
    context: Any = spark.sparkContext._jsc
    assert context.sc().listenerBus().getClass().getSimpleName() == "LiveListenerBus"
    assert len(story.reports) == len(story.rows)


def test_contract_OffsetSeqLog_files(story: Story) -> None:
    """offsets/N: the second line tells when the batch was planned, and each further one is an offset."""
    files = CheckpointFiles(story.checkpoint)
    planned = [files.planned_at(number) for number in (0, 1, 2)]
    assert planned[:2] == story.planned, "it is there while the batch runs"
    assert planned[2] is None
    assert planned[0] is not None
    assert planned[1] is not None
    assert datetime(2024, 1, 1, tzinfo=UTC) < planned[0] < planned[1] <= datetime.now(UTC)
    assert [[cut[0]["offset"], cut[1]["logOffset"]] for cut in story.cuts] == [[10, 0], [13, 1]]
    assert [files.offsets(number) for number in (0, 1, 2)] == [*story.cuts, None]
    assert (files.newest("offsets"), files.newest("commits")) == (1, 1)


def test_contract_FileStreamSourceLog_files(story: Story) -> None:
    """sources/I/N: the files of the Nth offset of a file source, an entry to a line."""
    files = CheckpointFiles(story.checkpoint)
    assert files.missing_log(1, story.cuts[1][1]) is None
    taken = files.source_files(1, story.cuts[1][1])
    assert all(re.fullmatch(r"file:/.*/\d\.txt", path) for path in taken)


def test_contract_CommitLog_files(story: Story, spark: SparkSession, tmp_path: Path) -> None:
    """commits/N and metadata: Spark goes on from a copy with the last two batches, after the last of them.

    offsets/N: a batch that is planned there with the cut of the one before runs first, without rows."""
    copy = tmp_path / "spark"
    CheckpointFiles(story.checkpoint).copy(copy, 1, settle=0)
    assert sorted(path.name for path in (copy / "commits").iterdir() if path.name.isdigit()) == ["0", "1"]
    ids = [json.loads((folder / "metadata").read_bytes())["id"] for folder in (story.checkpoint, copy)]
    assert ids[0] != ids[1]
    before = CheckpointFiles(copy).planned_at(1)
    assert [CheckpointFiles(copy).plan_empty(2) for _ in range(2)] == [True, False]
    planned = CheckpointFiles(copy).planned_at(2)
    assert before is not None
    assert planned is not None
    assert planned > before
    rows = sensors(15).load(spark, parallelism=2, first_rows=10).selectExpr("cast(id as string) as value")
    lines = spark.readStream.text(str(story.checkpoint.parent / "texts"))
    taken: list[tuple[int, int]] = []
    query = (
        rows.union(lines)
        .writeStream.foreachBatch(lambda batch, batch_id: taken.append((batch_id, batch.count())))
        .option("checkpointLocation", str(copy))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert str(query.id) == ids[1]
    assert taken == [(2, 0), (3, 2)]


def test_contract_sun_misc_Signal(spark: SparkSession) -> None:
    """Java ignores SIGHUP."""
    jvm: Any = spark._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGHUP)
    assert spark.range(3).count() == 3


def test_contract_launch_gateway(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """Spark's Java is a process whose standard error goes through the filter."""
    from pyspark import SparkContext

    assert SparkContext._gateway.proc.poll() is None  # type: ignore[union-attr]
    java: Any = spark._jvm.java  # type: ignore[union-attr]
    for line in ("WARNING: Using incubator modules: some", "news"):
        java.lang.System.err.println(line)
    told = io.StringIO()

    def arrived() -> bool:
        told.write(capfd.readouterr().err)
        return "news\n" in told.getvalue()

    await_that(arrived, "Java's news is shown")
    assert "incubator" not in told.getvalue()


def test_contract_py4j_root_logger(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """A Ctrl-C during a call into Java raises; what Py4J logs of it at the root is left out."""
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        spark._jvm.java.lang.Thread.sleep(5_000)  # type: ignore[union-attr]
    assert caplog.text == ""
    assert spark.range(3).count() == 3
    # This thread has another one in Java from now on.
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    sessions.setActiveSession(spark._jsparkSession)


def test_contract_accumulator_server(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """PySpark's server for accumulators tells by `handle_error` that Java has closed its socket."""
    server: Any = spark.sparkContext._accumulatorServer
    for error in (EOFError(), ValueError("other")):
        try:
            raise error
        except Exception:
            server.handle_error(None, "java")
    told = capsys.readouterr().err
    assert ("EOFError" in told, "other" in told) == (False, True)


def test_contract_daemon_idle_worker() -> None:
    """What PySpark's daemon prints of a worker whose socket Spark has closed is known to the filter."""
    lines, show = [], stderr.Filter()
    with (
        # The name of a socket may have 107 bytes.
        TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"],
            env={
                **os.environ,
                "PYTHON_UNIX_DOMAIN_ENABLED": "true",
                "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
                "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as daemon,
    ):
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        place = daemon.stdout.read(int.from_bytes(daemon.stdout.read(4), "big"))
        with socket.socket(socket.AF_UNIX) as worker:
            worker.connect(place.decode())
            assert worker.recv(4)  # its process id: it waits for a task
        for line in daemon.stderr:
            lines.append(line.decode().rstrip("\n"))
            if lines[-1].startswith("BrokenPipeError"):
                break
    assert len(lines) > 1
    assert [each for line in lines for each in show(line)] == []


def test_contract_FilterOutputStream_out(spark: SparkSession) -> None:
    """What Java writes to standard error can be thrown away for a while."""
    java: Any = spark._jvm.java  # type: ignore[union-attr]
    target = java.lang.Class.forName("java.io.FilterOutputStream").getDeclaredField("out")
    target.setAccessible(True)
    before, written = target.get(java.lang.System.err), java.io.ByteArrayOutputStream()
    try:
        target.set(java.lang.System.err, written)
        java.lang.System.err.print("shown")
        with session._muted(spark):
            java.lang.System.err.print("muted")
        java.lang.System.err.print(" again")
    finally:
        target.set(java.lang.System.err, before)
    assert written.toString() == "shown again"


def test_contract_stderr_reader(spark: SparkSession) -> None:
    """A thread of this name hands on what Python workers write to standard error."""
    spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
    threads = spark._jvm.java.lang.Thread.getAllStackTraces().keySet()  # type: ignore[union-attr]
    assert any(thread.getName().startswith("stderr reader for") for thread in threads)


def test_contract_FileSystemBasedCheckpointFileManager(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes its checkpoints by the class that the engine's settings name."""
    jvm: Any = spark._jvm
    checkpointing = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    java: Any = spark._jsparkSession
    conf = java.sessionState().newHadoopConf()
    manager = checkpointing.CheckpointFileManager.create(jvm.org.apache.hadoop.fs.Path(str(tmp_path)), conf)
    assert manager.getClass().getSimpleName() == "FileSystemBasedCheckpointFileManager"


def test_contract_setWriteChecksum(spark: SparkSession, tmp_path: Path) -> None:
    """Neither Spark's checkpoints nor its outputs have files with checksums beside them."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    output = rows.writeStream.format("json").option("path", str(tmp_path / "rows"))
    with ExitStack() as stack:
        query = output.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        stack.callback(query.stop)
        await_that(lambda: (tmp_path / "checkpoint/commits/1").exists(), "two batches are over")
    assert list(tmp_path.rglob("*.json"))
    assert list(tmp_path.rglob(".*.crc")) == []


# DataFrames.


def test_contract_QueryExecution_toRdd(spark: SparkSession, tmp_path: Path) -> None:
    """Counting the rows of the plan computes every column of every one."""
    folder = str(tmp_path)

    def note(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (Path(folder) / f"{batch.num_rows}-{batch['id'][0]}").touch()
            yield batch

    assert compute(spark.range(0, 100, 1, 4).mapInArrow(note, "id long")) == 100
    assert sum(int(path.name.partition("-")[0]) for path in tmp_path.iterdir()) == 100


def test_contract_Dataset_mapInArrow(spark: SparkSession) -> None:
    """All columns are handed over, whatever their names, and a function may use a broadcast value."""
    factor = spark.sparkContext.broadcast(10)

    def times(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema.names == ["a.b", "`"]
            yield pa.RecordBatch.from_arrays([pc.multiply(batch["a.b"], factor.value)], ["n"])

    rows = spark.range(3).selectExpr("id as `a.b`", "cast(id as string) as ````")
    schema = StructType([StructField("n", LongType())])
    for _ in range(2):  # The second time with what is kept of the first.
        assert [row.n for row in map_in_arrow(rows, rows.columns, times, schema).collect()] == [0, 10, 20]


def test_contract_Observation_future(spark: SparkSession) -> None:
    """It is complete after a job has read the rows, and never without one."""
    rows, count = counted(spark.range(7))
    assert count() == 0
    rows.collect()
    assert count() == 7


def test_contract_functions_lit(spark: SparkSession) -> None:
    """A Java array becomes one literal, whatever its length."""
    numbers = [5, -1, 2**31 - 1]
    frame = spark.range(3).select(int_array(numbers)[0], int_array(numbers).alias("all"))
    assert frame.first() == (5, numbers)
    jdf: Any = spark.range(1).select(int_array(range(1000)).alias("all"))._jdf
    expressions = jdf.queryExecution().analyzed().expressions()
    assert expressions.apply(0).child().getClass().getSimpleName() == "Literal"


def test_contract_LogicalRDD(spark: SparkSession) -> None:
    """A scan that claims to be a single partition is aggregated without a shuffle, each one by itself."""
    rows = spark.range(0, 100, 1, 4).selectExpr("id % 5 as key", "id")
    for frame in (rows, rows.persist()):
        grouped = within_partitions(frame).groupBy("key").count()
        jdf: Any = grouped._jdf
        assert "Exchange" not in jdf.queryExecution().executedPlan().toString()
        assert sorted(map(tuple, grouped.collect())) == [(key, 5) for key in range(5) for _ in range(4)]
    rows.unpersist()


def test_contract_TreeNode_withNewChildren(spark: SparkSession) -> None:
    """What was made of one scan is made of another, without analysing it anew."""

    def rows(count: int) -> DataFrame:
        return spark.range(0, count, 1, 2).selectExpr("id % 5 as key", "id")

    def made(frame: DataFrame) -> DataFrame:
        counts = within_partitions(frame).groupBy("key").agg(F.sum("id").alias("sum"))
        return counts.select("*", F.spark_partition_id().alias("of")).repartitionById(3, "of")

    prepared = PreparedAggregate(made(rows(100)))
    for count in (10, 1000):
        found = prepared.of(rows(count))
        assert found.collect() == made(rows(count)).collect()
        assert found.rdd.getNumPartitions() == 3


def test_contract_batch_partitions(spark: SparkSession) -> None:
    """The rows of an RDD, as Spark hands over a batch, come in as many partitions as are asked for or fewer,
    all of them and without a shuffle."""
    rows = within_partitions(spark.range(0, 100, 1, 5))
    assert merged(rows, 5) is rows
    few = merged(rows, 2)
    assert few.rdd.getNumPartitions() == 2
    assert sorted(row.id for row in few.collect()) == [*range(100)]
    assert "Exchange" not in few._jdf.queryExecution().executedPlan().toString()


def test_contract_SQLPartitioningAwareUnionRDD(spark: SparkSession) -> None:
    """Each partition prefers the host that most of its rows lie on, however many executors hold a share of
    what was shuffled; rows and partitions stay what they are, and the number of a partition is that of its
    task."""
    rows = spark.range(0, 300, 1, 2).selectExpr("id % 3 as part", "id")
    shuffled = rows.repartitionById(3, F.col("part").cast("int"))
    placed = PreferredLocations(spark, ("one", "", "two")).of(shuffled)
    assert places(placed)[::2] == ["one", "two"]
    # A local Spark may wait for ever for hosts that do not exist: only on others are tasks run.
    (host,) = executor_hosts(spark)
    placed = PreferredLocations(spark, (host, "", host)).of(shuffled)

    def numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        number = TaskContext.get().partitionId()  # type: ignore[union-attr]
        for batch in batches:
            yield pa.RecordBatch.from_arrays(
                [pa.array([number] * len(batch)), *batch.columns], ["n", "p", "id"]
            )

    found = placed.mapInArrow(numbered, "n long, p long, id long").collect()
    assert sorted(row.id for row in found) == [*range(300)]
    assert all(row.n == row.p for row in found)


def test_contract_ParallelCollectionRDD(spark: SparkSession) -> None:
    """It may have partitions without rows that prefer a host as often as it is named."""
    empty = PreferredLocations(spark, ("one", "", "two"))._empty.head()
    context: Any = spark._jsparkSession.sparkContext()
    found = [str(context.getPreferredLocs(empty, part).mkString(" ")).split() for part in range(3)]
    assert [len(names) for names in found] == [6, 0, 6]
    (host,) = executor_hosts(spark)
    assert PreferredLocations(spark, (host, "", host))._empty.head().count() == 0


def test_contract_SparkContext_getExecutorMemoryStatus(spark: SparkSession) -> None:
    """Its keys are the hosts and ports of the executors and of the driver."""
    assert executor_hosts(spark) == {spark.conf.get("spark.driver.host")}


def test_contract_written_files(spark: SparkSession, tmp_path: Path) -> None:
    """A write leaves files named `part-*` in its folder; Parquet's footers hold Spark's schema."""
    rows = spark.range(0, 6, 1, 2).selectExpr("id", "timestamp_seconds(id) as at")
    for kind in ("parquet", "json"):
        rows.write.format(kind).save(str(tmp_path / kind))
        parts = [path for path in (tmp_path / kind).iterdir() if path.name[0] not in "._"]
        assert len(parts) == 2
        assert all(path.match(f"part-*.{kind}") for path in parts)
    text = pq.read_schema(next((tmp_path / "parquet").glob("part-*"))).metadata[parquet_form.SPARK_SCHEMA]
    assert StructType.fromJson(json.loads(text)).simpleString() == "struct<id:bigint,at:timestamp>"


def test_contract_SQLConf_contains(spark: SparkSession) -> None:
    """It tells a setting that was made from one that has its default."""
    java: Any = spark._jsparkSession
    assert not java.sessionState().conf().contains(MOST_BYTES)
    with session.changed(spark, {MOST_BYTES: "1000"}):
        assert java.sessionState().conf().contains(MOST_BYTES)


def test_contract_TreePattern_PYTHON_UDF(spark: SparkSession) -> None:
    """It finds Python functions in the expressions of a plan; `mapInArrow` is a node of its own."""
    from pyspark.sql import functions as F

    rows = spark.range(3)
    assert not _calls_python(rows.mapInArrow(lambda batches: batches, "id long").filter("id > 1"))
    assert _calls_python(rows.select(F.udf(lambda n: n, "long")("id").alias("n")).filter("n > 1"))


def test_contract_arrow_maxBytesPerBatch(spark: SparkSession) -> None:
    """Batches for Python are cut by bytes below the largest limit, and by rows alone at it."""

    def sizes(limit: str) -> list[int]:
        def size(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

        with session.changed(spark, {MOST_BYTES: limit}):
            return [row.rows for row in spark.range(0, 1000, 1, 1).mapInArrow(size, "rows long").collect()]

    assert sizes(str(2**31 - 1)) == [1000]
    assert len(sizes("1000")) > 1


def test_contract_internal_settings(spark: SparkSession) -> None:
    """Spark knows every setting of its SQL engine that ours changes."""
    keys = [key for key in session._DEFAULTS if key.startswith("spark.sql.") and not key.endswith("Class")]
    assert [key for key in keys if not spark.conf.isModifiable(key)] == []


def test_contract_unix_domain_sockets(spark: SparkSession) -> None:
    """Python workers talk to Java over Unix sockets, as the engine's settings say."""

    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert os.environ["PYTHON_UNIX_DOMAIN_ENABLED"].lower() == "true"
            yield batch

    assert spark.range(1).mapInArrow(told, "id bigint").count() == 1


def test_contract_acero_alignment(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """Arrow says nothing of columns that do not begin where it would like them to."""

    def group(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            unaligned = pa.py_buffer(bytes(8 * 100 + 1))[1:]
            numbers = pa.Array.from_buffers(pa.int64(), 100, [None, unaligned])
            pa.table({"n": numbers}).group_by("n").aggregate([("n", "count")])
            os.write(2, b"grouped\n")
            yield batch

    assert spark.range(1).mapInArrow(group, "id bigint").count() == 1
    told = io.StringIO()

    def arrived() -> bool:
        told.write(capfd.readouterr().err)
        return "grouped" in told.getvalue()

    await_that(arrived, "what the worker prints is shown")
    assert "aligned" not in told.getvalue()


def test_contract_pandas_types(spark: SparkSession) -> None:
    """Spark's types become Arrow's and come back; times are in microseconds and in the given zone."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    columns = "1 a, 'x' b, 1.5d c, timestamp'2024-01-01' d, array(1) e, named_struct('g', 1L) f"
    schema = spark.sql(f"select {columns}").schema
    arrow = to_arrow_schema(schema, timezone="UTC")
    assert arrow.field("d").type == pa.timestamp("us", tz="UTC")
    assert from_arrow_schema(arrow).simpleString() == schema.simpleString()


# The session and its executors.


def test_contract_SparkContext_active_spark_context(spark: SparkSession) -> None:
    """It is there for every thread of the process."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(session.is_running()))
    thread.start()
    thread.join()
    assert found == [True]


def test_contract_SparkContext_getExecutorIds(spark: SparkSession) -> None:
    """The driver of a local session is not among them."""
    assert Executors(spark).ids() == ()


def test_contract_AppStatusStore_executorList(spark: SparkSession) -> None:
    """It lists executors by their ids, the driver among them, also those that have ended."""
    assert Executors(spark).ever_registered() == {"driver"}
    assert hosts_by_executor(spark) == {"driver": spark.conf.get("spark.driver.host")}


def test_contract_AppStatusStore_executorList_before_its_block_manager(spark: SparkSession) -> None:
    """An executor that has just come is listed with its host alone."""
    context, jvm = spark._jsc.sc(), spark._jvm
    assert jvm is not None
    of_spark, of_cluster = jvm.org.apache.spark.scheduler, jvm.org.apache.spark.scheduler.cluster
    none = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())
    info = of_cluster.ExecutorInfo("10.0.0.7", 1, none)
    context.listenerBus().post(of_spark.SparkListenerExecutorAdded(1, "7", info))
    try:
        drain_listener_bus(spark)
        assert hosts_by_executor(spark) == {"7": "10.0.0.7"}
    finally:
        context.listenerBus().post(of_spark.SparkListenerExecutorRemoved(2, "7", "gone"))
        drain_listener_bus(spark)
    assert set(hosts_by_executor(spark)) == {"driver"}


def test_contract_AppStatusStore_executorSummary(spark: SparkSession) -> None:
    """It has a summary of a stage by the ids of the executors that ran its tasks."""
    spark.sparkContext.setJobGroup("summary", "a job to find again")
    spark.range(3).collect()
    assert executors_of(spark, "summary") == {"driver"}
    assert executors_of(spark, "another") == frozenset()


def test_contract_SparkContext_requestTotalExecutors(spark: SparkSession) -> None:
    """It takes a number, how many tasks are local to hosts, and these hosts; a local session ignores it."""
    Executors(spark).request_total(3)
    assert _signatures(spark, "org.apache.spark.SparkContext", "requestTotalExecutors") == {
        ("int", "int", "scala.collection.immutable.Map")
    }


def test_contract_CoarseGrainedSchedulerBackend_decommissionExecutor(spark: SparkSession) -> None:
    """What it does is seen on a cluster: tests/cluster/test_local.py and test_standalone.py."""
    backend = "org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend"
    info = "org.apache.spark.scheduler.ExecutorDecommissionInfo"
    assert _signatures(spark, backend, "decommissionExecutor") == {
        ("java.lang.String", info, "boolean", "boolean")
    }
    context: Any = spark.sparkContext._jsc
    assert context.sc().schedulerBackend() is not None


def test_contract_CoarseGrainedSchedulerBackend_removeExecutor(spark: SparkSession) -> None:
    """What it does is seen in the lab, when a host dies: tests/lab/test_pipelines.py."""
    backend = "org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend"
    why = "org.apache.spark.scheduler.ExecutorLossReason"
    assert ("java.lang.String", why) in _signatures(spark, backend, "removeExecutor")
    assert _signatures(spark, "org.apache.spark.SparkContext", "killAndReplaceExecutor") == {
        ("java.lang.String",)
    }


def test_contract_ExecutorProcessLost(spark: SparkSession) -> None:
    """It is made of a message, the host that goes with the executor, and whether that was its own fault."""
    jvm: Any = spark._jvm
    lost = jvm.org.apache.spark.scheduler.ExecutorProcessLost("why", jvm.scala.Option.apply("host"), False)
    assert (lost.message(), lost.workerHost().get(), lost.causedByApp()) == ("why", "host", False)
    assert give_up(spark, "a host without executors") == []


def test_contract_ExecutorDecommissionInfo(spark: SparkSession) -> None:
    """It is made of a message and, optionally, the host that goes with the executor."""
    jvm: Any = spark._jvm
    info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("why", jvm.scala.Option.empty())
    assert info.message() == "why"
    assert info.workerHost().isEmpty()


def test_contract_ExecutorCacheTaskLocation(spark: SparkSession) -> None:
    """A place that is written `executor_HOST_ID` means that executor, not its host."""
    jvm: Any = spark._jvm
    module = getattr(getattr(jvm.org.apache.spark.scheduler, "TaskLocation$"), "MODULE$")
    location = module.apply("executor_nowhere_7")
    assert location.getClass().getSimpleName() == "ExecutorCacheTaskLocation"
    assert (location.host(), location.executorId()) == ("nowhere", "7")


def test_contract_SparkContext_makeRDD(spark: SparkSession) -> None:
    """Each row is a partition of its own, with the places that it prefers."""
    frame = rows_on(spark, "7", 3)
    assert [row[0] for row in frame.collect()] == ["0", "1", "2"]
    assert places(frame) == ["executor_nowhere_7"] * 3


def places(frame: DataFrame) -> list[str]:
    """What each of three partitions prefers."""
    jdf: Any = frame._jdf
    rdd, context = jdf.queryExecution().toRdd(), jdf.sparkSession().sparkContext()
    return [str(context.getPreferredLocs(rdd, part).mkString(" ")) for part in range(3)]


# What is outside of the session: its processes, logs and messages.


def test_contract_deploy_Master_and_Worker(tmp_path: Path) -> None:
    """Command lines start them, and their logs tell when the master is ready and a worker known."""
    with ExitStack() as stack:
        master, address = start_master(tmp_path / "master")
        stack.callback(master.end)
        assert re.fullmatch(r"spark://127\.0\.0\.1:\d+", address)
        worker = start_worker(tmp_path / "worker", address, cores=1, memory="512m")
        stack.callback(worker.end)
        await_that(lambda: f"Successfully registered with master {address}" in worker.log(), "it registers")
        assert standalone.launched_executors(tmp_path / "worker" / "work", "app-1") == frozenset()


def test_contract_deploy_authentication(tmp_path: Path) -> None:
    """With the settings of the file, a master turns away who has not its secret, and shows nobody its page;
    a worker with the same file gets in."""
    properties = tmp_path / "properties"
    authentication.write_properties(properties, "the secret")
    with ExitStack() as stack:
        master, address = start_master(tmp_path / "master", properties=properties)
        stack.callback(master.end)
        known = start_worker(tmp_path / "known", address, cores=1, memory="512m", properties=properties)
        stack.callback(known.end)
        await_that(lambda: f"Successfully registered with master {address}" in known.log(), "it registers")
        told = {ports.refusal(port) for port in ports.ports([master.pid])}
        assert told == {"web page: 403", "Spark: no secret"}
        assert "the secret" not in master.log() + known.log() + ports.command(master.pid)


def test_contract_JavaModuleOptions(spark: SparkSession) -> None:
    """Java opens to masters and workers what Spark wants to have opened."""
    jvm: Any = spark._jvm
    options = jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptionArray()
    wanted = {option for option in options if option.startswith("--add-opens=")}
    assert {
        f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in standalone._OPENED.split()
    } <= wanted


@pytest.mark.parametrize("settings", ["log4j2.properties", "standalone.log4j2.properties"])
def test_contract_log4j2_names(spark: SparkSession, settings: str) -> None:
    """Every logger that is set has the name of a class or a package of Spark."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    text = (session.LOGGING.parent / settings).read_text()
    names = re.findall(r"^logger\.\w+\.name = (\S+)$", text, re.MULTILINE)
    assert names
    for name in names:
        place = name.replace(".", "/")
        assert loader.getResource(f"{place}.class") or loader.getResource(place), name


def test_contract_AdminClient(spark: SparkSession) -> None:
    """The Kafka connector brings it; with a broker it is tried in tests/sinks/test_kafka.py."""
    client = {
        "bootstrap.servers": "127.0.0.1:1",
        "default.api.timeout.ms": "500",
        "request.timeout.ms": "250",
    }
    with pytest.raises(SinkError, match="TimeoutException"):
        kafka_admin.ensure_topic(spark, client, "topic", partitions=None)


def test_contract_error_messages(spark: SparkSession) -> None:
    """Errors of Python workers, of Spark's analyser and of Java each have the line that people need."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise LookupError("no such sensor")

    jvm: Any = spark._jvm
    with pytest.raises(Exception, match="no such sensor") as in_worker:
        spark.range(1).mapInArrow(fail, "id long").collect()
    assert reason(in_worker.value) == "LookupError: no such sensor"
    with pytest.raises(Exception, match="absent") as in_analyser:
        spark.range(1).select("absent")
    assert reason(in_analyser.value).startswith(
        "A column, variable, or function parameter with name `absent`"
    )
    with pytest.raises(Exception, match="An error occurred") as in_java:
        jvm.java.util.Optional.empty().get()
    assert reason(in_java.value) == "No value present"
    full = jvm.java.lang.IllegalStateException(
        "Task failed", jvm.java.io.IOException("No space left on device")
    )
    with pytest.raises(Exception, match="An error occurred") as caused:
        jvm.java.util.concurrent.CompletableFuture.failedFuture(full).get()
    assert reason(caused.value).startswith("Task failed: No space left on device; free some space")


def test_contract_mistakes(spark: SparkSession) -> None:
    """By its error an expression or a function that cannot work is told from a worker that was lost."""
    rows, udf = (
        spark.range(1).select(F.lit("one").alias("name")),
        F.udf(lambda text: 1 // len(text[9:]), "int"),
    )

    def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    def found(frame: DataFrame) -> Mistake | None:
        with pytest.raises(Exception, match=r".") as caught:
            frame.collect()
        return mistake(caught.value)

    by_text = found(rows.selectExpr("1 + cast(name as int) as n"))
    assert by_text is not None
    assert by_text.expression == "cast(name as int)"
    assert by_text.reason.startswith("The value 'one' of the type")
    by_column = found(rows.select(F.col("name").cast("int")))
    assert by_column is not None
    assert re.search(r"\(in .*test_contracts.py:\d+\)$", by_column.reason)
    in_function = found(rows.select(udf("name")))
    assert in_function is not None
    assert in_function.reason.startswith("ZeroDivisionError: ")
    assert re.search(r"\(in .*test_contracts.py:\d+\)$", in_function.reason)
    assert found(rows.mapInArrow(die, "name string")) is None


def test_contract_QueryContextLogger(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """The loggers to which PySpark writes each wrong expression, with the whole stack, are silent."""
    rows = spark.range(1)
    with pytest.raises(AnalysisException, match="absent"):
        rows.select("absent")
    with pytest.raises(AnalysisException, match="absent"):
        rows.selectExpr("absent + 1")
    assert "absent" not in capfd.readouterr().err


# The rule itself.

PRIVATE = re.compile(
    r"\b_(jvm|jsc|jdf|jsparkSession|jsqm|jsq|jconf|jo|jc|jrdd|jreader|jwrite|gateway)\b|SparkContext\._"
    r"|\bpy4j\b|\bjava_gateway\b|\borg\.apache\.(spark(?!\.sql\.parquet)|kafka)\."
    # The files of Spark's own checkpoint.
    r"|/ \"(offsets|commits)\"|batchTimestampMs|logOffset"
)


def test_only_the_folder_spark_uses_private_parts() -> None:
    package = ROOT / "src" / "tidegate"
    # The simulation plays Spark, with files like its own.
    rooms = {package / "spark", package / "sim"}
    others = [path for path in package.rglob("*.py") if path.parent not in rooms]
    assert [str(path) for path in others if PRIVATE.search(path.read_text())] == []


def test_the_documentation_lists_every_contract() -> None:
    page = (ROOT / "docs" / "reference" / "spark-internals.md").read_text()
    listed = re.findall(r"`(test_contract_\w+)`", page)
    defined = re.findall(r"^def (test_contract_\w+)\(", Path(__file__).read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(defined)
    modules = {path.name for path in session.LOGGING.parent.glob("*.py") if PRIVATE.search(path.read_text())}
    assert modules <= set(re.findall(r"`(\w+\.py)`", page))


def _signatures(spark: SparkSession, name: str, method: str) -> set[tuple[str, ...]]:
    """The types of what a public method of a class takes."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    methods = jvm.java.lang.Class.forName(name, False, loader).getMethods()
    return {
        tuple(kind.getName() for kind in one.getParameterTypes())
        for one in methods
        if one.getName() == method
    }
