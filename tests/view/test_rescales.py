"""Rescales of a pipeline without state, in words; those of others are in tests/cli/test_plan.py."""

from __future__ import annotations

import pytest

from tidegate.rescale.model import Ask, PlanView
from tidegate.view.rescales import plan_line, print_plan


def view(ask: Ask) -> PlanView:
    return PlanView(ask, ask.strategy or "hybrid", (0, 0), (2, 4), (), 0, 0, (0.0, 0.0), "no batch waits")


def test_nothing_is_said_of_nodes_and_how_state_moves(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_line(view(Ask(parallelism=4))) == "parallelism 2 -> 4: there is no state to move"
    print_plan(view(Ask(parallelism=4)))
    assert capsys.readouterr().out.splitlines() == [
        "parallelism 2 -> 4",
        "there is no state to move",
        "no batch waits",
    ]


def test_a_strategy_that_was_asked_for_is_named() -> None:
    asked = view(Ask(parallelism=4, strategy="restart"))
    assert plan_line(asked) == "parallelism 2 -> 4, restart: there is no state to move"
