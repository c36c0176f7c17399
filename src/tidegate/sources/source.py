"""What a source is: rows that enter by Structured Streaming, in cuts that can be read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tidegate.sources.columns import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A fallible source hands on the rows that it could not read, too: with the text as it came and the
# reason why. Both are null in a good row. The engine parts the two and keeps the bad ones.
RAW = "_tidegate_raw"
REASON = "_tidegate_reason"


@dataclass(frozen=True, slots=True)
class Limit:
    """How much one batch may take from a source. `amount` is at least 1."""

    kind: Literal["rows", "files", "bytes"]
    amount: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What a batch took from one source. `files` is empty for a source that is not made of files."""

    rows: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Files that a source has found but not read yet."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Position:
    """Where one source stands after a batch, as Spark's progress reports it (offsets are parsed JSON)."""

    start: Any
    end: Any
    latest: Any = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a batch saw of one source. Event times are in microseconds since 1970, None without any."""

    rows: int
    unreadable: int = 0
    """Those with a time too far ahead, too."""
    newest: int | None = None
    oldest_percent: int | None = None
    """The event time that one in a hundred rows is older than."""
    median: int | None = None
    ahead: int = 0
    """Rows whose event time is too far ahead of the batch."""


class Source(ABC):
    """A source of rows. Implementations are frozen dataclasses: declaring one needs no JVM.

    A source must give the same rows each time the same cut is read, on whichever machine.
    """

    event_time: str | None
    """The timestamp column that says when a row happened, or None."""

    grace: str
    """How late a row may be and still count: the watermark trails the newest event by this much."""

    fallible: ClassVar[bool] = False
    """Whether `load` adds the columns RAW and REASON."""

    countable: ClassVar[bool] = False
    """Whether `seen` can tell what a cut holds; the rows of other sources are observed as they pass."""

    splits_cuts: ClassVar[bool] = False
    """Whether it is a Python Data Source that is told with its limit into how many partitions to split a cut:
    see `tidegate.sources.split_limit`."""

    packages: ClassVar[tuple[str, ...]] = ()
    """Maven coordinates that Spark must resolve; `{spark}` stands for Spark's own version."""

    @abstractmethod
    def load(self, spark: SparkSession, *, parallelism: int, first_rows: int | None) -> DataFrame:
        """The streaming DataFrame, read in about `parallelism` partitions in the first batch.

        The first batch takes at most about `first_rows`; after it, the engine sets a limit per batch, and
        another number of partitions if the pipeline is rescaled.
        """

    @abstractmethod
    def describe(self) -> str:
        """One short line for trees and pictures, e.g. `Sensors 100,000 at 100,000/s`."""

    @property
    def known_columns(self) -> Columns | None:
        """Its columns as far as they are known without Spark; None when they are not."""
        return None

    def check(self) -> str | None:
        """Look, without Spark, at what is to be read: a PipelineError when it is not there; a line for people
        when there is nothing in it yet."""
        return None

    @property
    def location(self) -> str | None:
        """What is read, as `scheme:place`; None if nothing else could write there."""
        return None

    def seen(self, start: Any, end: Any) -> Seen:
        """What the cut from `start` (None for the very first) to `end` holds, by its offsets alone."""
        raise NotImplementedError(f"{type(self).__name__} is not countable")

    def limit(self, rows: int, taken: Taken | None) -> Limit:
        """Express "at most `rows` rows" in what this source can limit; `taken` is the latest batch."""
        return Limit("rows", max(1, rows))

    def lag(self, position: Position) -> int | None:
        """Rows that wait beyond the cut, or None when the source cannot tell."""
        return None

    def done(self, position: Position) -> bool:
        """Whether nothing is left to read; asked when a trigger found no new rows."""
        return True
