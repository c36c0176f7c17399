"""Signals that ask a run to stop."""

from __future__ import annotations

import signal

import pytest

from tidegate.run import signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_one_stops_the_run_and_the_next_goes_its_usual_way(number: signal.Signals) -> None:
    before, stops = signal.getsignal(number), []
    with signals.calling(lambda: stops.append(number)):
        signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    assert stops == [number]
    assert signal.getsignal(number) is before


def test_under_nohup_a_run_outlives_its_terminal() -> None:
    before, stops = signal.signal(signal.SIGHUP, signal.SIG_IGN), []
    try:
        with signals.calling(lambda: stops.append("hangup")):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stops == []
