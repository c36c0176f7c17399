"""Sketches: how far off they are, that they merge, and that Spark's and ours are one format."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as T

from tests.operators.aggregating import Run, operator
from tidegate.batch.time import Time
from tidegate.errors import MissingExtraError
from tidegate.operators.kit.partials import Partials
from tidegate.operators.kit.sketches import Distinct
from tidegate.operators.kit.spans import Spans
from tidegate.pipeline import agg
from tidegate.spark.partial_aggregate import within_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_TIME = Time(None, None)
_COLUMNS = {"k": T.LongType(), "v": T.DoubleType(), "w": T.LongType()}
_AGGREGATES = {
    "kinds": agg.approx_distinct("w"),
    "half": agg.quantile("v", 0.5),
    "high": agg.quantile("v", 0.99),
}


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_estimates_are_near_whatever_the_boundaries(cuts: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    run, seen = Run(operator(_COLUMNS, ["k"], _AGGREGATES, event_time=None)), []
    for cut in cuts:
        batch = [
            ({"k": 1, "v": float(random.normal()), "w": int(random.integers(500))}, int(random.integers(3)))
            for _ in range(cut * 100)
        ]
        seen += [row for row, _ in batch]
        [left] = run.batch(batch, _NO_TIME)
    values = np.sort([row["v"] for row in seen])
    assert left["kinds"] == pytest.approx(len({row["w"] for row in seen}), rel=0.06)
    for name, share, off in (("half", 0.5, 0.05), ("high", 0.99, 0.01)):
        assert np.searchsorted(values, left[name]) / len(values) == pytest.approx(share, abs=off)


def test_few_values_are_counted_exactly() -> None:
    run = Run(operator(_COLUMNS, ["k"], _AGGREGATES, event_time=None))
    rows = [{"k": k, "v": float(v), "w": v} for k in (1, 2) for v in range(k * 5 + k - 1)]
    run.batch([(row, 0) for row in rows], _NO_TIME)
    left = run.batch([(row, 1) for row in rows], _NO_TIME)
    assert {row["k"]: (row["kinds"], row["half"]) for row in left} == {1: (5, 2.0), 2: (11, 5.0)}


def test_null_and_nan_do_not_count() -> None:
    run = Run(operator(_COLUMNS, ["k"], _AGGREGATES, event_time=None))
    [left] = run.batch([({"k": 1, "v": v, "w": None}, 0) for v in (None, math.nan)], _NO_TIME)
    assert left == {"k": 1, "kinds": 0, "half": None, "high": None}
    [left] = run.batch([({"k": 1, "v": 3.0, "w": 1}, 0)], _NO_TIME)
    assert left == {"k": 1, "kinds": 1, "half": 3.0, "high": 3.0}


def test_a_digest_does_not_depend_on_how_its_values_were_partitioned() -> None:
    values = np.random.default_rng(1).normal(size=3000)
    digests = set()
    for parts in (1, 2, 7):
        run = Run(operator(_COLUMNS, ["k"], {"half": agg.quantile("v", 0.5)}, event_time=None))
        for half in (values[:1500], values[1500:]):
            run.batch([({"k": 1, "v": v, "w": 0}, i % parts) for i, v in enumerate(half)], _NO_TIME)
        digests.add(run.state.scan(run.operator.tables[0])["half.tdigest"][0].as_py())
    assert len(digests) == 1


def test_without_the_library_the_install_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    for aggregate in (agg.approx_distinct("w"), agg.quantile("v", 0.5)):
        with pytest.raises(MissingExtraError, match=r"tidegate\[sketches\]"):
            operator(_COLUMNS, ["k"], {"it": aggregate}, event_time=None)


_KINDS = {
    "tinyint": "cast(id % 100 as tinyint)",
    "bigint": "id % 100",
    "double": "cast(id % 100 as double) / 8",
    "float": "cast(id % 100 as float) / 8",
    "decimal": "cast(id % 100 as decimal(10, 2))",
    "boolean": "id % 2 = 0",
    "string": "cast(id % 100 as string)",
    "binary": "cast(cast(id % 100 as string) as binary)",
    "date": "date_add(date'2024-01-01', cast(id % 100 as int))",
    "timestamp": "timestamp_micros(id % 100)",
}


@pytest.mark.spark
def test_sketches_of_spark_merge_in_the_task_and_go_back(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    frame = spark.range(2000, numPartitions=3).select(
        *[F.expr(made).alias(kind) for kind, made in _KINDS.items()]
    )
    partials = Partials(
        tuple(Distinct(name, pa.int64(), name, frame.schema[name].dataType) for name in _KINDS)
    )
    rows = within_partitions(frame).groupBy(F.lit(1)).agg(*partials.sql()).toArrow()
    assert rows.num_rows == 3
    merged = partials.merge(rows[:0], rows, np.arange(3), Spans(np.array([0]), 3))
    found = {
        partial.name: column.to_pylist()[0]
        for partial, column in zip(partials.each, partials.finish(merged), strict=True)
    }
    assert found == {kind: 2 if kind == "boolean" else 100 for kind in _KINDS}
    back = spark.createDataFrame([(merged["string.hll"][0].as_py(),)], "s binary")
    estimate: Any = back.select(F.hll_sketch_estimate("s")).first()
    assert estimate[0] == 100


@pytest.mark.spark
def test_equal_numbers_in_spark_are_one_value(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(0.0,), (-0.0,), (math.nan,), (math.nan,), (None,)], "v double")
    partial = Distinct("kinds", pa.int64(), "v", T.DoubleType())
    rows = frame.coalesce(1).groupBy().agg(*partial.sql()).toArrow()
    assert partial.finish([rows.column(0).combine_chunks()]).to_pylist() == [2]
