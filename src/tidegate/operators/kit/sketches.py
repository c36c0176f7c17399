"""Partials that are sketches of the `datasketches` library: small, mergeable, approximate.

The library works on one sketch at a time, so these two functions cost a few microseconds per key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidegate.errors import MissingExtraError
from tidegate.operators.kit.functions import named
from tidegate.operators.kit.partials import Partial
from tidegate.operators.kit.spans import Spans

LG_K = 12
"""Size of a sketch of distinct values, as Spark's own: 4,096 registers, 1.6 % error."""
COMPRESSION = 200
"""Size of a sketch of quantiles: 5 KB; off by up to 2 % of the rows at 0.5, by 0.1 % at 0.01 and 0.99."""


def require(function: str) -> None:
    """Raise a MissingExtraError where the library is not installed."""
    if find_spec("datasketches") is None:
        raise MissingExtraError("sketches", f"agg.{function}")


@dataclass(frozen=True, slots=True)
class Distinct(Partial):
    """About how many different values there are that are not null, as bigint; 0 when there are none."""

    of: str
    kind: T.DataType
    parts = {"hll": pa.binary()}

    def sql(self) -> list[Column]:
        return [F.hll_sketch_agg(_hashable(self.of, self.kind), LG_K)]

    def merge(self, columns: Sequence[pa.Array], spans: Spans) -> list[pa.Array]:
        from datasketches import hll_sketch, hll_union, tgt_hll_type

        sketches = columns[0].to_pylist()
        union, merged = hll_union(LG_K), []
        for start, end in _bounds(spans):
            union.reset()
            for sketch in sketches[start:end]:
                if sketch is not None:
                    union.update(hll_sketch.deserialize(sketch))
            merged.append(None if union.is_empty() else union.get_result(tgt_hll_type.HLL_8))
        return [pa.array([s and s.serialize_compact() for s in merged], pa.binary())]

    def finish(self, columns: Sequence[pa.Array]) -> pa.Array:
        from datasketches import hll_sketch

        sketches = columns[0].to_pylist()
        return pa.array([round(hll_sketch.deserialize(s).get_estimate()) if s else 0 for s in sketches])


@dataclass(frozen=True, slots=True)
class Quantile(Partial):
    """About the value below which `share` of the values lie, as double. NaN and null do not count."""

    of: str
    share: float
    parts = {"tdigest": pa.binary()}

    @property
    def arriving(self) -> tuple[pa.Field, ...]:
        return (self._field("values", pa.list_(pa.field("element", pa.float64(), False))),)

    def sql(self) -> list[Column]:
        value = named(self.of).cast("double")
        return [F.array_sort(F.collect_list(F.when(~F.isnan(value), value)))]

    def merge(self, columns: Sequence[pa.Array], spans: Spans) -> list[pa.Array]:
        from datasketches import tdigest_double

        digests, lists = columns[0].to_pylist(), columns[1]
        values = lists.flatten().to_numpy()
        ends = np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy())
        merged = []
        for start, end in _bounds(spans):
            # More than one digest of state only where sessions were joined.
            kept = [tdigest_double.deserialize(d) for d in digests[start:end] if d is not None]
            digest = kept[0] if kept else tdigest_double(COMPRESSION)
            for other in kept[1:]:
                digest.merge(other)
            fresh = values[ends[start - 1] if start else 0 : ends[end - 1]]
            if len(fresh):
                # Sorted, so that the digest does not depend on how the values were partitioned.
                digest.update(np.sort(fresh))
            merged.append(None if digest.is_empty() else digest.serialize())
        return [pa.array(merged, pa.binary())]

    def finish(self, columns: Sequence[pa.Array]) -> pa.Array:
        from datasketches import tdigest_double

        kept = columns[0].to_pylist()
        found = [tdigest_double.deserialize(d).get_quantile(self.share) if d else None for d in kept]
        return pa.array(found, pa.float64())


def _bounds(spans: Spans) -> list[tuple[int, int]]:
    """The first row of each span, and the first beyond it."""
    return list(pairwise(np.append(spans.starts, spans.rows).tolist()))


def _hashable(name: str, kind: T.DataType) -> Column:
    """A value in a form that Spark's sketch takes: equal values alike."""
    value = named(name)
    if isinstance(kind, T.StringType | T.BinaryType):
        return value
    if isinstance(kind, T.IntegralType | T.BooleanType):
        return value.cast("bigint")
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(value)
    if isinstance(kind, T.FloatType | T.DoubleType):
        value = F.when(value == F.lit(0.0), F.lit(0.0).cast(kind)).otherwise(value)
    return value.cast("string")
