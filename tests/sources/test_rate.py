"""Rates: how many rows by when, and when which row."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import PipelineError
from tidegate.sources import Constant, Ramp, Rate, Sine, Step, Trace

per_second = st.floats(0, 1e6, allow_nan=False).map(lambda rate: round(rate, 3))
positive = st.floats(0.01, 1e6, allow_nan=False).map(lambda rate: round(rate, 3))
lengths = st.floats(0.1, 1e4, allow_nan=False).map(lambda length: round(length, 3))


@st.composite
def points(draw: st.DrawFn) -> list[tuple[float, float]]:
    gaps = draw(st.lists(st.tuples(lengths, per_second), min_size=1, max_size=6))
    first = draw(st.sampled_from([0.0, 3.5]))
    steps, at = [], first
    for gap, rate in gaps:
        steps.append((at, rate))
        at += gap
    # The last rate is not 0, so that every row is sent at some time.
    return [*steps, (at, draw(positive))]


rates: st.SearchStrategy[Rate] = st.one_of(
    st.builds(Constant, positive),
    st.builds(Ramp, per_second, positive, lengths),
    st.builds(
        lambda mean, share, period: Sine(mean, mean * share, period), positive, st.floats(0, 1), lengths
    ),
    st.builds(Step, points()),
    st.builds(Trace, points()),
    points().filter(lambda p: any(rate > 0.01 for _, rate in p[:-1])).map(lambda p: Trace(p, repeat=True)),
)


@given(rates, st.integers(0, 10**9))
def test_a_row_is_sent_at_the_moment_from_which_it_counts(rate: Rate, offset: int) -> None:
    at = float(rate.times(np.array([offset]))[0])
    # Beyond the precision of doubles the two cannot agree to the row.
    slack = 1e-9 * (1 + at)
    assert rate.count(at + slack) >= offset + 1
    assert rate.count(max(0.0, at - slack)) <= offset


@given(rates, st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_the_count_never_falls(rate: Rate, moments: list[float]) -> None:
    counts = [rate.count(moment) for moment in sorted(moments)]
    assert counts == sorted(counts)


@given(rates, st.integers(0, 10**9))
def test_rows_are_sent_in_order(rate: Rate, first: int) -> None:
    times = rate.times(np.arange(first, first + 1000))
    assert (np.diff(np.rint(times * 1e6)) >= 0).all()


@given(rates)
def test_nothing_is_sent_before_the_start(rate: Rate) -> None:
    assert rate.count(0) == 0
    assert rate.count(-5) == 0


@given(rates)
def test_a_rate_survives_pickling(rate: Rate) -> None:
    assert pickle.loads(pickle.dumps(rate)) == rate


def test_a_constant_rate_counts_exactly() -> None:
    assert [Constant(100).count(second / 100) for second in range(1000)] == list(range(1000))


def test_a_ramp_stays_at_its_end() -> None:
    assert Ramp(0, 100, "10 seconds").count(20) == 500 + 1000


def test_a_sine_swings_around_its_mean() -> None:
    rate = Sine(mean=1000, amplitude=1000, period=60)
    assert rate.count(60) == 60_000
    # The integral of the upper half: mean * 30 + amplitude * period / pi.
    assert rate.count(30) == pytest.approx(30_000 + 1000 * 60 / np.pi, rel=1e-4)


def test_a_step_sends_nothing_before_its_first_point() -> None:
    rate = Step([(10, 5)])
    assert rate.count(10) == 0
    assert rate.count(11) == 5


def test_a_rate_that_ends_at_zero_never_sends_the_next_row() -> None:
    rate = Step([(0, 10), (2, 0)])
    assert rate.count(1e9) == 20
    assert np.isinf(rate.times(np.array([20]))[0])


def test_a_repeated_trace_starts_again() -> None:
    rate = Trace([(0, 10), (5, 0), (10, 99)], repeat=True)
    assert [rate.count(second) for second in (5, 10, 11, 20)] == [50, 50, 60, 100]


@pytest.mark.parametrize(
    "text",
    ["0,100\n60,200\n", "seconds,rate\n0,100\n60,200\n", "rate, host, Seconds\n100,a,0\n\n200,b,60\n"],
    ids=["bare", "named", "other-order"],
)
def test_a_trace_is_read_from_csv(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    assert Trace.from_csv(tmp_path / "trace.csv").points == ((0, 100), (60, 200))


@pytest.mark.parametrize(
    ("text", "problem"), [("a,b\n", "two columns of numbers"), ("1\n", "two columns"), ("", "at least one")]
)
def test_a_bad_trace_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(PipelineError, match=problem):
        Trace.from_csv(tmp_path / "trace.csv")


def test_a_missing_trace_is_named() -> None:
    with pytest.raises(PipelineError, match=r"nowhere\.csv: No such file"):
        Trace.from_csv("nowhere.csv")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(0),
        lambda: Constant(-1),
        lambda: Constant(float("nan")),
        lambda: Ramp(0, 0, 10),
        lambda: Ramp(0, 10, 0),
        lambda: Sine(10, 11, 60),
        lambda: Step([]),
        lambda: Step([(5, 1), (5, 2)]),
        lambda: Step([(0, 0)]),
        lambda: Trace([(0, 1)], repeat=True),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(PipelineError):
        make()


def test_a_bad_duration_is_refused() -> None:
    with pytest.raises(PipelineError):
        Ramp(0, 10, "ten")
