"""What a batch writes where: rows to the sinks, and records that could not be read to the dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tidegate.batch.ticket import Ticket
from tidegate.errors import CheckpointError, FencedError, SinkError
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline.plan import Plan
from tidegate.pipeline.step import SinkStep, SourceStep
from tidegate.sinks.files import Files
from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter
from tidegate.spark.reasons import reason
from tidegate.storage.place import join

_DEAD_LETTERS = "64 MB"
"""Their files are merged up to this size: a source may have some in every batch, for ever."""


@dataclass(slots=True)
class Outputs:
    """The sinks and dead letters of a run."""

    writers: Mapping[SinkStep | SourceStep, SinkWriter]
    """Of the sinks, and of the sources that are fallible: for their dead letters."""
    _attempts: int = 0

    @classmethod
    @contextmanager
    def opened(cls, plan: Plan, spark: SparkSession, dead_letters: str) -> Iterator[Outputs]:
        """Those of a plan, closed at the end of the block or when one does not open.

        `dead_letters` is a folder, or a place in an object store.
        """
        sinks: dict[SinkStep | SourceStep, Sink] = {step: step.sink for step in plan.sinks}
        for source in plan.sources:
            if source.fallible:
                place = join(dead_letters, source.name)
                sinks[source] = Files(place, format="json", compact_to=_DEAD_LETTERS)
        writers: dict[SinkStep | SourceStep, SinkWriter] = {}
        with ExitStack() as stack:  # One that cannot be closed does not keep the others open.
            for step, sink in sinks.items():
                writers[step] = sink.open(spark, pipeline=plan.name)
                stack.callback(writers[step].close)
            yield cls(writers)

    @property
    def staged(self) -> bool:
        """Whether no sink shows a row before its batch is committed."""
        return all(step.sink.stages for step in self.writers if isinstance(step, SinkStep))

    def recover(self, ledger: Ledger) -> None:
        """At start: drop what was written for batches that never came to be."""
        last = ledger.last
        for place, writer in self._places().items():
            writer.recover(
                last.batch_id if last else -1,
                last.receipts.get(place) if last else None,
                generation=ledger.generation,
            )

    def write(self, step: SinkStep | SourceStep, rows: DataFrame, ticket: Ticket) -> Receipt:
        """Write rows where nobody reads them yet; what publishing them needs.

        Those of a source are records that could not be read.
        """
        self._attempts += 1
        try:
            attempt = Attempt(ticket.batch_id, ticket.generation, self._attempts)
            return self.writers[step].write(rows, attempt)
        except FencedError:
            raise
        except Exception as error:
            letters = f"the dead letters of {step.name}"
            where = letters if isinstance(step, SourceStep) else f"{step.name} ({step.describe()})"
            raise SinkError(f"writing to {where} failed: {reason(error)}") from error

    def publish(self, batch_id: int, place: str, receipt: Receipt) -> None:
        """Make visible what a committed batch has written to a place."""
        writer = self._places().get(place)
        if writer is None:
            raise CheckpointError(
                f"batch {batch_id} was committed with rows for {place}, which is no longer in the "
                "pipeline; restore that sink to have them published, then remove it"
            )
        writer.publish(batch_id, receipt)

    def _places(self) -> dict[str, SinkWriter]:
        return {step.receipt_name: writer for step, writer in self.writers.items()}
