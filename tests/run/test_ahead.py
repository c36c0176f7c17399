"""A row with an event time far in the future is put aside, and the watermark stays where it is."""

from __future__ import annotations

import json
import logging
import os
from datetime import timedelta
from pathlib import Path

import pytest

import tidegate as tg
from tests.conftest import Run
from tests.run.readings import START, read
from tests.run.test_closing import add
from tidegate.run.reset import reset

pytestmark = pytest.mark.spark


CENTURY = 76 * 366 * 86_400


def test_one_row_of_2100_closes_no_window(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = add(tmp_path / "in", "first", ("a", 1), ("z", CENTURY), ("a", 5))

    def pipeline() -> tg.Pipeline:
        p = tg.Pipeline("ahead")
        counts = p.source(source).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
        counts.sink(tg.sinks.Files(tmp_path / "out"))
        return p

    with caplog.at_level(logging.WARNING, "tidegate"):
        _, told = run(pipeline(), engine__close_at_end=False)
    assert [(batch.rows_in, batch.ahead, batch.dead_letters) for batch in told] == [(3, 1, 1)]
    assert "source-1 has rows with an event time that is more than 1 day ahead: 1, which" in caplog.text
    (letter,) = read(tmp_path / "checkpoint" / "dead-letters" / "source-1")
    assert json.loads(letter["raw"])["id"] == "z"
    assert "is more than 1 day ahead of the batch, planned at 20" in letter["reason"]
    add(tmp_path / "in", "second", ("a", 2), ("a", 6))
    _, told = run(pipeline())
    assert [batch.late for batch in told] == [0, 0]
    assert sorted((row["id"], row["n"]) for row in read(tmp_path / "out")) == [("a", 2), ("a", 2)]


def test_a_watermark_that_has_run_away_is_noticed_and_set_back(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one_by_one = {f"admission__{name}_rows": 1 for name in ("initial", "min", "max")}

    def go(**settings: object) -> list[int]:
        p = tg.Pipeline("runaway")
        counts = p.source(source).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
        counts.sink(tg.sinks.Files(tmp_path / "out"))
        return [batch.late for batch in run(p, engine__parallelism=1, state__nodes=1, **settings)[1]]

    source = add(tmp_path / "in", "0", ("z", CENTURY))
    for number in range(1, 5):
        add(tmp_path / "in", str(number), ("a", number))
    for number in range(5):  # Spark takes the oldest file first.
        os.utime(tmp_path / "in" / f"{number}.json", (number + 1, number + 1))
    with caplog.at_level(logging.WARNING, "tidegate"):
        assert go(engine__ahead="none", engine__close_at_end=False, **one_by_one) == [0, 0, 1, 1, 1]
    assert "nearly all rows of the last batches were late" in caplog.text
    assert f"tidegate state watermark {tmp_path / 'checkpoint'} --reset" in caplog.text
    reset(tmp_path / "checkpoint", START + timedelta(seconds=10))
    add(tmp_path / "in", "5", ("b", 9), ("a", 13))
    assert go() == [0, 0]
    assert sorted((row["id"], row["n"]) for row in read(tmp_path / "out")) == [("a", 1), ("a", 1), ("b", 1)]
