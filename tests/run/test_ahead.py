"""A row with an event time far in the future is put aside, and the watermark stays where it is."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import tidegate as tg
from tests.conftest import Run
from tests.run.readings import read
from tests.run.test_closing import add

pytestmark = pytest.mark.spark


def test_one_row_of_2100_closes_no_window(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    century = 76 * 366 * 86_400
    source = add(tmp_path / "in", "first", ("a", 1), ("z", century), ("a", 5))

    def pipeline() -> tg.Pipeline:
        p = tg.Pipeline("ahead")
        counts = p.source(source).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
        counts.sink(tg.sinks.Files(tmp_path / "out"))
        return p

    with caplog.at_level(logging.WARNING, "tidegate"):
        _, told = run(pipeline(), engine__close_at_end=False)
    assert [(batch.rows_in, batch.ahead, batch.dead_letters) for batch in told] == [(3, 1, 1)]
    assert "1 rows of source-1 have an event time that is more than 1 day ahead" in caplog.text
    (letter,) = read(tmp_path / "checkpoint" / "dead-letters" / "source-1")
    assert json.loads(letter["raw"])["id"] == "z"
    assert "is more than 1 day ahead of the batch, planned at 20" in letter["reason"]
    add(tmp_path / "in", "second", ("a", 2), ("a", 6))
    _, told = run(pipeline())
    assert [batch.late for batch in told] == [0, 0]
    assert sorted((row["id"], row["n"]) for row in read(tmp_path / "out")) == [("a", 2), ("a", 2)]
