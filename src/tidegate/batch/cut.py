"""The cut of a batch, as Spark planned it."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.ledger.records import Cut
from tidegate.pipeline.step import SourceStep
from tidegate.spark.checkpoint_files import CheckpointFiles


def planned(spark: CheckpointFiles, sources: Sequence[SourceStep], batch_id: int) -> dict[str, Cut]:
    """What a batch covers of each source; `sources` are in the order in which Spark numbers them."""
    unknown = [None] * len(sources)
    starts = (spark.offsets(batch_id - 1) if batch_id else None) or unknown
    ends = spark.offsets(batch_id) or unknown
    return {step.name: Cut(start, end) for step, start, end in zip(sources, starts, ends, strict=True)}
