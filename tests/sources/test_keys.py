"""Key skew: how often which key is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import PipelineError
from tidegate.sources import HotSet, Uniform, Zipf
from tidegate.sources._words import words
from tidegate.sources.keys import Keys

ROWS = 200_000
shares = st.floats(0, 1)
keys: st.SearchStrategy[Keys] = st.one_of(
    st.just(Uniform()), st.builds(Zipf, st.floats(0, 10)), st.builds(HotSet, shares, shares)
)


def counts(keys: Keys, n: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.bincount(keys.ids(words(1, 1, np.arange(ROWS)), n), minlength=n)


@given(keys, st.integers(1, 2**31), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
def test_keys_are_in_range(keys: Keys, n: int, drawn: list[int]) -> None:
    # The smallest and the largest word are where rounding would go over the edge.
    ids = keys.ids(np.array([0, 2**64 - 1, *drawn], dtype=np.uint64), n)
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    assert ids.max() < n


@given(keys, st.integers(1, 2**31), st.integers(0, 10**12))
def test_a_key_depends_on_its_word_alone(keys: Keys, n: int, first: int) -> None:
    drawn = words(3, 1, np.arange(first, first + 20))
    apart = [int(keys.ids(drawn[i : i + 1], n)[0]) for i in range(20)]
    assert keys.ids(drawn, n).tolist() == apart


def test_uniform_keys_are_even() -> None:
    seen = counts(Uniform(), 100)
    assert abs(seen / (ROWS / 100) - 1).max() < 0.1


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_zipf_keys_follow_the_law(exponent: float) -> None:
    weights = np.arange(1, 1001, dtype=float) ** -exponent
    seen, expected = counts(Zipf(exponent), 1000), ROWS * weights / weights.sum()
    assert seen[:10] == pytest.approx(expected[:10], rel=0.1)
    assert seen[100:].sum() == pytest.approx(expected[100:].sum(), rel=0.05)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.0, 1.2])
def test_zipf_is_right_beyond_its_table(exponent: float) -> None:
    n = 1_000_000
    weights = np.arange(1, n + 1, dtype=float) ** -exponent
    ids = Zipf(exponent).ids(words(1, 1, np.arange(ROWS)), n)
    for low, high in ((0, 1000), (60_000, 70_000), (70_000, 300_000), (900_000, n)):
        share = weights[low:high].sum() / weights.sum()
        assert ((ids >= low) & (ids < high)).mean() == pytest.approx(share, abs=0.003)


def test_a_hot_set_gets_its_share() -> None:
    seen = counts(HotSet(keys=0.05, rows=0.8), 1000)
    assert seen[:50].sum() / ROWS == pytest.approx(0.8, abs=0.005)
    assert abs(seen[:50] / (ROWS * 0.8 / 50) - 1).max() < 0.1
    assert (seen[50:] > 0).all()


def test_a_hot_set_has_at_least_one_key() -> None:
    assert counts(HotSet(keys=0.0001, rows=0.5), 10)[0] / ROWS == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("make", "name"),
    [(lambda: Zipf(-1), "exponent"), (lambda: HotSet(2, 0.5), "keys"), (lambda: HotSet(0.5, -1), "rows")],
)
def test_skew_that_makes_no_sense_is_refused(make: object, name: str) -> None:
    assert callable(make)
    with pytest.raises(PipelineError, match=name):
        make()
