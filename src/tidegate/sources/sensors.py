"""Emulated sensors: a stream of any size and shape that needs no storage, because it is computed."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar

from tidegate.pipeline.where import refused
from tidegate.sources._words import below, words
from tidegate.sources.columns import Columns, declared
from tidegate.sources.keys import Keys
from tidegate.sources.rate import Constant, Rate
from tidegate.sources.source import Position, Seen, Source

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import ArrayLike, NDArray
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id bigint, timestamp timestamp, value double"

# What is drawn for a row comes from streams of words of its own.
_IDS, _VALUES = 1, 2
_MOST_KEYS = 1 << 31
_error = partial(refused, step="Sensors")


@dataclass(frozen=True, slots=True)
class Sensors(Source):
    """Rows `<id, timestamp, value>` of emulated sensors: a pure function of (seed, offset).

    `sensors`: how many there are; ids are 0 to `sensors - 1`.
    `rate`: rows per second of all sensors together, a number or a `Rate`. None is no limit: all rows
    are there at once, with event times as if each sensor had sent one row per second.
    `keys`: which sensor sends next. None lets all of them send in turn, so each sends
    `rate / sensors` rows per second at even distances; `Uniform`, `Zipf` and `HotSet` draw at random.
    `value_keys`: values are whole numbers from 0 to `value_keys - 1` for joins of ids with values;
    None gives temperatures around 20, of which one in twenty is above 30.
    `rows`: the stream ends after this many; None never ends.
    `start`: when the first sensor starts to send, as ISO text or datetime (UTC unless it says
    otherwise); None is when the pipeline first runs. Rows of the past are all there at once, those
    of the future come when it is time.

    The timestamp of a row is when it was sent. A stopped pipeline finds on restart what the sensors
    have sent meanwhile. Changing any argument but `grace` changes the rows: use a new checkpoint then.
    """

    sensors: int = 100_000
    rate: Rate | float | None = 100_000
    keys: Keys | None = None
    value_keys: int | None = None
    seed: int = 0
    rows: int | None = None
    start: str | datetime | None = None
    event_time: str | None = "timestamp"
    grace: str = "2 seconds"

    countable: ClassVar[bool] = True
    splits_cuts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _whole("sensors", self.sensors, 1, _MOST_KEYS)
        if self.value_keys is not None:
            _whole("value_keys", self.value_keys, 1, _MOST_KEYS)
        if self.rows is not None:
            _whole("rows", self.rows, 1, 1 << 53)
        _whole("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if isinstance(self.rate, int | float):
            object.__setattr__(self, "rate", Constant(self.rate))
        elif not isinstance(self.rate, Rate | None):
            raise _error(f"rate must be a number, a Rate or None, not {self.rate!r}")
        if not isinstance(self.keys, Keys | None):
            raise _error(f"keys must be Uniform, Zipf, HotSet or None, not {self.keys!r}")
        if self.event_time not in ("timestamp", None):
            raise _error(f"event_time can only be 'timestamp' or None, not {self.event_time!r}")
        if self.start is not None:
            object.__setattr__(self, "start", _moment(self.start).isoformat())

    @property
    def known_columns(self) -> Columns | None:
        return declared(SCHEMA)

    def load(self, spark: SparkSession, *, parallelism: int, first_rows: int | None) -> DataFrame:
        from tidegate.sources._sensor_stream import SensorDataSource, SensorStreamReader

        reader = pickle.dumps(SensorStreamReader(self, max(1, parallelism), first_rows))
        spark.dataSource.register(SensorDataSource)
        return spark.readStream.format(SensorDataSource.name()).option("reader", reader.hex()).load()

    def describe(self) -> str:
        parts = [f"Sensors {self.sensors:,} at {'any rate' if self.rate is None else self.rate}"]
        parts += [str(self.keys)] if self.keys is not None else []
        parts += [f"{self.value_keys:,} values"] if self.value_keys is not None else []
        parts += [f"{self.rows:,} rows"] if self.rows is not None else []
        return ", ".join(parts)

    def lag(self, position: Position) -> int | None:
        """Rows sent but not yet read; None for an endless stream without a rate."""
        if position.latest is None or position.end is None or (self.rate is None and self.rows is None):
            return None
        return max(0, int(position.latest["offset"]) - int(position.end["offset"]))

    def seen(self, start: Any, end: Any) -> Seen:
        """Exact: rows are sent in the order of their offsets."""
        low, high = (start or {"offset": 0})["offset"], end["offset"]
        if high <= low:
            return Seen(rows=0)
        places = [high - 1, low + (high - low) // 100, low + (high - low) // 2]
        newest, oldest, middle = (self._micros(places) + end["start"]).tolist()
        return Seen(rows=high - low, newest=newest, oldest_percent=oldest, median=middle)

    def done(self, position: Position) -> bool:
        """Whether all `rows` were read; an endless stream is done whenever it has been caught up with."""
        return self.rows is None or (position.end is not None and int(position.end["offset"]) >= self.rows)

    @property
    def first_micros(self) -> int | None:
        """`start` in microseconds since 1970, or None."""
        if self.start is None:
            return None
        return (_moment(self.start) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def sent(self, seconds: float) -> int | None:
        """How many rows there are `seconds` after the start; None when there is no end to them."""
        if not isinstance(self.rate, Rate):
            return self.rows
        count = self.rate.count(seconds)
        return count if self.rows is None else min(count, self.rows)

    def batch(self, low: int, high: int, *, start: int) -> pa.RecordBatch:
        """The rows with offsets from `low` up to but not including `high`, in order.

        `start` is when the stream started, in microseconds since 1970.
        """
        import numpy as np
        import pyarrow as pa

        offsets = np.arange(low, high, dtype=np.int64)
        times = pa.array(self._micros(offsets) + start, pa.int64()).view(pa.timestamp("us", tz="UTC"))
        columns = [pa.array(self._ids(offsets)), times, pa.array(self._values(offsets))]
        return pa.RecordBatch.from_arrays(columns, names=["id", "timestamp", "value"])

    def _micros(self, offsets: ArrayLike) -> NDArray[np.int64]:
        """When rows are sent, in microseconds after the start."""
        import numpy as np

        rate = self.rate if isinstance(self.rate, Rate) else Constant(self.sensors)
        return np.rint(rate.times(np.asarray(offsets, np.int64)) * 1e6).astype(np.int64)

    def _ids(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.keys is None:
            return offsets % self.sensors * _stride(self.sensors) % self.sensors
        return self.keys.ids(words(self.seed, _IDS, offsets), self.sensors)

    def _values(self, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
        import numpy as np

        drawn = words(self.seed, _VALUES, offsets)
        if self.value_keys is not None:
            return below(drawn, self.value_keys).astype(np.float64)
        # The sum of four uniform numbers is nearly normal; one word holds four of 16 bits.
        quarter = drawn.view(np.uint16)
        total = quarter[0::4].astype(np.float64)
        for i in (1, 2, 3):
            total += quarter[i::4]
        deviations = (total / 65536 - 2) * 3**0.5
        return np.round(20 + 6 * deviations, 2)


@lru_cache(maxsize=64)
def _stride(n: int) -> int:
    """A step through 0..n-1 that visits all before it returns, and spreads neighbours far apart."""
    stride = max(1, int(n * 0.6180339887))
    while gcd(stride, n) > 1:
        stride += 1
    return stride


def _moment(start: str | datetime) -> datetime:
    if isinstance(start, str):
        try:
            start = datetime.fromisoformat(start)
        except ValueError as error:
            raise _error(f"start must be like '2025-01-31T12:00:00', not {start!r}") from error
    return start.replace(tzinfo=UTC) if start.tzinfo is None else start.astimezone(UTC)


def _whole(name: str, number: object, low: int, high: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
        raise _error(f"{name} must be a whole number from {low:,} to {high:,}, not {number!r}")
