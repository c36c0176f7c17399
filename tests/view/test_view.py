from __future__ import annotations

import io
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Literal

import pytest
from rich.console import Console

from tests.cluster.kit import await_that
from tests.view.batches import START, batch
from tidegate.run.progress import BatchProgress
from tidegate.run.summary import Summary
from tidegate.view.json import JsonView
from tidegate.view.lines import LinesView
from tidegate.view.live import LiveView
from tidegate.view.totals import summary_table
from tidegate.view.trend import trend
from tidegate.view.view import View, for_mode

SUMMARY = Summary(
    pipeline="temperature",
    batches=60,
    rows_in=75_000_000,
    rows_out=24_000_000,
    dead_letters=3,
    seconds=61.2,
    rows_per_second=1_225_490.0,
    latency_p50=0.82,
    latency_p99=None,
    batch_seconds_p50=0.64,
    outputs=MappingProxyType({"hot": "out/hot"}),
    stopped_by="duration",
    dead_letters_path=".tidegate/temperature/dead-letters",
    lag=12_500,
)


@pytest.fixture
def asked() -> Iterator[list[int]]:
    """The signals that arrive meanwhile."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: arrived.append(number))
    yield arrived
    signal.signal(signal.SIGTERM, before)


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drawn(view: Callable[[Console], LiveView], *batches: BatchProgress, width: int) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), legacy_windows=False)
    live = view(console)
    for progress in batches:
        live(progress)
    console.print(live.render())
    return console.export_text()


@pytest.mark.parametrize("behind", [None, 4.6])
def test_the_views_say_that_batches_take_longer_to_catch_up(behind: float | None) -> None:
    progress = replace(batch(1), catching_up=behind)
    written = io.StringIO()
    lines = LinesView(written, every=0.0, clock=Clock())
    lines(progress)
    for text in (written.getvalue(), drawn(LiveView, progress, width=120)):
        assert ("catching up in batches of 4.60 s" in text) == (behind is not None)


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_shows_every_figure(width: int) -> None:
    text = drawn(LiveView, *(batch(number) for number in range(70)), width=width)
    for fact in (
        "temperature",
        "1.25 M/s",
        "1.95 M/s",
        "87.5 M in all",
        "steady",
        "820 ms",
        "p99 1.35 s",
        "640 ms",
        "64%",
        "of 1 s",
        "parallelism 7",
        "limit 1.30 M rows",
        "watermark 5 s behind",
        "dead letters 0",
        "hot  28.0 M rows",
        "batch 69",
    ):
        assert fact in text
    assert max(len(line) for line in text.splitlines()) <= width
    assert len(text.splitlines()) <= 14


@pytest.mark.parametrize("width", range(60, 121, 4))
def test_the_live_view_breaks_lines_between_facts(width: int) -> None:
    kept = replace(batch(0), state_rows=100_000, state_bytes=3_200_000, catching_up=4.6)
    text = drawn(LiveView, kept, width=width)
    for fact in ("catching up in batches of 4.60 s", "watermark 5 s behind", "dead letters 0"):
        assert fact in text


def test_the_live_view_gives_a_wide_terminal_a_longer_history() -> None:
    batches = [batch(number) for number in range(70)]
    graphs = [
        max(line.count("█") for line in drawn(LiveView, *batches, width=width).splitlines())
        for width in (80, 120)
    ]
    assert graphs == [34, 60]


def test_the_live_view_shows_that_the_lag_grows_and_adds_dead_letters_up() -> None:
    text = drawn(
        LiveView,
        *(batch(number, lag=200_000 * number, dead_letters=2, took=1.3) for number in range(5)),
        width=80,
    )
    assert "▲ 200 k/s" in text
    assert "dead letters 10" in text
    assert "130%" in text


def test_state_and_late_rows_are_shown_where_there_are_any() -> None:
    kept = replace(batch(0), state_rows=100_000, state_bytes=3_200_000, state_wire=9_000, late=7)
    text = drawn(LiveView, kept, replace(kept, batch_id=1), width=100)
    assert "state 100 k rows, 3.20 MB" in text
    assert "across hosts" not in text
    assert "late 14" in text
    assert "state" not in drawn(LiveView, batch(0), width=100)
    stream = io.StringIO()
    with LinesView(stream) as lines:
        lines(kept)
    lines.summarise(replace(SUMMARY, late=7))
    assert "| state 100 k rows | late 7" in stream.getvalue()
    assert "late: 7 rows" in stream.getvalue().splitlines()


def test_state_that_crosses_hosts_is_shown() -> None:
    crossed = replace(batch(0), state_rows=100_000, state_wire=8_000, state_wire_remote=1_000)
    assert "state across hosts 12%" in drawn(LiveView, crossed, width=100)
    stream = io.StringIO()
    with LinesView(stream) as lines:
        lines(crossed)
    assert "| state 100 k rows | state across hosts 12%" in stream.getvalue()


def test_the_live_view_shows_what_it_does_not_know_as_a_dash() -> None:
    unknown = replace(batch(1), lag=None, latency_p50=None, latency_p99=None, limit=None, watermark=None)
    text = drawn(LiveView, unknown, width=80)
    assert "p99 -" in text
    assert "limit" not in text
    assert "watermark" not in text


def test_a_source_that_is_silent_is_named() -> None:
    quiet = replace(batch(0), silent={"doors": 75.0, "lamps": 2.0, "gates": 12.0}, idle=("doors",))
    stream = io.StringIO()
    with LinesView(stream) as lines:
        lines(quiet)
    for text in (drawn(LiveView, quiet, width=200), stream.getvalue()):
        assert "doors silent for 1 m 15 s (not waited for)" in text
        assert "gates silent for 12 s" in text
        assert "lamps" not in text


def test_files_that_wait_are_shown_where_rows_cannot_be_told() -> None:
    waiting = replace(batch(1), lag=None, waiting_files=290, waiting_bytes=12_300_000)
    screen = drawn(LiveView, waiting, width=100)
    assert re.search(r"lag +290 files +12.3 MB", screen)
    stream = io.StringIO()
    LinesView(stream)(waiting)
    assert "| lag 290 files, 12.3 MB |" in stream.getvalue()


def test_the_live_view_does_not_know_a_latency_below_zero() -> None:
    text = drawn(LiveView, replace(batch(1), latency_p50=-3.0, latency_p99=-1.0), width=80)
    (row,) = [line for line in text.splitlines() if "latency" in line]
    assert row.split()[1:6] == ["latency", "p50", "-", "p99", "-"]


def test_the_live_view_shows_a_long_latency_whole() -> None:
    text = drawn(LiveView, replace(batch(1), latency_p50=3_403.0, latency_p99=86_000.0), width=80)
    assert "56 m 43 s" in text
    assert "p99 23 h 53 m" in text


def test_the_live_view_leaves_the_first_batch_out_of_its_graphs() -> None:
    text = drawn(LiveView, batch(0, took=30.0), batch(1, took=1.0), batch(2, took=1.0), width=80)
    (row,) = [line for line in text.splitlines() if "batch time" in line]
    assert row.count("█") == 2


def test_the_live_view_takes_its_spinner_away_when_no_batch_came() -> None:
    terminal = Terminal()
    with LiveView(Console(file=terminal, force_terminal=True, width=80)):
        pass
    assert "starting Spark" in terminal.getvalue()
    last_drawn = terminal.getvalue().rindex("starting Spark")
    assert "\x1b[2K" in terminal.getvalue()[last_drawn:]


def test_the_live_view_tells_when_no_batch_comes_any_more() -> None:
    clock = Clock()
    console = Console(record=True, width=80, file=io.StringIO())
    live = LiveView(console, clock=clock)
    live(batch(1))
    clock.now += 12
    console.print(live.render())
    assert "none for 12 s" in console.export_text()


def test_the_live_view_waits_for_the_first_batch() -> None:
    assert "starting Spark" in drawn(LiveView, width=80)


def test_the_lines_view_writes_of_the_last_batch_though_none_follows() -> None:
    stream = io.StringIO()
    with LinesView(stream, every=0.1) as lines:
        for number in range(2):
            lines(batch(number))
        await_that(lambda: " batch 1 " in stream.getvalue(), "the second line is written")


def test_the_lines_view_writes_one_line_per_period_about_all_batches_in_it() -> None:
    clock, stream = Clock(), io.StringIO()
    with LinesView(stream, every=3.0, clock=clock) as lines:
        for number in range(5):
            lines(batch(number, lag=100))
            clock.now += 1
    written = stream.getvalue().splitlines()
    assert [line.split(" | ")[0] for line in written] == [
        "12:00:00 temperature batch 0",
        "12:00:03 temperature batch 3",
        "12:00:04 temperature batch 4",
    ]
    assert [line.split(" | ")[1] for line in written] == ["1.25 M rows", "3.75 M rows", "1.25 M rows"]
    assert written[1].split(" | ")[2:] == [
        "in 1.25 M/s",
        "processing 1.95 M/s",
        "lag 100 (steady)",
        "latency 820 ms, p99 1.35 s",
        "batch 640 ms of 1 s",
        "parallelism 7",
        "limit 1.30 M",
    ]


def test_the_lines_view_says_nothing_about_a_lag_it_does_not_know() -> None:
    stream = io.StringIO()
    with LinesView(stream, every=0.0) as lines:
        lines(batch(0))
        lines(batch(1, lag=None))
    assert [line.split(" | ")[4] for line in stream.getvalue().splitlines()] == ["lag 0", "lag -"]


@pytest.mark.parametrize("mode", ["json", "lines"])
def test_a_reader_that_goes_away_ends_the_run_without_a_word(
    mode: Literal["json", "lines"], asked: list[int]
) -> None:
    arriving, leaving = os.pipe()
    with os.fdopen(leaving, "w") as stream, for_mode(mode, 0.0, stream) as view:
        view(batch(1))
        os.close(arriving)
        for number in range(2, 5):
            view(batch(number))
        view.summarise(SUMMARY)
    assert asked == [signal.SIGTERM]


def test_the_lines_view_writes_plain_text() -> None:
    stream = io.StringIO()
    with LinesView(stream) as lines:
        lines(batch(0, dead_letters=4))
    lines.summarise(SUMMARY)
    assert stream.getvalue().isascii()
    assert "\x1b" not in stream.getvalue()
    assert "dead letters 4" in stream.getvalue()
    assert "output of hot: out/hot" in stream.getvalue().splitlines()


def test_the_json_view_writes_one_object_per_batch_and_the_summary() -> None:
    stream = io.StringIO()
    with JsonView(stream) as view:
        view(batch(1))
        view(replace(batch(2), cut={"files": {"start": None, "end": START}}))
    view.summarise(SUMMARY)
    first, second, last = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["batch_id"] == 1
    assert first["rows_in"] == 1_250_000
    assert datetime.fromisoformat(first["finished_at"]) == START + timedelta(seconds=1)
    assert second["cut"]["files"]["end"].startswith("2026-01-01")
    assert last["summary"]["outputs"] == {"hot": "out/hot"}
    assert last["summary"]["latency_p99"] is None


def test_a_batch_is_out_before_the_next_one_comes() -> None:
    class Flushed(io.StringIO):
        seen = ""

        def flush(self) -> None:
            self.seen = self.getvalue()

    for kind in (JsonView, LinesView):
        stream = Flushed()
        kind(stream)(batch(1))
        assert stream.seen.endswith("\n")


def test_the_summary_table_names_figures_and_outputs() -> None:
    console = Console(record=True, width=80, file=io.StringIO())
    console.print(summary_table(SUMMARY))
    text = console.export_text()
    for fact in (
        "60 in 1 m 01 s",
        "75,000,000 (1.23 M/s)",
        "24,000,000",
        "3 in .tidegate/temperature/dead-letters",
        "12,500 rows left",
        "p50 820 ms, p99 -",
        "out/hot",
    ):
        assert fact in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_auto_is_live_on_a_terminal_and_lines_elsewhere() -> None:
    assert isinstance(for_mode("auto", "3 seconds", io.StringIO()), LinesView)
    assert isinstance(for_mode("auto", "3 seconds", Terminal()), LiveView)


@pytest.mark.parametrize(
    ("mode", "kind"), [("live", LiveView), ("lines", LinesView), ("json", JsonView), ("quiet", View)]
)
def test_a_mode_that_was_asked_for_is_taken(mode: str, kind: type) -> None:
    assert type(for_mode(mode, 1.0, Terminal())) is kind  # type: ignore[arg-type]


def test_the_trend_of_the_lag_ignores_noise() -> None:
    assert trend([batch(0)]) == "unknown"
    assert trend([batch(0, lag=None), batch(1, lag=None)]) == "unknown"
    assert trend([batch(n, lag=n % 2 * 9_000) for n in range(10)]) == "steady"
    assert trend([batch(n, lag=n * 100_000) for n in range(10)]) == "grows"
    assert trend([batch(n, lag=(9 - n) * 100_000) for n in range(10)]) == "shrinks"


def test_what_others_print_stays_out_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    with for_mode("json"):
        print("a row of a console sink")  # noqa: T201
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "a row of a console sink\n")
