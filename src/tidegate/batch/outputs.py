"""What a batch writes where: rows to the sinks, and records that could not be read to the dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.batch.ticket import Ticket
from tidegate.errors import CheckpointError, FencedError, SinkError
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline.plan import Plan
from tidegate.pipeline.step import SinkStep, SourceStep
from tidegate.sinks.files import Files
from tidegate.sinks.sink import Attempt, Receipt, Sink, SinkWriter
from tidegate.spark.reasons import reason


@dataclass(slots=True)
class Outputs:
    """The sinks and dead letters of a run."""

    writers: Mapping[SinkStep, SinkWriter]
    dead_letters: Mapping[SourceStep, SinkWriter]
    """Of the sources that are fallible."""
    _attempts: int = 0

    @classmethod
    @contextmanager
    def opened(cls, plan: Plan, spark: SparkSession, dead_letters: Path) -> Iterator[Outputs]:
        """Those of a plan, closed at the end of the block or when one does not open."""
        with ExitStack() as stack:  # One that cannot be closed does not keep the others open.

            def opened(sink: Sink) -> SinkWriter:
                writer = sink.open(spark, pipeline=plan.name)
                stack.callback(writer.close)
                return writer

            yield cls(
                {step: opened(step.sink) for step in plan.sinks},
                {
                    step: opened(Files(dead_letters / step.name, format="json"))
                    for step in plan.sources
                    if step.source.fallible
                },
            )

    def recover(self, ledger: Ledger) -> None:
        """At start: drop what was written for batches that never came to be."""
        last = ledger.last
        for place, writer in self._places().items():
            writer.recover(
                last.batch_id if last else -1,
                last.receipts.get(place) if last else None,
                generation=ledger.generation,
            )

    def write(self, sink: SinkStep, rows: DataFrame, ticket: Ticket) -> tuple[str, Receipt]:
        """Write rows where nobody reads them yet; the place, and what publishing there needs."""
        where = f"{sink.name} ({sink.describe()})"
        return sink.receipt_name, self._write(self.writers[sink], rows, ticket, where)

    def write_dead_letters(self, source: SourceStep, rows: DataFrame, ticket: Ticket) -> tuple[str, Receipt]:
        """The same for records that could not be read, given as (reason, raw)."""
        labels = (F.lit(ticket.batch_id).alias("batch_id"), F.lit(source.name).alias("source"))
        labelled = rows.select(*labels, "reason", "raw")
        where = f"the dead letters of {source.name}"
        return source.receipt_name, self._write(self.dead_letters[source], labelled, ticket, where)

    def publish(self, batch_id: int, place: str, receipt: Receipt) -> None:
        """Make visible what a committed batch has written to a place."""
        writer = self._places().get(place)
        if writer is None:
            raise CheckpointError(
                f"batch {batch_id} was committed with rows for {place}, which is no longer in the "
                "pipeline; restore that sink so that they are published, then remove it"
            )
        writer.publish(batch_id, receipt)

    def _write(self, writer: SinkWriter, rows: DataFrame, ticket: Ticket, where: str) -> Receipt:
        self._attempts += 1
        try:
            return writer.write(rows, Attempt(ticket.batch_id, ticket.generation, self._attempts))
        except FencedError:
            raise
        except Exception as error:
            raise SinkError(f"writing to {where} failed: {reason(error)}") from error

    def _places(self) -> dict[str, SinkWriter]:
        found = {step.receipt_name: writer for step, writer in self.writers.items()}
        return found | {step.receipt_name: writer for step, writer in self.dead_letters.items()}
