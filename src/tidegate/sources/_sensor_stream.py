"""`Sensors` as a Python Data Source. Workers import this module by name; it needs PySpark."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidegate.errors import PipelineError
from tidegate.sources.sensors import SCHEMA, Sensors
from tidegate.sources.split_limit import rows_and_partitions

_ROWS_PER_BATCH = 1 << 16
# A cut of an endless stream without a rate needs some end if there is no limit.
_ENDLESS_CUT = 1_000_000


class SensorDataSource(DataSource):
    """Its option `reader` is the SensorStreamReader, pickled, in hex."""

    @classmethod
    def name(cls) -> str:
        return "tidegate_sensors"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> SensorStreamReader:  # noqa: N802 (Spark's name)
        sys.excepthook = _end
        reader: SensorStreamReader = pickle.loads(bytes.fromhex(self.options["reader"]))
        return reader


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints no stack trace when Spark has closed its end of the socket, as it does when a query ends."""
    if not isinstance(error, BrokenPipeError):
        sys.__excepthook__(kind, error, trace)


@dataclass
class Slice(InputPartition):
    """Offsets from `low` up to but not including `high` of the stream that started at `start`."""

    start: int
    low: int
    high: int


class SensorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"start": microseconds since 1970, "offset": rows before this point}`."""

    def __init__(self, source: Sensors, partitions: int, first_rows: int | None) -> None:
        """`partitions`: into how many a cut is split, until a limit tells another number. `first_rows`: what
        the first cut may take, or None."""
        self._source = source
        self._first_rows = first_rows
        self._partitions = partitions
        self._start: int | None = source.first_micros
        self._until: float | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        if self._start is None:
            self._start = _now()
        return {"start": self._start, "offset": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._first_rows is None else ReadMaxRows(self._first_rows)

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        # The checkpoint knows when the stream began; this process may be a later one.
        self._start = start["start"]
        rows, partitions = rows_and_partitions(limit)
        if partitions is not None:
            self._partitions, rows = partitions, rows or self._first_rows
        sent = self._sent()
        if sent is None:
            sent = start["offset"] + (_ENDLESS_CUT if rows is None else rows)
        elif rows is not None:
            sent = min(sent, start["offset"] + rows)
        # A clock that was set back takes nothing back.
        return {"start": self._start, "offset": max(sent, start["offset"])}

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        if self._start is None or (sent := self._sent()) is None:
            return None
        return {"start": self._start, "offset": sent}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        if self._source.rate is None and self._source.rows is None:
            raise PipelineError("without a rate the sensors never stop sending; give `rows`", step="Sensors")
        self._until = _now()

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Slice]:
        self._start = end["start"]
        low, high = start["offset"], end["offset"]
        slices = min(self._partitions, high - low)
        bounds = [low + (high - low) * i // slices for i in range(slices + 1)] if slices > 0 else []
        return [Slice(end["start"], a, b) for a, b in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Slice)
        for low in range(partition.low, partition.high, _ROWS_PER_BATCH):
            high = min(partition.high, low + _ROWS_PER_BATCH)
            yield self._source.batch(low, high, start=partition.start)

    def _sent(self) -> int | None:
        assert self._start is not None
        return self._source.sent(((self._until or _now()) - self._start) / 1e6)


def _now() -> int:
    return time.time_ns() // 1000
