"""Which rows are computed once and kept."""

from __future__ import annotations

import tidegate as tg
from tidegate.pipeline.keyed_step import Aggregate, WindowJoin
from tidegate.translation.handover import is_united, must_be_kept, paired, reads


def counted(p: tg.Pipeline) -> tg.Stream:
    return p.source(tg.sources.Sensors()).key_by("id").aggregate(n=tg.agg.count())


def test_one_reader_keeps_nothing() -> None:
    p = tg.Pipeline("one")
    counted(p).filter("n > 1").sink(tg.sinks.Discard())
    plan = p.plan()
    (step,) = (step for step in plan.steps if isinstance(step, Aggregate))
    assert not must_be_kept(plan, step)
    assert reads(plan) == 1


def test_a_stream_that_parts_behind_a_stateless_step() -> None:
    p = tg.Pipeline("parts")
    some = counted(p).filter("n > 1")
    some.sink(tg.sinks.Discard())
    some.filter("n > 2").sink(tg.sinks.Discard())
    plan = p.plan()
    (step,) = (step for step in plan.steps if isinstance(step, Aggregate))
    assert must_be_kept(plan, step)
    assert reads(plan) == 1


def test_two_sources_of_a_join_are_read_in_one_pass() -> None:
    p = tg.Pipeline("join")
    left, right = (p.source(tg.sources.Sensors(seed=seed)) for seed in (1, 2))
    left.window_join(right, on="id", window=tg.tumbling("4 s")).sink(tg.sinks.Discard())
    plan = p.plan()
    (step,) = (step for step in plan.steps if isinstance(step, WindowJoin))
    assert paired(plan, step) is not None
    assert reads(plan) == 1


def test_a_join_of_a_stream_with_itself_is_not_one_pass() -> None:
    p = tg.Pipeline("self")
    stream = p.source(tg.sources.Sensors())
    stream.window_join(stream, on="id", window=tg.tumbling("4 s")).sink(tg.sinks.Discard())
    plan = p.plan()
    (step,) = (step for step in plan.steps if isinstance(step, WindowJoin))
    assert paired(plan, step) is None
    assert reads(plan) == 2


def test_rows_that_meet_others_before_the_next_shuffle() -> None:
    p = tg.Pipeline("union")
    first, second = counted(p), counted(p)
    first.union(second).sink(tg.sinks.Discard())
    third = counted(p)
    third.sink(tg.sinks.Discard())
    plan = p.plan()
    united = [is_united(plan, step) for step in plan.steps if isinstance(step, Aggregate)]
    assert united == [True, True, False]
