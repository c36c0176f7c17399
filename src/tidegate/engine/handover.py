"""Where a plan is handed from the streaming query to `foreachBatch`, and how Spark numbers its sources.

Spark hands a micro-batch to `foreachBatch` as rows that are already computed: what comes before that point
is planned and compiled as one query, and what comes after reads those rows again for each use. So every
chain of stateless steps with a single reader runs in the streaming query; where a stream parts, or where
a source may hold rows that cannot be read, the rows are handed over.
"""

from __future__ import annotations

from tidegate.pipeline.plan import Plan
from tidegate.pipeline.step import SinkStep, SourceStep, Step


def handover(plan: Plan) -> list[Step]:
    """The last steps of the streaming query, ordered by the first source that each one reads."""
    numbers = {source: number for number, source in enumerate(plan.sources)}
    last = [
        step
        for step in plan.steps
        if _streams(plan, step) and not any(_streams(plan, reader) for reader in plan.consumers(step))
    ]
    return sorted(last, key=lambda step: min(numbers[source] for source in _sources(plan, step)))


def numbered_sources(plan: Plan) -> list[SourceStep]:
    """The sources in the order in which Spark numbers them: that of the streaming query's leaves."""
    return [source for step in handover(plan) for source in _sources(plan, step)]


def _sources(plan: Plan, step: Step) -> list[SourceStep]:
    if isinstance(step, SourceStep):
        return [step]
    return [source for above in step.inputs for source in _sources(plan, above)]


def _streams(plan: Plan, step: Step) -> bool:
    """Whether the step runs in the streaming query."""
    if isinstance(step, SourceStep):
        return True
    if isinstance(step, SinkStep) or step.keyed:
        return False
    return all(
        _streams(plan, above)
        and len(plan.consumers(above)) == 1
        and not (isinstance(above, SourceStep) and above.source.fallible)
        for above in step.inputs
    )
