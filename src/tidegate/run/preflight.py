"""What can be found wrong with a run before Java starts, which takes longer than all of it."""

from __future__ import annotations

import logging

from tidegate.batch.reconciliation import check_ahead
from tidegate.errors import PipelineError, SinkError
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline.plan import Plan
from tidegate.run.checkpoint import Checkpoint
from tidegate.run.recovery import check_durable
from tidegate.state.table.evolution import check_meaning, check_steps

log = logging.getLogger(__name__)


def check_places(plan: Plan) -> None:
    """Raise a PipelineError when a source or sink is out of reach; say when there is nothing to read yet."""
    for source in plan.sources:
        try:
            notice = source.source.check()
        except PipelineError as error:
            raise source.error(error.problem) from None
        if notice is not None:
            log.warning("%s: %s", source.name, notice)
    for sink in plan.sinks:
        try:
            sink.sink.check()
        except SinkError as error:
            raise sink.error(str(error)) from None


def check_state(plan: Plan, checkpoint: Checkpoint) -> None:
    """Raise a CheckpointError when a checkpoint has lost its state or the end of its ledger, or has the
    state of other steps. To compare their columns takes Spark's analyser."""
    # Before the ledger: a driver may be at work. What another run has left on this machine tells nothing.
    finished = checkpoint.spark.finished() if checkpoint.is_local else -1
    last = Ledger(checkpoint.ledger).last
    check_ahead(checkpoint.spark.folder, finished, last.batch_id if last else -1)
    check_durable(checkpoint, last)
    if last is not None and last.state is not None:
        check_steps(last.state.tables, plan.meaning, checkpoint)
        check_meaning(last.meaning, plan.meaning, checkpoint)
