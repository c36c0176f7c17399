"""What Spark's analyser finds wrong is told with the step and its line, before the query starts."""

from __future__ import annotations

from collections.abc import Callable
from inspect import currentframe

import pytest

import tidegate as tg
from tests.conftest import Run

pytestmark = pytest.mark.spark

WRONG: dict[str, tuple[Callable[[tg.Stream], tg.Stream], str, str]] = {
    "unknown column": (lambda s: s.filter("valu > 30"), "filter-1", "valu"),
    "bad syntax": (lambda s: s.filter("value > > 3"), "filter-1", "yntax"),
    "not a condition": (lambda s: s.filter("value"), "filter-1", "boolean"),
    "type mismatch": (lambda s: s.with_column("x", "timestamp + value"), "with_column-1", "type"),
    "unknown function": (lambda s: s.select("fly(id)"), "select-1", "fly"),
    "dropped column": (lambda s: s.drop("nothing"), "drop-1", "nothing"),
    "not an array": (lambda s: s.flat_map("x", "id"), "flat_map-1", "ARRAY"),
    "column of a function": (lambda s: s.filter(lambda df: df.nothing > 1), "filter-1", "nothing"),
    "not a column": (lambda s: s.filter(lambda df: 3), "filter-1", "Column"),  # type: ignore[arg-type, return-value]
    "bad schema": (lambda s: s.map_arrow(lambda b: b, "id bigint,,"), "map_arrow-1", "yntax"),
    "union of other columns": (lambda s: s.union(s.select("id")), "union-1", "timestamp"),
    "branch condition": (lambda s: s.branch("nothing > 1")[0], "branch-1", "nothing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_step_and_the_line_are_named(run: Run, case: str) -> None:
    declare, step, word = WRONG[case]
    p = tg.Pipeline("wrong")
    declare(p.source(tg.sources.Sensors(rows=10))).sink(tg.sinks.Discard())
    with pytest.raises(tg.PipelineError) as caught:
        run(p)
    assert caught.value.step == step
    assert caught.value.where is not None
    assert caught.value.where.file.endswith("test_translation.py")
    assert caught.value.where.line == declare.__code__.co_firstlineno
    assert word in caught.value.problem
    assert "\n" not in caught.value.problem


def test_an_event_time_that_is_none_of_the_columns(run: Run, tmp_path: object) -> None:
    p = tg.Pipeline("wrong")
    source = tg.sources.Files(f"{tmp_path}/in", format="json", schema="id bigint, t string", event_time="t")
    frame = currentframe()
    assert frame is not None
    p.source(source).sink(tg.sinks.Discard())
    at = frame.f_lineno - 1
    with pytest.raises(tg.PipelineError, match="must be a timestamp") as caught:
        run(p)
    assert (caught.value.step, caught.value.where and caught.value.where.line) == ("source-1", at)
