"""The steps that keep state per key: plain values, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tidegate.pipeline.agg import AggregateFunction
from tidegate.pipeline.step import Mode, Schema, Step
from tidegate.pipeline.window import END, START, EventTime, Session, Window
from tidegate.sources import columns as known
from tidegate.sources.columns import Columns

TIMER = "timer"
"""The column of a `process` step's state that says when its function is to be called."""

Keys: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs (column on the left, column on the right)."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyedStep(Step):
    """A step with state per key. A new one is this class, a method of `KeyedStream` and its operator."""

    role = "keyed"
    stateful = True
    streams = False

    @property
    def spread_by_key(self) -> bool:
        """Whether the key alone says which task gets a row."""
        return False

    def keeps(self, columns: Sequence[str]) -> bool:
        return self.spread_by_key and {*columns} <= {*self.keys(0)}

    @property
    def operator(self) -> str:
        """The module whose `from_step(step, *inputs)` makes its operator."""
        return f"tidegate.operators.{self.kind}"

    @property
    def emits(self) -> Mode | None:
        return "append"

    def keys(self, side: int) -> tuple[str, ...]:
        """The key columns of one input."""
        return self.inputs[side].key

    def reads(self, side: int) -> tuple[str, ...]:
        return self.keys(side)

    def wrong_column(self, given: Sequence[Columns | None]) -> str | None:
        for side, columns in enumerate(given):
            for key in self.keys(side) if columns else ():
                kind = known.type_of(columns or {}, key)
                if kind in known.NESTED:
                    return (
                        f"{key!r} is of type {kind}, which cannot be a key; select the parts that make it up"
                    )
        return super(KeyedStep, self).wrong_column(given)

    def meaning(self) -> dict[str, str]:
        """What its state stands for, part by part: a part that changes makes state of before wrong."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate(KeyedStep):
    aggregates: Mapping[str, AggregateFunction]
    window: Window | None
    mode: Mode
    kind = "aggregate"
    needs_final_rows = True

    @property
    def spread_by_key(self) -> bool:
        return self.window is None or isinstance(self.window, Session)

    @property
    def emits(self) -> Mode:
        return self.mode

    @property
    def windows(self) -> Window | None:
        return self.window

    def waits_until(self, newest: int) -> int | None:
        return self.window.last_moment(newest) if self.window and self.mode == "append" else None

    def event_time(self, known: Mapping[Step, EventTime | None]) -> EventTime | None:
        return self.window.event_time if self.window and self.mode == "append" else None

    def reads(self, side: int) -> tuple[str, ...]:
        of_aggregates = [each.column for each in self.aggregates.values() if each.column is not None]
        return (*self.keys(side), *of_aggregates)

    def wrong_column(self, given: Sequence[Columns | None]) -> str | None:
        for aggregate in self.aggregates.values():
            kind = known.type_of(given[0] or {}, aggregate.column or "")
            wrong = known.TIMES | known.OTHERS | known.NESTED
            if aggregate.function in ("sum", "mean", "variance", "quantile") and kind in wrong:
                return f"{aggregate} needs numbers, but {aggregate.column!r} is a {kind}"
        return super(Aggregate, self).wrong_column(given)

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        kinds = {key: known.type_of(given[0] or {}, key) for key in self.keys(0)}
        bounds = dict.fromkeys((START, END), "timestamp") if self.window else {}
        return {**kinds, **bounds, **dict.fromkeys(self.aggregates, "")}

    def describe(self) -> str:
        text = ", ".join(f"{name} = {aggregate}" for name, aggregate in self.aggregates.items())
        return f"{text} per {self.window.describe()}" if self.window else text

    def meaning(self) -> dict[str, str]:
        parts = {name: str(aggregate) for name, aggregate in self.aggregates.items()}
        window = self.window.describe() if self.window else "none"
        return {**parts, "key columns": ", ".join(self.keys(0)), "window": window}


@dataclass(frozen=True, slots=True, eq=False)
class _Join(KeyedStep):
    on: Keys
    how: Literal["inner", "left"]
    needs_final_rows = True

    def keys(self, side: int) -> tuple[str, ...]:
        return tuple(pair[side] for pair in self.on)

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        left, right = given
        if left is None or right is None:
            return None
        found = {**(dict.fromkeys((START, END), "timestamp") if self.windows else {}), **left}
        alike = [mine for mine, theirs in self.on if mine == theirs]
        for name, kind in right.items():
            if name not in alike:
                found[f"{name}_right" if name in found else name] = kind
        return found


@dataclass(frozen=True, slots=True, eq=False)
class WindowJoin(_Join):
    window: Window
    kind = "window_join"

    @property
    def windows(self) -> Window:
        return self.window

    def waits_until(self, newest: int) -> int:
        return self.window.last_moment(newest)

    def event_time(self, known: Mapping[Step, EventTime | None]) -> EventTime:
        return self.window.event_time

    def describe(self) -> str:
        return f"{self.how} on {show_keys(self.on)} per {self.window.describe()}"

    def meaning(self) -> dict[str, str]:
        return {"on": show_keys(self.on), "window": self.window.describe()}


@dataclass(frozen=True, slots=True, eq=False)
class IntervalJoin(_Join):
    """Pairs whose right event lies between `before` and `after` seconds of the left one."""

    before: float
    after: float
    kind = "interval_join"
    needs_time = True

    def waits_until(self, newest: int) -> int:
        return newest + round(self.after * 1e6)

    @property
    def delay(self) -> float:
        return self.after

    def event_time(self, known: Mapping[Step, EventTime | None]) -> EventTime | None:
        """That of the left row. Only its operator knows by which name the right one has its time."""
        return known[self.inputs[0]]

    def describe(self) -> str:
        return f"{self.how} on {show_keys(self.on)} within -{self.before:g} s .. +{self.after:g} s"

    def meaning(self) -> dict[str, str]:
        return {"on": show_keys(self.on), "before": f"{self.before:g} s", "after": f"{self.after:g} s"}


@dataclass(frozen=True, slots=True, eq=False)
class _Lookup(KeyedStep):
    """Each row of the first input leaves, with what is known from the second."""

    emits = None

    def waits_until(self, newest: int) -> int:
        return newest

    @property
    def forwards(self) -> tuple[Step, ...]:
        return self.inputs[:1]


@dataclass(frozen=True, slots=True, eq=False)
class Connect(_Lookup):
    """Each row of the first input with the latest row of the second that has its key."""

    kind = "connect"


@dataclass(frozen=True, slots=True, eq=False)
class BroadcastJoin(_Lookup):
    """Each row of the first input with every current row of the second where `condition` holds."""

    condition: str
    kind = "broadcast_join"

    def describe(self) -> str:
        return self.condition


@dataclass(frozen=True, slots=True, eq=False)
class Deduplicate(KeyedStep):
    within: float | None
    kind = "deduplicate"
    spread_by_key = True
    needs_final_rows = True

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return given[0]

    def describe(self) -> str:
        return f"within {self.within:g} s" if self.within is not None else "for ever"

    def meaning(self) -> dict[str, str]:
        return {"within": self.describe()}  # Checkpoints hold these very words.


@dataclass(frozen=True, slots=True, eq=False)
class TopN(KeyedStep):
    n: int
    by: str
    kind = "top_n"
    spread_by_key = True
    emits = "update"
    needs_final_rows = True

    def event_time(self, known: Mapping[Step, EventTime | None]) -> None:
        """None: a key's rows leave again with each change."""

    def reads(self, side: int) -> tuple[str, ...]:
        return (*self.keys(side), self.by)

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return given[0] and {**given[0], "rank": "int"}

    def describe(self) -> str:
        return f"{self.n} by {self.by}"

    def meaning(self) -> dict[str, str]:
        return {"n": str(self.n), "by": self.by}


@dataclass(frozen=True, slots=True, eq=False)
class Process(KeyedStep):
    function: Callable[..., Any]
    state_schema: Schema
    output_schema: Schema
    kind = "process"
    spread_by_key = True

    def keeps(self, columns: Sequence[str]) -> bool:
        return False  # Its function may return anything.

    def waits_until(self, newest: int) -> int | None:
        return newest if TIMER in str(self.state_schema) else None

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return known.declared(self.output_schema)

    def describe(self) -> str:
        return getattr(self.function, "__name__", "function")


def show_keys(keys: Keys) -> str:
    """Key pairs as `a, b = c`."""
    return ", ".join(left if left == right else f"{left} = {right}" for left, right in keys)
