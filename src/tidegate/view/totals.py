"""The end of a run, for people."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from tidegate.run.summary import Summary
from tidegate.view.figures import backlog, rate, span

_STOPPED = {
    "signal": "it was stopped; the next start resumes here",
    "done": "every source has been read to its end",
    "duration": "it has run for the time that was set",
}


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """Label and text, in order."""
    lie_in = "" if summary.dead_letters_path is None else f" in {summary.dead_letters_path}"
    lag = backlog(None, summary.waiting_files, summary.waiting_bytes)
    rows = [
        ("batches", f"{summary.batches} in {span(summary.seconds)}"),
        ("rows in", f"{summary.rows_in:,} ({rate(summary.rows_per_second)})"),
        ("rows out", f"{summary.rows_out:,}"),
        ("dead letters", f"{summary.dead_letters:,}" + lie_in),
        *([("late", f"{summary.late:,} rows")] if summary.late else []),
        ("lag", lag if summary.lag is None else f"{summary.lag:,} rows left"),
        ("latency", f"p50 {span(summary.latency_p50)}, p99 {span(summary.latency_p99)}"),
        ("batch time", f"p50 {span(summary.batch_seconds_p50)}"),
        ("ended", _STOPPED[summary.stopped_by]),
    ]
    rows.extend((f"output of {name}", place) for name, place in summary.outputs.items())
    return rows


def summary_table(summary: Summary) -> Table:
    """The end of a run, for people."""
    table = Table(title=summary.pipeline, title_justify="left", show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in summary_rows(summary):
        table.add_row(label, Text(value))
    return table
