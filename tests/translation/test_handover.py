"""Which rows are computed once and kept, and which are where the next step needs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tidegate as tg
from tidegate.pipeline.keyed_step import Aggregate, KeyedStep, WindowJoin
from tidegate.translation.handover import is_united, must_be_kept, paired, reads, shares_stage


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


def chained(*steps: Callable[[tg.Stream], tg.Stream]) -> list[bool]:
    """For each keyed step, one after the other, whether it works where the rows of the one before are."""
    p = tg.Pipeline("chain")
    stream = p.source(tg.sources.Sensors())
    for step in steps:
        stream = step(stream)
    stream.sink(tg.sinks.Discard())
    plan = p.plan()
    return [shares_stage(plan, step) for step in plan.steps if isinstance(step, KeyedStep)]


def distinct(stream: tg.Stream) -> tg.Stream:
    return stream.key_by("id").deduplicate()


def passed_on(stream: tg.Stream) -> tg.Stream:
    return stream.key_by("id").process(
        lambda rows, state, time: (rows, state),
        state_schema="n bigint",
        output_schema="id bigint, timestamp timestamp, value double",
    )


def per_session(stream: tg.Stream) -> tg.Stream:
    return stream.key_by("id").window(tg.session("4 s")).aggregate(n=tg.agg.count())


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([distinct, per_session, passed_on], [False, True, True], id="one key"),
        pytest.param(
            [distinct, lambda s: s.filter("value > 0").drop("value").with_column("x", "id + 1"), distinct],
            [False, True],
            id="steps between that leave the key alone",
        ),
        pytest.param(
            [distinct, lambda s: s.with_column("ID", "id + 1"), distinct],
            [False, False],
            id="another value of the key",
        ),
        pytest.param(
            [distinct, lambda s: s.select("id", "timestamp"), distinct], [False, False], id="any select"
        ),
        pytest.param([distinct, lambda s: s.key_by("value").deduplicate()], [False, False], id="another key"),
        pytest.param(
            [
                lambda s: s.key_by("id", "value").deduplicate(),
                lambda s: s.key_by("value", "id").deduplicate(),
            ],
            [False, False],
            id="another order of the key",
        ),
        pytest.param([passed_on, distinct], [False, False], id="after a function that may return any key"),
        pytest.param(
            [distinct, lambda s: s.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())],
            [False, False],
            id="windows are spread one by one",
        ),
        pytest.param(
            [distinct, distinct, lambda s: s.union(s)], [False, False], id="partitions are numbered anew"
        ),
    ],
)
def test_steps_with_one_key_share_a_stage(
    steps: list[Callable[[tg.Stream], tg.Stream]], expected: list[bool]
) -> None:
    assert chained(*steps) == expected
