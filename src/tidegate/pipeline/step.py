"""The steps that a pipeline is made of: plain values, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from tidegate.errors import Where
from tidegate.pipeline.agg import Aggregate as AggregateFunction
from tidegate.pipeline.window import Window
from tidegate.sinks.sink import Sink
from tidegate.sources.source import Source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

Expression: TypeAlias = "str | Callable[[DataFrame], Column]"
"""A Spark SQL expression as text, or a function from the DataFrame to a Column."""

ArrowFunction: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]"
Schema: TypeAlias = "str | pa.Schema"
Mode: TypeAlias = Literal["append", "update"]
"""What leaves a step with state: rows that are final, or rows that later ones of the same key replace."""

Keys: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs (column on the left, column on the right)."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step: compared by identity, since two filters with one condition are two steps."""

    name: str
    where: Where
    inputs: tuple[Step, ...]

    kind: ClassVar[str]
    keyed: ClassVar[bool] = False
    """Whether the step keeps state per key."""

    def describe(self) -> str:
        """What the step does, in one short line."""
        return ""

    def meaning(self) -> dict[str, str]:
        """What its state stands for, part by part: a part that changes makes state of before wrong."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class SourceStep(Step):
    source: Source
    kind = "source"

    def describe(self) -> str:
        return self.source.describe()


@dataclass(frozen=True, slots=True, eq=False)
class Select(Step):
    columns: tuple[Expression, ...]
    named: Mapping[str, Expression]
    kind = "select"

    def describe(self) -> str:
        named = [f"{show(value)} as {name}" for name, value in self.named.items()]
        return ", ".join([*map(show, self.columns), *named])


@dataclass(frozen=True, slots=True, eq=False)
class Filter(Step):
    condition: Expression
    kind = "filter"

    def describe(self) -> str:
        return show(self.condition)


@dataclass(frozen=True, slots=True, eq=False)
class WithColumn(Step):
    column: str
    value: Expression
    kind = "with_column"

    def describe(self) -> str:
        return f"{self.column} = {show(self.value)}"


@dataclass(frozen=True, slots=True, eq=False)
class Drop(Step):
    columns: tuple[str, ...]
    kind = "drop"

    def describe(self) -> str:
        return ", ".join(self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Union(Step):
    kind = "union"


@dataclass(frozen=True, slots=True, eq=False)
class FlatMap(Step):
    column: str
    array: Expression
    kind = "flat_map"

    def describe(self) -> str:
        return f"{self.column} in {show(self.array)}"


@dataclass(frozen=True, slots=True, eq=False)
class Branch(Step):
    """The rows whose first true condition is number `index`; past the last one, those with none."""

    conditions: tuple[Expression, ...]
    index: int
    kind = "branch"

    def describe(self) -> str:
        if self.index == len(self.conditions):
            return "the rest"
        return show(self.conditions[self.index])


@dataclass(frozen=True, slots=True, eq=False)
class MapArrow(Step):
    function: ArrowFunction
    schema: Schema
    kind = "map_arrow"

    def describe(self) -> str:
        return getattr(self.function, "__name__", "function")


@dataclass(frozen=True, slots=True, eq=False)
class SinkStep(Step):
    sink: Sink
    kind = "sink"

    def describe(self) -> str:
        return self.sink.describe()


@dataclass(frozen=True, slots=True, eq=False)
class KeyBy(Step):
    columns: tuple[str, ...]
    kind = "key_by"
    keyed = True

    def describe(self) -> str:
        return ", ".join(self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate(Step):
    aggregates: Mapping[str, AggregateFunction]
    window: Window | None
    emit: Mode
    kind = "aggregate"
    keyed = True

    def describe(self) -> str:
        text = ", ".join(f"{name} = {aggregate}" for name, aggregate in self.aggregates.items())
        return f"{text} per {self.window.describe()}" if self.window else text

    def meaning(self) -> dict[str, str]:
        parts = {name: str(aggregate) for name, aggregate in self.aggregates.items()}
        return {**parts, "window": self.window.describe() if self.window else "none"}


@dataclass(frozen=True, slots=True, eq=False)
class WindowJoin(Step):
    on: Keys
    window: Window
    how: Literal["inner", "left"]
    kind = "window_join"
    keyed = True

    def describe(self) -> str:
        return f"{self.how} on {show_keys(self.on)} per {self.window.describe()}"

    def meaning(self) -> dict[str, str]:
        return {"on": show_keys(self.on), "window": self.window.describe()}


@dataclass(frozen=True, slots=True, eq=False)
class IntervalJoin(Step):
    """Pairs whose right event lies between `before` and `after` seconds of the left one."""

    on: Keys
    before: float
    after: float
    how: Literal["inner", "left"]
    kind = "interval_join"
    keyed = True

    def describe(self) -> str:
        return f"{self.how} on {show_keys(self.on)} within -{self.before:g} s .. +{self.after:g} s"

    def meaning(self) -> dict[str, str]:
        return {"on": show_keys(self.on), "before": f"{self.before:g} s", "after": f"{self.after:g} s"}


@dataclass(frozen=True, slots=True, eq=False)
class Connect(Step):
    """Each row of the first input with the latest row of the second that has its key."""

    kind = "connect"
    keyed = True


@dataclass(frozen=True, slots=True, eq=False)
class BroadcastJoin(Step):
    """Each row of the first input with every current row of the second where `condition` holds."""

    condition: str
    kind = "broadcast_join"
    keyed = True

    def describe(self) -> str:
        return self.condition


@dataclass(frozen=True, slots=True, eq=False)
class Deduplicate(Step):
    within: float | None
    kind = "deduplicate"
    keyed = True

    def describe(self) -> str:
        return f"within {self.within:g} s" if self.within is not None else "for ever"

    def meaning(self) -> dict[str, str]:
        return {"within": self.describe()}


@dataclass(frozen=True, slots=True, eq=False)
class TopN(Step):
    n: int
    by: str
    kind = "top_n"
    keyed = True

    def describe(self) -> str:
        return f"{self.n} by {self.by}"

    def meaning(self) -> dict[str, str]:
        return {"n": str(self.n), "by": self.by}


@dataclass(frozen=True, slots=True, eq=False)
class Process(Step):
    function: Callable[..., Any]
    state_schema: Schema
    output_schema: Schema
    kind = "process"
    keyed = True

    def describe(self) -> str:
        return getattr(self.function, "__name__", "function")


@dataclass(frozen=True, slots=True, eq=False)
class Late(Step):
    """The rows of one input of the windowed step `of` that came after their window was closed."""

    of: Step
    side: Literal["left", "right"]
    kind = "late"

    def describe(self) -> str:
        return f"too late for {self.of.name}"


def show(expression: Expression) -> str:
    """An expression in one line; a function by its name."""
    if isinstance(expression, str):
        return " ".join(expression.split())
    name = getattr(expression, "__name__", "function")
    return "λ" if name == "<lambda>" else f"{name}()"


def show_keys(keys: Keys) -> str:
    """Key pairs as `a, b = c`."""
    return ", ".join(left if left == right else f"{left} = {right}" for left, right in keys)
