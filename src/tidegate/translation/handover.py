"""Where a plan is handed from the streaming query to `foreachBatch`, and how Spark numbers its sources.

Spark hands a micro-batch to `foreachBatch` as rows that are already computed: what comes before that point
is planned and compiled as one query, and what comes after reads those rows again for each use. So every
chain of stateless steps with a single reader runs in the streaming query; where a stream parts, where a
step keeps state, or where a source may hold rows that cannot be read, the rows are handed over.
"""

from __future__ import annotations

from tidegate.pipeline.keyed_step import KeyedStep
from tidegate.pipeline.plan import Plan
from tidegate.pipeline.step import SourceStep, Step


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
    return [each for each in (step, *plan.upstream(step)) if isinstance(each, SourceStep)]


def _streams(plan: Plan, step: Step) -> bool:
    """Whether the step runs in the streaming query."""
    return step.streams and all(
        _streams(plan, above) and len(plan.consumers(above)) == 1 and not above.fallible
        for above in step.inputs
    )


def only_reader(plan: Plan, step: Step) -> KeyedStep | None:
    """The keyed step with one input that alone reads what is handed over: it gets that narrowed."""
    if step.fallible:
        return None
    readers = plan.consumers(step)
    while len(readers) == 1 and readers[0].key:
        readers = plan.consumers(readers[0])
    if len(readers) != 1 or not isinstance(readers[0], KeyedStep) or len(readers[0].inputs) != 1:
        return None
    return readers[0]


def paired(plan: Plan, step: Step) -> tuple[Step, Step] | None:
    """The two inputs of a step when both are handed over as they are, so that one pass reads both."""
    if len(step.inputs) != 2 or not step.stateful:
        return None
    left, right = (above.before_key for above in step.inputs)
    last, fallible = handover(plan), left.fallible or right.fallible
    return (left, right) if left is not right and left in last and right in last and not fallible else None


def reads(plan: Plan) -> int:
    """How often the jobs of a batch read its rows."""
    last = handover(plan)
    kept: set[Step] = set()

    def count(step: Step) -> int:
        if step in kept:
            return 0
        if step.stateful and must_be_kept(plan, step):
            kept.add(step)
        if step in last or paired(plan, step):
            return 1
        return sum(map(count, step.inputs))

    return sum(count(sink.inputs[0]) for sink in plan.sinks)


def must_be_kept(plan: Plan, step: Step) -> bool:
    """Whether the rows of a keyed step are to be computed once and kept: several sinks or shuffles read
    them, or a function of the user's that may read only some."""
    ends = _ends_after(plan, step)
    return len(ends) > 1 or not all(end.reads_all for end in ends)


def shares_stage(plan: Plan, step: KeyedStep) -> bool:
    """Whether the rows of a keyed step are where it needs them, because the keyed step before it has the same
    key: then they are not shuffled again."""
    if len(step.inputs) > 1 or not step.spread_by_key or is_united(plan, step):
        return False
    key, above = step.keys(0), step.inputs[0]
    while not above.stateful and above.keeps(key):
        above = above.inputs[0]
    return isinstance(above, KeyedStep) and above.keys(0) == key and above.keeps(key)


def is_united(plan: Plan, step: Step) -> bool:
    """Whether the rows of a keyed step reach a union before the next shuffle: there Spark numbers the
    partitions anew. A step with two inputs unites them."""
    return any(
        len(reader.inputs) > 1 or (not reader.stateful and is_united(plan, reader))
        for reader in plan.consumers(step)
    )


def _ends_after(plan: Plan, step: Step) -> list[Step]:
    """The sinks and shuffles that read the rows of a step, one as often as it does."""
    found: list[Step] = []
    for reader in plan.consumers(step):
        if reader.stateful or reader.role == "sink":
            found.append(reader)
        else:
            found += _ends_after(plan, reader)
    return found
