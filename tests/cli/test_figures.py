from __future__ import annotations

import pytest

from tidegate.cli.figures import count, rate, span, sparkline


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999.4, "999"), (999.6, "1.00 k"), (1e6, "1.00 M"), (5e15, "5000 T")]
)
def test_counts_keep_three_digits(value: float, text: str) -> None:
    assert count(value) == text
    assert rate(value) == f"{text}/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (0.9994, "999 ms"), (0.9996, "1 s"), (59.96, "1 min 00 s"), (3599.6, "1 h 00 min")],
)
def test_times_take_the_unit_that_suits(value: float, text: str) -> None:
    assert span(value) == text


def test_a_sparkline_shows_the_newest_values() -> None:
    assert sparkline([8, 0, 0, 4], width=3) == "▁▁█"
    assert sparkline([0, 0], width=5) == "▁▁"
    assert sparkline([], width=5) == ""
