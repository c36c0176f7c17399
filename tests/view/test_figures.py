from __future__ import annotations

import pytest

from tidegate.view.figures import count, rate, span, sparkline


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999.4, "999"), (999.6, "1.00 k"), (1e6, "1.00 M"), (5e15, "5000 T")]
)
def test_counts_keep_three_digits(value: float, text: str) -> None:
    assert count(value) == text
    assert rate(value) == f"{text}/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (59.96, "1 m 00 s"),
        (3599.6, "1 h 00 m"),
        (86_399, "1 d 00 h"),
        (8.64e8, "10000 d"),
        (-2, "-"),
    ],
)
def test_times_take_the_unit_that_suits(value: float, text: str) -> None:
    assert span(value) == text


@pytest.mark.parametrize("value", [0.0123, 59.94, 403, 3599, 86_000, 8_639_000, 6.3e7])
def test_times_fit_into_the_live_view(value: float) -> None:
    assert len(span(value)) <= 9


def test_one_spike_does_not_flatten_a_sparkline() -> None:
    assert sparkline([1, 1, 1, 1, 500, 1, 1, 1], width=8) == "████████"
    assert sparkline([0, 0, 0, 0, 500, 0, 0, 0], width=8) == "▁▁▁▁█▁▁▁"


def test_a_sparkline_shows_the_newest_values() -> None:
    assert sparkline([8, 0, 0, 4], width=3) == "▁▁█"
    assert sparkline([0, 0], width=5) == "▁▁"
    assert sparkline([], width=5) == ""
