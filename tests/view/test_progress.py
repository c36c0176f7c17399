from __future__ import annotations

import pytest

from tidegate.view import progress as shown


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shown, "time", clock)
    return clock


def test_elsewhere_than_on_a_terminal_a_line_is_due_every_two_seconds(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with shown.progress() as show:
        for second in range(6):
            clock.now = float(second)
            show(second, 5, f"{second} rows")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [" 40%  2 rows", " 80%  4 rows"]


def test_a_new_stage_gets_its_line_at_once(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with shown.progress() as show:
        show(0, None, "starting", stage="starting")
        show(0, None, "starting", stage="starting")
        show(0, 4, "moving", stage="moving")
    assert capsys.readouterr().err.splitlines() == ["starting", "moving"]
