"""Rescales of the parallelism: sources are read in as many tasks, and no row is lost or comes twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

import tidegate as tg
from tests.conftest import Run
from tests.run.readings import read, rows_of, sensors
from tests.run.steering import MANY, Steering, nothing, settings
from tidegate.control.client import ControlClient
from tidegate.errors import BatchError
from tidegate.ledger.ledger import Ledger
from tidegate.rescale.model import Ask
from tidegate.rescale.route import Route
from tidegate.sources.files import Format
from tidegate.sources.sensors import SCHEMA
from tidegate.spark.checkpoint_files import CheckpointFiles
from tidegate.testing import faults
from tidegate.testing.faults import Fault

pytestmark = pytest.mark.spark


def seen(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the batch that they are in and the task that took them."""
    task = TaskContext.get()
    assert task is not None
    number = int(task.getLocalProperty("streaming.sql.batchId") or -1)
    for name, value in (("batch", number), ("task", task.partitionId())):
        batch = batch.append_column(name, pa.array([value] * batch.num_rows, pa.int64()))
    return batch


def tasks(rows: list[dict[str, Any]]) -> dict[int, int]:
    """Batch -> tasks that took rows of it."""
    pairs = {(row["batch"], row["task"]) for row in rows}
    return dict(sorted(Counter(batch for batch, _ in pairs).items()))


def scale(parallelism: int) -> Callable[[ControlClient], object]:
    return lambda client: client.apply(Ask(parallelism=parallelism))


def assert_followed(found: dict[int, int], steering: Steering, *asked: int) -> None:
    """From the batch after that of the switch on, there are as many tasks as asked for."""
    assert not steering.refused
    assert [record.parallelism[1] for record in steering.records] == [*asked[1:]]
    assert [record.phase for record in steering.records] == ["settled"] * len(asked[1:])
    firsts = [0, *(record.first_batch or 0 for record in steering.records), max(found) + 1]
    for number, (first, end) in enumerate(pairwise(firsts)):
        settled = {found[batch] for batch in range(first + (number > 0), end) if batch in found}
        assert settled == {asked[number]}, (found, firsts)


def pipeline(source: tg.sources.Sensors, out: Path, name: str = "map") -> tg.Pipeline:
    """Readings of sensors, with batch and task."""
    p = tg.Pipeline(name)
    rows = p.source(source).map_arrow(seen, f"{SCHEMA}, batch bigint, task bigint")
    rows.sink(tg.sinks.Files(out))
    return p


def assert_all_sent(out: list[dict[str, Any]], source: tg.sources.Sensors, rows: int) -> None:
    """The first `rows` rows of the sensors, each once."""
    plain = [(row["timestamp"], row["id"], row["value"]) for row in out]
    assert sorted(plain) == [(row["timestamp"], row["id"], row["value"]) for row in rows_of(source, rows)]


def test_sensors(run: Run, tmp_path: Path) -> None:
    source = sensors(MANY)
    steering = Steering(tmp_path / "checkpoint", [scale(5), nothing, scale(1), nothing])
    run(pipeline(source, tmp_path / "out"), listeners=[steering], **settings(engine__parallelism=2))
    out = read(tmp_path / "out")
    assert_followed(tasks(out), steering, 2, 5, 1)
    assert_all_sent(out, source, steering.rows)


def test_sensors_before_a_keyed_step_and_without_limits(run: Run, tmp_path: Path) -> None:
    p = tg.Pipeline("keyed")
    rows = p.source(tg.sources.Sensors(rate=20_000)).map_arrow(seen, f"{SCHEMA}, batch bigint, task bigint")
    rows.key_by("batch", "task").aggregate(n=tg.agg.count()).sink(tg.sinks.Files(tmp_path / "out"))
    steering = Steering(tmp_path / "checkpoint", [scale(5), nothing, scale(1), nothing])
    usual = settings(engine__parallelism=2, state__nodes=1, admission__enabled=False)
    run(p, listeners=[steering], **usual)
    out = read(tmp_path / "out")
    # By the clock, the first batch may have too few rows for two tasks.
    assert_followed({batch: number for batch, number in tasks(out).items() if batch}, steering, 2, 5, 1)
    assert sum(row["n"] for row in out) == steering.rows


