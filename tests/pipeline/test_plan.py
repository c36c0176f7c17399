"""Every way to declare a pipeline that cannot run is a clear error before any JVM starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from inspect import currentframe
from typing import Any

import pytest

import tidegate as tg
from tidegate.pipeline.window import Window


def readings(pipeline: tg.Pipeline) -> tg.Stream:
    return pipeline.source(tg.sources.Sensors(sensors=10, rate=10))


def line() -> int:
    """The line of the caller."""
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def refused(act: Callable[[], object]) -> tg.PipelineError:
    with pytest.raises(tg.PipelineError) as caught:
        act()
    return caught.value


def test_a_whole_pipeline_passes() -> None:
    p = tg.Pipeline("good")
    readings(p).filter("value > 30").sink(tg.sinks.Discard())
    assert [step.name for step in p.plan().steps] == ["source-1", "filter-1", "sink-1"]


def test_no_source() -> None:
    assert "no source" in str(refused(tg.Pipeline("empty").plan))


def test_no_sink() -> None:
    p = tg.Pipeline("no-sink")
    readings(p).filter("value > 30"); at = line()  # fmt: skip  # noqa: E702
    error = refused(p.plan)
    assert error.step == "filter-1"
    assert error.where is not None
    assert (error.where.file.rsplit("/", 1)[-1], error.where.line) == ("test_plan.py", at)
    assert ".sink(" in str(error)


def test_a_stream_that_goes_nowhere_beside_one_that_does() -> None:
    p = tg.Pipeline("loose-end")
    stream = readings(p)
    stream.sink(tg.sinks.Discard())
    stream.select("id")
    assert refused(p.plan).step == "select-1"


def test_an_unused_branch_is_fine() -> None:
    p = tg.Pipeline("branch")
    hot, _ = readings(p).branch("value > 30")
    hot.sink(tg.sinks.Discard())
    p.plan()


def test_a_join_without_window() -> None:
    p = tg.Pipeline("join")
    left, right = readings(p), readings(p)
    error = refused(lambda: left.window_join(right, on="id"))
    assert (error.step, "window" in error.problem) == ("window_join", True)
    assert error.where is not None
    assert error.where.file.endswith("test_plan.py")


@pytest.mark.parametrize("on", [(), ["a", 1], [("a", "b", "c")]])
def test_a_join_on_nonsense(on: object) -> None:
    p = tg.Pipeline("join")
    left, right = readings(p), readings(p)
    error = refused(lambda: left.window_join(right, on=on, window=tg.tumbling("4 s")))  # type: ignore[arg-type]
    assert "on=" in str(error)


def test_two_sinks_with_one_path() -> None:
    p = tg.Pipeline("twins")
    stream = readings(p)
    stream.sink(tg.sinks.Files("out/a"))
    stream.sink(tg.sinks.Files("./out/../out/a"))
    error = refused(p.plan)
    assert (error.step, "sink-1" in str(error)) == ("sink-2", True)


@pytest.mark.parametrize("out", ["loop", "loop/inner", "."])
def test_a_cycle(out: str) -> None:
    p = tg.Pipeline("cycle")
    p.source(tg.sources.Files("loop", format="json", schema="id bigint")).sink(tg.sinks.Files(out))
    error = refused(p.plan)
    assert (error.step, "cycle" in str(error)) == ("sink-1", True)


@pytest.mark.parametrize("text", ["4 lightyears", "soon", "", "-1 s", "4", 4])
def test_a_bad_duration(text: Any) -> None:
    error = refused(lambda: tg.tumbling(text))
    assert (error.step, "not a duration" in str(error)) == ("tumbling window", True)
    assert error.where is not None


def test_a_window_of_no_length() -> None:
    assert "exceed zero" in str(refused(lambda: tg.session("0 s")))


def test_a_slide_that_does_not_divide() -> None:
    assert "divide" in str(refused(lambda: tg.sliding("10 s", every="3 s")))


def test_a_bad_grace_names_the_source() -> None:
    p = tg.Pipeline("grace")
    p.source(tg.sources.Files("in", format="json", schema="t timestamp", grace="later")).sink(
        tg.sinks.Discard()
    )
    assert refused(p.plan).step == "source-1"


@pytest.mark.parametrize("verb", ["aggregate", "window", "deduplicate", "top_n", "process", "connect"])
def test_a_keyed_step_without_key(verb: str) -> None:
    stream = readings(tg.Pipeline("keyless"))
    error = refused(lambda: getattr(stream, verb))
    assert (error.step, "key_by" in str(error)) == (verb, True)


@pytest.mark.parametrize("verb", ["filter", "sink", "window_join", "key_by"])
def test_a_step_between_key_and_keyed_step(verb: str) -> None:
    stream = readings(tg.Pipeline("keyed")).key_by("id")
    error = refused(lambda: getattr(stream, verb))
    assert (error.step, "call it before" in str(error)) == (verb, True)


def test_a_key_of_no_columns() -> None:
    assert refused(readings(tg.Pipeline("keyless")).key_by).step == "key_by"


def test_a_window_without_event_time() -> None:
    p = tg.Pipeline("timeless")
    rows = p.source(tg.sources.Files("in", format="json", schema="id bigint"))
    rows.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    error = refused(p.plan)
    assert (error.step, "event_time=" in str(error)) == ("aggregate-1", True)


@pytest.mark.parametrize(
    "declare",
    [
        lambda: tg.sources.Sensors(sensors=0),
        lambda: tg.sources.Ramp(1, 2, "soon"),
        lambda: tg.sources.Files("in", format="xml"),  # type: ignore[arg-type]
        lambda: tg.sources.Kafka("", "topic"),
        lambda: tg.sinks.Files("out", format="xml"),  # type: ignore[arg-type]
        lambda: tg.sinks.Files("ftp://host/out"),
        lambda: tg.sinks.Kafka("host:9092", ""),
        lambda: tg.sinks.Postgres("", "table"),
    ],
)
def test_a_source_or_sink_that_cannot_be(declare: Callable[[], object]) -> None:
    error = refused(declare)
    assert error.step is not None
    assert error.where is not None
    assert error.where.file.endswith("test_plan.py")
    assert error.where.line == declare.__code__.co_firstlineno


def test_streams_of_two_pipelines() -> None:
    one, other = readings(tg.Pipeline("one")), readings(tg.Pipeline("other"))
    assert "two pipelines" in str(refused(lambda: one.union(other)))


def test_a_name_that_no_folder_can_have() -> None:
    assert refused(lambda: tg.Pipeline("a/b")).where is not None


def test_no_aggregate() -> None:
    keyed = readings(tg.Pipeline("none")).key_by("id")
    assert "no aggregate" in str(refused(keyed.aggregate))
    assert "tg.agg" in str(refused(lambda: keyed.aggregate(n=len)))  # type: ignore[arg-type]


def test_steps_have_names_of_their_own() -> None:
    p = tg.Pipeline("names")
    keyed = readings(p).key_by("id")
    keyed.named("mine").aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    assert "mine" in str(p)
    assert "already" in str(refused(lambda: keyed.named("mine").deduplicate()))
    assert "is not a step name" in str(refused(lambda: keyed.named("a name").deduplicate()))


def test_keyed_steps_are_declared_and_drawn() -> None:
    p = tg.Pipeline("keyed")
    left, right = readings(p), readings(p)
    joined = left.window_join(right, on=("id", "value"), window=tg.tumbling("4 s"))
    joined.key_by("id").aggregate(n=tg.agg.count(), top=tg.agg.max("value")).sink(tg.sinks.Discard())
    p.plan()
    assert "window_join-1 + source-2" in str(p)
    assert "inner on id = value per tumbling 4 s" in str(p)
    assert "n = count(), top = max(value)" in str(p)


def test_the_closing_watermark_is_just_past_what_waits_along_the_way() -> None:
    second = 1_000_000
    newest = {"source-1": 9 * second, "source-2": 5 * second}

    def closing(declare: Callable[[tg.Stream, tg.Stream], tg.Stream]) -> int | None:
        p = tg.Pipeline("closing")
        left, right = readings(p), readings(p)
        left.union(right).sink(tg.sinks.Discard())
        declare(left, right).sink(tg.sinks.Discard())
        return p.plan().closing_watermark(newest)

    def windows(stream: tg.Stream, window: Window) -> tg.Stream:
        return stream.key_by("id").window(window).aggregate(n=tg.agg.count())

    four, ten = tg.tumbling("4 s"), tg.tumbling("10 s")
    sliding, session = tg.sliding("4 s", every="2 s"), tg.session("3 s")
    assert closing(lambda left, _: left.key_by("id").aggregate(n=tg.agg.count())) is None
    assert closing(lambda left, _: windows(left, four)) == 12 * second
    assert closing(lambda _, right: windows(right, four)) == 8 * second, "each source has its own times"
    assert closing(lambda left, _: windows(windows(left, tg.tumbling("2 s")), ten)) == 10 * second
    assert closing(lambda left, _: windows(windows(left, ten), four)) == 12 * second
    assert closing(lambda left, _: windows(left, sliding)) == 12 * second
    assert closing(lambda left, _: windows(left, session)) == 12 * second + 1, "its end is part of it"
    assert closing(lambda left, right: left.window_join(right, on="id", window=ten)) == 10 * second

    def near(left: tg.Stream, right: tg.Stream) -> tg.Stream:
        return left.interval_join(right, on="id", before="60 s", after="5 s")

    assert closing(near) == 14 * second + 1
    assert closing(lambda left, right: windows(near(left, right), four)) == 17 * second, "it is 5 s behind"


def test_nothing_is_closed_before_anything_was_seen() -> None:
    p = tg.Pipeline("unseen")
    readings(p).key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count()).sink(tg.sinks.Discard())
    assert p.plan().closing_watermark({}) is None


def test_rows_that_a_join_has_held_back_are_behind_the_watermark() -> None:
    p = tg.Pipeline("lag")
    left, right = readings(p), readings(p)
    pairs = left.interval_join(right, on="id", before="60 s", after="5 s")
    wider = pairs.select("id", "timestamp", "timestamp_right").interval_join(left, on="id", after="2 s")
    counts = wider.key_by("id").window(tg.tumbling("4 s")).aggregate(n=tg.agg.count())
    counts.sink(tg.sinks.Discard())
    plan = p.plan()
    assert [plan.delay(stream.step) for stream in (pairs, wider, counts)] == [0, 5_000_000, 7_000_000]


def test_sessions_are_not_joined_and_the_error_says_why() -> None:
    p = tg.Pipeline("sessions")
    left, right = readings(p), readings(p)
    error = refused(lambda: left.window_join(right, on="id", window=tg.session("4 s")))
    assert error.where is not None
    assert error.where.line == line() - 2
    assert "begin and end at different times" in str(error)
    assert "interval_join" in str(error)


def test_declaring_needs_neither_pyspark_nor_a_jvm() -> None:
    code = """
import sys, tidegate as tg
p = tg.Pipeline("light")
p.source(tg.sources.Sensors(sensors=10, rate=10)).filter("value > 30").sink(tg.sinks.Discard())
print(p.plan() and p, p._repr_html_()[:4])
assert "pyspark" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "filter-1" in done.stdout
