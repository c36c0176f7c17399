"""Streams: what a user chains steps on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeGuard

from tidegate.pipeline import keyed_step as keyed
from tidegate.pipeline import step as steps
from tidegate.pipeline.agg import AggregateFunction
from tidegate.pipeline.keyed_step import Keys
from tidegate.pipeline.step import ArrowFunction, Expression, Mode, Schema, Step
from tidegate.pipeline.where import refused
from tidegate.pipeline.window import Session, Window, length
from tidegate.sinks.sink import Sink

if TYPE_CHECKING:
    from tidegate.pipeline.pipeline import Pipeline

On = str | tuple[str, str] | Sequence[str | tuple[str, str]]


class _Declared:
    """A place in a pipeline that more steps can follow."""

    def __init__(self, pipeline: Pipeline, step: Step) -> None:
        self.pipeline = pipeline
        self.step = step

    def _then(self, kind: type[Step], *others: _Declared, name: str | None = None, **fields: Any) -> Stream:
        """Declare a step of this kind; the stream after it."""
        for other in others:
            if not isinstance(other, _Declared):
                raise refused(f"takes streams, not {type(other).__name__}", step=kind.kind)
            if other.pipeline is not self.pipeline:
                raise refused(
                    f"joins streams of two pipelines, {self.pipeline.name!r} and {other.pipeline.name!r}; "
                    "declare both sources in one",
                    step=kind.kind,
                )
        inputs = (self.step, *(other.step for other in others))
        return Stream(self.pipeline, self.pipeline._declare(kind, inputs, name, **fields))


class Stream(_Declared):
    """Rows on their way. Every method declares a step and returns the stream after it."""

    def select(self, *columns: Expression, **named: Expression) -> Stream:
        """Keep just these columns: `select("id", celsius="value")`."""
        if not columns and not named:
            raise refused("keeps no column; name at least one", step="select")
        return self._then(steps.Select, columns=columns, named=named)

    def filter(self, condition: Expression) -> Stream:
        """Keep the rows for which the condition is true (a null is not)."""
        return self._then(steps.Filter, condition=condition)

    def with_column(self, name: str, value: Expression) -> Stream:
        """Add a column, or replace the one of that name."""
        return self._then(steps.WithColumn, column=name, value=value)

    def drop(self, *columns: str) -> Stream:
        """Remove columns; each must be there."""
        return self._then(steps.Drop, columns=columns)

    def union(self, *others: Stream) -> Stream:
        """All rows of this and the other streams; columns are matched by name."""
        if not others:
            raise refused("needs another stream", step="union")
        return self._then(steps.Union, *others)

    def flat_map(self, name: str, array: Expression) -> Stream:
        """One row per element of an array, in column `name`; a row without elements is dropped."""
        return self._then(steps.FlatMap, column=name, array=array)

    def branch(self, *conditions: Expression) -> tuple[Stream, ...]:
        """Split the stream: each row goes to the first condition that is true for it; the last stream has
        the rest."""
        if not conditions:
            raise refused("needs a condition", step="branch")
        return tuple(
            self._then(steps.Branch, conditions=conditions, index=index)
            for index in range(len(conditions) + 1)
        )

    def map_arrow(self, function: ArrowFunction, schema: Schema) -> Stream:
        """Vectorised Python: `function` gets and returns an Arrow record batch.

        `schema` names the columns it returns, as Spark SQL text (`"id bigint, root double"`) or as a
        pyarrow schema; they are cast to it. The function must be deterministic: a batch may run twice.
        """
        if not callable(function):
            raise refused(f"needs a function, not {type(function).__name__}", step="map_arrow")
        return self._then(steps.MapArrow, function=function, schema=schema)

    def key_by(self, *columns: str) -> KeyedStream:
        """Give the rows a key: steps with state follow."""
        if not columns:
            raise refused(
                "needs a column; a stateful step without a key cannot be distributed", step="key_by"
            )
        return KeyedStream(self.pipeline, self._then(steps.KeyBy, columns=columns).step)

    def window_join(
        self,
        other: Stream,
        *,
        on: On,
        window: Window | None = None,
        how: Literal["inner", "left"] = "inner",
        name: str | None = None,
    ) -> Stream:
        """Pairs of rows of both streams with equal keys in the same window.

        `on` is a column name, a pair (left, right) of names, or a list of those. `name`: see
        `KeyedStream.named`.
        """
        if window is None:
            raise refused(
                "has no window, so its state would grow without bound; pass window=tg.tumbling('4 seconds')",
                step="window_join",
            )
        if isinstance(window, Session):
            raise refused(
                "takes tumbling and sliding windows: the sessions of two streams begin and end at different "
                "times, so no two are the same window. To pair rows that are close in time, use "
                "interval_join; or union both streams and aggregate the sessions of that",
                step="window_join",
            )
        keys = _keys("window_join", on, how)
        return self._then(keyed.WindowJoin, other, name=name, on=keys, window=window, how=how)

    def interval_join(
        self,
        other: Stream,
        *,
        on: On,
        before: str = "0 s",
        after: str = "0 s",
        how: Literal["inner", "left"] = "inner",
        name: str | None = None,
    ) -> Stream:
        """Pairs with equal keys whose right event is at most `before` earlier or `after` later.

        The event time of a pair is the later of both.
        """
        reach = {"before": length(before, "interval_join"), "after": length(after, "interval_join")}
        keys = _keys("interval_join", on, how)
        return self._then(keyed.IntervalJoin, other, name=name, on=keys, how=how, **reach)

    def broadcast_join(self, rules: KeyedStream, *, condition: str, name: str | None = None) -> Stream:
        """Each row with every current row of `rules` (the latest per key) for which `condition` holds."""
        return self._then(keyed.BroadcastJoin, rules, name=name, condition=condition)

    def late(self, side: Literal["left", "right"] = "left") -> Stream:
        """The rows that came too late for the windowed step whose output this stream is.

        They are rows of its input, with the same columns; for a join, of the input on that `side`.
        """
        of = self.step
        if of.windows is None:
            raise refused(f"{of.name} has no windows, so no row comes too late for it", step="late")
        if side not in ("left", "right")[: len(of.inputs)]:
            raise refused(f"{of.name} has no input on the side {side!r}", step="late")
        above = of.inputs[0 if side == "left" else 1].before_key
        return Stream(self.pipeline, self.pipeline._declare(steps.Late, (above,), of=of))

    def sink(self, sink: Sink) -> None:
        """End the stream: its rows go there. A stream may have several sinks."""
        if not isinstance(sink, Sink):
            raise refused(f"takes a sink such as tg.sinks.Files(...), not {sink!r}", step="sink")
        self._then(steps.SinkStep, sink=sink)

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(KeyedStream, name):
            problem = "needs a key, but this stream has no key; call .key_by('column') first"
            raise refused(problem, step=name)
        raise AttributeError(f"a stream has no {name!r}", name=name, obj=self)


class KeyedStream(_Declared):
    """Rows with a key: the steps that keep state."""

    def __init__(self, pipeline: Pipeline, step: Step, name: str | None = None) -> None:
        super().__init__(pipeline, step)
        self._name = name

    def named(self, name: str) -> KeyedStream:
        """Name the step that follows. Its state is kept under that name, so it stays the step's own when
        others are declared before it later; without a name it is kept under kind and number."""
        return KeyedStream(self.pipeline, self.step, name)

    def _then(self, kind: type[Step], *others: _Declared, name: str | None = None, **fields: Any) -> Stream:
        return super()._then(kind, *others, name=name or self._name, **fields)

    def window(self, window: Window, *, emit: Mode = "append") -> WindowedStream:
        """Aggregate per window of event time.

        emit="append": a window is emitted once, when the watermark has passed its end. emit="update": it is
        emitted in every batch that changes it.
        """
        return WindowedStream(self, window, emit)

    def aggregate(self, **aggregates: AggregateFunction) -> Stream:
        """Running aggregates per key: `aggregate(n=tg.agg.count(), total=tg.agg.sum("value"))`.

        Each batch emits the keys that it changed.
        """
        return self._aggregate(aggregates, None, "update")

    def connect(self, other: KeyedStream) -> Stream:
        """Each row with the latest row of `other` that has the same key."""
        return self._then(keyed.Connect, other)

    def deduplicate(self, *, within: str | None = None) -> Stream:
        """The first row of each key; with `within`, the first in that much event time."""
        span = None if within is None else length(within, "deduplicate")
        return self._then(keyed.Deduplicate, within=span)

    def top_n(self, n: int, *, by: str) -> Stream:
        """The n rows of each key with the largest `by`."""
        if n < 1:
            raise refused(f"n={n} must be at least 1", step="top_n")
        return self._then(keyed.TopN, n=n, by=by)

    def process(self, function: Callable[..., Any], *, state_schema: Schema, output_schema: Schema) -> Stream:
        """The user's own vectorised function: `function(rows, state, time)` -> (output, state).

        All are Arrow tables of whole tasks: `rows` of this batch, sorted by key and event time; `state` of
        their keys, one row each, and of the keys whose timer is due. The state that is returned is the
        new state of all of those keys: one that is missing is forgotten. A timestamp column `timer` in the
        state is its timer: once the watermark has reached it, the function is called with that key. The
        function must be deterministic: a batch may run twice.
        """
        if not callable(function):
            raise refused(f"needs a function, not {type(function).__name__}", step="process")
        return self._then(
            keyed.Process, function=function, state_schema=state_schema, output_schema=output_schema
        )

    def _aggregate(
        self, aggregates: dict[str, AggregateFunction], window: Window | None, mode: Mode
    ) -> Stream:
        if not aggregates:
            raise refused("names no aggregate; write e.g. aggregate(n=tg.agg.count())", step="aggregate")
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, AggregateFunction):
                raise refused(
                    f"{name}={aggregate!r} is not an aggregate; use one of tg.agg, e.g. tg.agg.sum('value')",
                    step="aggregate",
                )
        return self._then(keyed.Aggregate, aggregates=dict(aggregates), window=window, mode=mode)

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(Stream, name):
            problem = "cannot follow .key_by(...) directly; call it before that, or after .aggregate(...)"
            raise refused(problem, step=name)
        raise AttributeError(f"a stream with a key has no {name!r}", name=name, obj=self)


class WindowedStream:
    """A keyed stream cut into windows."""

    def __init__(self, stream: KeyedStream, window: Window, emit: Mode) -> None:
        if not isinstance(window, Window):
            raise refused(f"{window!r} is not a window; write tg.tumbling('4 seconds')", step="window")
        if emit not in ("append", "update"):
            raise refused(f"emit={emit!r} is not one of 'append', 'update'", step="window")
        self._stream = stream
        self._window = window
        self._emit = emit

    def aggregate(self, **aggregates: AggregateFunction) -> Stream:
        """Aggregates per key and window."""
        return self._stream._aggregate(aggregates, self._window, self._emit)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a window has no {name!r}, only .aggregate(...)")


def _keys(step: str, on: On, how: str) -> Keys:
    """The keys of a join, checked as `how` is."""
    if how not in ("inner", "left"):
        raise refused(f"how={how!r} is not one of 'inner', 'left'", step=step)
    keys = []
    for key in [on] if isinstance(on, str) or _is_pair(on) else on:
        pair = (key, key) if isinstance(key, str) else key
        if not _is_pair(pair):
            problem = f"on={on!r} is neither a column, a pair of columns nor a list of those"
            raise refused(problem, step=step)
        keys.append(pair)
    if not keys:
        raise refused("on= names no column", step=step)
    return tuple(keys)


def _is_pair(on: object) -> TypeGuard[tuple[str, str]]:
    return isinstance(on, tuple) and len(on) == 2 and all(isinstance(column, str) for column in on)