def test_the_parallelism_outlives_a_restart(run: Run, tmp_path: Path) -> None:
    """Until another one is configured."""
    source, rows, found = sensors(MANY), 0, []
    for acts, configured in (([scale(3)], 2), ([nothing], 2), ([nothing], 4)):
        steering = Steering(tmp_path / "checkpoint", acts)
        p = pipeline(source, tmp_path / "out")
        _, told = run(p, listeners=[steering], **settings(engine__parallelism=configured))
        rows += steering.rows
        found.append({batch.batch_id for batch in told})
        last = Ledger(tmp_path / "checkpoint" / "ledger").last
        assert last is not None
        assert last.route == Route.stateless(3 if configured == 2 else 4, version=2 if configured == 2 else 3)
    out = read(tmp_path / "out")
    assert_all_sent(out, source, rows)
    assert {tasks(out)[batch] for batch in found[1]} == {3}
    assert {tasks(out)[batch] for batch in found[2]} == {4}


def test_a_batch_that_is_read_again_has_the_same_rows_in_other_tasks(run: Run, tmp_path: Path) -> None:
    source = sensors(2_500)
    fault = Fault("driver.written", "error", batch_id=3)
    usual = settings(engine__tries=1)
    with faults.planned(tmp_path / "faults", [fault]), pytest.raises(BatchError):
        run(pipeline(source, tmp_path / "out"), engine__parallelism=2, **usual)
    (planned,) = CheckpointFiles(tmp_path / "checkpoint" / "spark").offsets(3) or []
    _, told = run(pipeline(source, tmp_path / "out"), engine__parallelism=5, **usual)
    assert (told[0].batch_id, told[0].cut["source-1"]["end"]) == (3, planned)
    out = read(tmp_path / "out")
    assert_all_sent(out, source, 2_500)
    assert [*tasks(out).values()] == [2, 2, 2, 5, 5]


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_files(run: Run, tmp_path: Path, format: Format) -> None:
    """Lines of one large file are split; of Parquet, files are shared out."""
    count, files = (4_000, 1) if format == "json" else (50, 8)
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(40 * files):
        rows = pa.table({"id": range(number * count, (number + 1) * count)})
        place = folder / f"{number:04}.{format}"
        if format == "parquet":
            pq.write_table(rows, place)
        else:
            place.write_text(
                "".join(f'{{"id":{row},"pad":"{"x" * 60}"}}\n' for row in rows["id"].to_pylist())
            )
    p = tg.Pipeline("map")
    read_rows = p.source(tg.sources.Files(folder, format=format, schema="id bigint"))
    read_rows.map_arrow(seen, "id bigint, batch bigint, task bigint").sink(tg.sinks.Files(tmp_path / "out"))
    steering = Steering(tmp_path / "checkpoint", [scale(4), nothing, scale(1), nothing])
    limit = {f"admission__{name}_rows": count * files for name in ("min", "max", "initial")}
    run(p, listeners=[steering], engine__parallelism=2, **limit)
    out = read(tmp_path / "out")
    assert len({row["id"] for row in out}) == len(out) == steering.rows
    # The first batch or two are of one file: nothing is known of their size.
    assert_followed({batch: number for batch, number in tasks(out).items() if batch > 1}, steering, 2, 4, 1)


@pytest.mark.kafka
def test_kafka(run: Run, tmp_path: Path, kafka_bootstrap: str) -> None:
    """A topic of three partitions is read in fewer and in more tasks than that."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topic = f"in-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka_bootstrap})
    for number in range(30_000):
        producer.produce(topic, json.dumps({"id": number}).encode(), partition=number % 3)
    assert producer.flush(60) == 0
    p = tg.Pipeline("map")
    rows = p.source(tg.sources.Kafka(kafka_bootstrap, topic, schema="id bigint"))
    rows.map_arrow(seen, "id bigint, batch bigint, task bigint").sink(tg.sinks.Files(tmp_path / "out"))
    acts = [scale(6), nothing, scale(2), nothing, scale(1), nothing]
    steering = Steering(tmp_path / "checkpoint", acts)
    run(p, listeners=[steering], **settings(engine__parallelism=3))
    out = read(tmp_path / "out")
    assert_followed(tasks(out), steering, 3, 6, 2, 1)
    assert len({row["id"] for row in out}) == len(out) == steering.rows
