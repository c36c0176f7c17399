"""Columns that cannot be a key are refused where a stream enters an operator."""

from __future__ import annotations

import pytest

from tests.operators.arranging import given_input
from tidegate.errors import PipelineError


@pytest.mark.parametrize(
    ("columns", "problem"), [("j int", "no column 'k' among"), ("k array<int>", "cannot be a key")]
)
def test_a_key_that_is_none_is_refused(columns: str, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        given_input(columns)
