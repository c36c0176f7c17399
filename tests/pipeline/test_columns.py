"""Columns that are sure not to be there, or of a wrong type, are found at declaration: without a JVM."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import tidegate as tg

SCHEMA = "id bigint, name string, value double, at timestamp, tags array<string>"
FOUR = tg.tumbling("4 s")
Declare = Callable[[tg.Stream], tg.Stream]


def pipeline(declare: Declare) -> tg.Pipeline:
    p = tg.Pipeline("columns")
    rows = p.source(tg.sources.Files("in", schema=SCHEMA, event_time="at"))
    declare(rows).sink(tg.sinks.Discard())
    return p


def other(rows: tg.Stream) -> tg.Stream:
    return rows.pipeline.source(
        tg.sources.Files("other", schema="id bigint, n int, at timestamp", event_time="at")
    )


def counted(rows: tg.Stream) -> tg.Stream:
    return rows.key_by("id").window(FOUR).aggregate(n=tg.agg.count())


@pytest.mark.parametrize(
    ("declare", "step", "problem"),
    [
        (lambda s: s.key_by("idd").deduplicate(), "key_by-1", "no column 'idd' among .*; did you mean 'id'"),
        (lambda s: s.key_by("id").aggregate(n=tg.agg.sum("valu")), "aggregate-1", "did you mean 'value'"),
        (lambda s: s.key_by("id").aggregate(n=tg.agg.sum("name")), "aggregate-1", "'name' is a string"),
        (lambda s: s.key_by("tags").deduplicate(), "deduplicate-1", "'tags' is of type array"),
        (lambda s: s.key_by("id").top_n(2, by="price"), "top_n-1", "no column 'price'"),
        (lambda s: s.drop("gone"), "drop-1", "no column 'gone'"),
        (lambda s: s.window_join(other(s), on=("id", "key"), window=FOUR), "window_join-1", "'key'"),
        (lambda s: s.interval_join(other(s), on="name"), "interval_join-1", "'name' among id, n, at"),
        (lambda s: s.union(other(s)), "union-1", "no column '\\w+'"),
        (lambda s: s.filter("id > 0").drop("name").key_by("name").deduplicate(), "key_by-1", "'name'"),
        (lambda s: s.select("id", "value * 2 as twice").key_by("value").deduplicate(), "key_by-1", "'value'"),
        (lambda s: s.select("id", v="value").key_by("id").top_n(2, by="value"), "top_n-1", "'value'"),
        (lambda s: s.map_arrow(len, "a int, b int").key_by("c").deduplicate(), "key_by-1", "among a, b"),
        (
            lambda s: s.map_arrow(len, pa.schema({"a": pa.int64()})).key_by("b").deduplicate(),
            "key_by-1",
            "among a",
        ),
        (
            lambda s: counted(s).key_by("m").deduplicate(),
            "key_by-2",
            "among id, window_start, window_end, n",
        ),
    ],
)
def test_a_wrong_column_is_told_with_its_step(declare: Declare, step: str, problem: str) -> None:
    with pytest.raises(tg.PipelineError, match=problem) as caught:
        pipeline(declare).plan()
    assert caught.value.step == step
    assert caught.value.where is not None


@pytest.mark.parametrize(
    "declare",
    [
        lambda s: s.key_by("ID").deduplicate(),  # whether capitals count is for Spark to say
        lambda s: s.with_column("k", "id % 10").key_by("k").deduplicate(),
        lambda s: s.with_column("name", "1").key_by("id").aggregate(n=tg.agg.sum("name")),
        lambda s: s.select("*", "id % 10 as k").key_by("k", "name").deduplicate(),
        lambda s: s.select("id k").key_by("k").deduplicate(),
        lambda s: s.select("upper(name)").key_by("upper(name)").deduplicate(),
        lambda s: s.select("current_date").key_by("current_date()").deduplicate(),
        lambda s: s.select(lambda rows: rows["id"].alias("k")).key_by("k").deduplicate(),
        lambda s: s.select("inline(array(struct(1 as a, 2 as b)))").key_by("a").deduplicate(),
        lambda s: s.select("stack(1, id, value) as (a, b)").key_by("b").deduplicate(),
        lambda s: s.flat_map("tag", "tags").key_by("tag").deduplicate(),
        lambda s: s.branch("id > 1")[0].key_by("id").deduplicate(),
        lambda s: s.map_arrow(lambda b: b, "struct<a: int>").key_by("a").deduplicate(),
        lambda s: s.window_join(other(s), on="id", window=FOUR).drop("at_right", "n", "window_end"),
        lambda s: s.key_by("id").top_n(3, by="value").drop("rank"),
        lambda s: s.key_by("id").connect(other(s).key_by("id")).drop("n"),
    ],
)
def test_nothing_is_refused_that_spark_may_take(declare: Declare) -> None:
    pipeline(declare).plan()


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            tg.sources.Files("in", schema="id bigint, at string", event_time="at"),
            "is a string; it must be a times",
        ),
        (tg.sources.Files("in", schema="id bigint, at timestamp", event_time="time"), "no column 'time'"),
        (tg.sources.Kafka("host:9092", "t", schema="id int, at bigint", event_time="at"), "is a bigint"),
    ],
)
def test_an_event_time_that_is_none(source: tg.sources.Source, problem: str) -> None:
    p = tg.Pipeline("timed")
    p.source(source).sink(tg.sinks.Discard())
    with pytest.raises(tg.PipelineError, match=problem) as caught:
        p.plan()
    assert caught.value.step == "source-1"


def test_columns_of_a_parquet_folder_are_for_spark_to_find() -> None:
    p = tg.Pipeline("parquet")
    p.source(tg.sources.Files("in", format="parquet", event_time="at")).key_by("any").deduplicate().sink(
        tg.sinks.Discard()
    )
    p.plan()
