"""What a sink is: a place where the rows of a batch become visible once, whatever crashes.

A batch passes through a sink in two phases. `write` puts its rows where nobody reads them yet and
answers with a receipt. The receipt goes into the ledger: that is the commit point. `publish` then
makes the rows visible. After a crash the engine may write the same batch again (before the commit
point) or publish it again with the receipt of the ledger (after it), so both must be idempotent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tidegate.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Receipt: TypeAlias = dict[str, Any]
"""What `publish` needs to know of a `write`, as JSON values; `rows` is how many were written.

It must not grow with the rows.
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at writing one batch. No two attempts of a pipeline are equal, even across restarts."""

    batch_id: int
    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.batch_id:012d}-{self.generation}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> Attempt:
        """
        >>> Attempt.parse(str(Attempt(7, 2, 1)))
        Attempt(batch_id=7, generation=2, number=1)
        """
        return cls(*map(int, text.split("-")))


def ahead(place: str, latest: int, committed: int, *, anew: str) -> SinkError:
    """What a sink raises in `recover` when it holds later batches than the checkpoint: the next ones would be
    mistaken for repeats of those, and lost. `anew` is how to start over."""
    ends = f"ends with batch {committed}" if committed >= 0 else "is new"
    return SinkError(
        f"{place} holds batches up to {latest}, but the checkpoint {ends}: another checkpoint wrote them, or "
        "this is an older copy of the one that did, or the newest records of its ledger are lost "
        f"(`tidegate state verify` tells). Restore the checkpoint; to start over, {anew}"
    )


class SinkWriter(ABC):
    """A sink at work in one run of a pipeline. Only the driver calls it, one batch after the other."""

    def check(self, rows: DataFrame) -> None:  # noqa: B027
        """Raise a PipelineError, a SinkError or Spark's own error when such rows cannot be written.

        Called once, before the query starts, with a streaming DataFrame of the right columns: nothing
        may be run on it.
        """

    def check_updates(self, key: Sequence[str]) -> None:  # noqa: B027
        """Raise when rows cannot be written that come again, with the same values in the columns `key`.

        Called once, after `check`, if the rows are those of a step that emits a key each time it changes.
        """

    @abstractmethod
    def write(self, rows: DataFrame, attempt: Attempt) -> Receipt:
        """Run the Spark job that puts `rows` where nobody reads them yet.

        A failure of any kind is raised; the engine tries again with another attempt.
        """

    @abstractmethod
    def publish(self, batch_id: int, receipt: Receipt) -> None:
        """Make a written batch visible. Publishing a batch again changes nothing."""

    def recover(self, committed: int, receipt: Receipt | None, *, generation: int) -> None:  # noqa: B027
        """Called once at start: drop what was written for batches after `committed` (-1: none yet).

        Only attempts of generations before `generation`, that of this driver, are dropped: when it is held
        up here, a later driver may have written and committed meanwhile.

        `receipt` is what this sink answered for that batch; None when it was no part of it. With it, a
        sink can tell that its output was removed, and refuse to resume.
        """

    def close(self) -> None:  # noqa: B027
        """Let go of connections. May not be called when the driver dies."""


class Sink(ABC):
    """Where rows go. Implementations are frozen dataclasses: declaring one needs no JVM."""

    packages: ClassVar[tuple[str, ...]] = ()
    """Maven coordinates that Spark must resolve; `{spark}` stands for Spark's own version."""

    reads_all: ClassVar[bool] = True
    """Whether `write` is sure to read each row, once."""

    stages: ClassVar[bool] = True
    """Whether `write` puts rows where nobody reads them. One that shows them at once begins when the cut of
    the batch is on disk, so that not even a power cut lets the batch come again with other rows."""

    def check(self) -> None:  # noqa: B027
        """Raise a SinkError when the place cannot be reached or written; without Spark, within seconds."""

    @abstractmethod
    def open(self, spark: SparkSession, *, pipeline: str) -> SinkWriter:
        """Start work: check that the place can be written and create what is missing."""

    @abstractmethod
    def describe(self) -> str:
        """One short line for trees and pictures, e.g. `Files out/hot (parquet)`."""

    @property
    def location(self) -> str | None:
        """What is written, as `scheme:place`; None when any number of sinks may share it."""
        return None
