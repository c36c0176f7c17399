"""The steps that a pipeline is made of: plain values, without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from tidegate.errors import PipelineError, Where
from tidegate.pipeline.window import EventTime, Window
from tidegate.sinks.sink import Sink
from tidegate.sources import columns as known
from tidegate.sources.columns import Columns
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


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step: compared by identity, since two filters with one condition are two steps."""

    name: str
    where: Where
    inputs: tuple[Step, ...]

    # Traits: whoever plans, draws or translates a step asks these and never for its class.
    kind: ClassVar[str]
    role: ClassVar[Literal["source", "step", "keyed", "sink"]] = "step"
    """How it is drawn; "keyed" are `key_by` and the steps that keep state."""
    stateful: ClassVar[bool] = False
    """Whether it keeps state per key: it has an operator, and its rows are shuffled by the route."""
    streams: ClassVar[bool] = True
    """Whether it may run in the streaming query, before rows are handed to a batch."""
    runs_python: ClassVar[bool] = False
    """Whether its input rows go to Python workers as they are."""
    may_go_nowhere: ClassVar[bool] = False
    """Whether it may stand without a step after it."""
    needs_final_rows: ClassVar[bool] = False
    """Whether rows that later ones replace are wrong for it."""

    @property
    def emits(self) -> Mode | None:
        """What leaves it; None: what comes in by the inputs that it forwards."""
        return None

    @property
    def forwards(self) -> tuple[Step, ...]:
        """The inputs whose rows it hands on, changed or not."""
        return self.inputs

    @property
    def windows(self) -> Window | None:
        """The windows that it closes, so that a row can come too late for it."""
        return None

    @property
    def needs_time(self) -> bool:
        """Whether all its sources must have an event time."""
        return self.windows is not None

    def waits_until(self, newest: int) -> int | None:
        """The moment that the watermark must pass before everything has been emitted, except timers, that
        follows from rows with event times up to `newest` (microseconds); None for a step that does not wait.
        """
        return None

    @property
    def delay(self) -> float:
        """Seconds by which rows that leave it may be behind the watermark."""
        return 0.0

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that its rows are keyed by for the step after it."""
        return ()

    @property
    def before_key(self) -> Step:
        """The step that makes its rows: itself, or the one before `key_by`."""
        return self.inputs[0].before_key if self.key else self

    @property
    def fallible(self) -> bool:
        """Whether its rows may hold some that could not be read."""
        return False

    @property
    def reads_all(self) -> bool:
        """Whether it is sure to read all rows that it is given, once."""
        return True

    def event_time(self, known: Mapping[Step, EventTime | None]) -> EventTime | None:
        """Where the rows that leave it carry their event time. `known` has that of its inputs.

        It counts only if there is such a timestamp column in the end.
        """
        times = {known[above] for above in self.forwards}
        return times.pop() if len(times) == 1 else None

    def reads(self, side: int) -> tuple[str, ...]:
        """The columns that it names of one input."""
        return ()

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        """The columns that leave it, by those of its inputs; None where only Spark can tell."""
        return None

    def wrong_column(self, given: Sequence[Columns | None]) -> str | None:
        """What it names of its inputs that is sure not to be there, or of a type that it cannot take."""
        for side, columns in enumerate(given):
            if columns is None:
                continue
            for name in self.reads(side):
                if not known.has(columns, name):
                    return known.missing(columns, name)
        return None

    def keeps(self, columns: Sequence[str]) -> bool:
        """Whether every row that leaves it has these columns from a row of the same Spark partition."""
        return False

    def describe(self) -> str:
        """What the step does, in one short line."""
        return ""

    def error(self, problem: str) -> PipelineError:
        """The error for what is wrong with it, with its name and line."""
        return PipelineError(problem, step=self.name, where=self.where)


@dataclass(frozen=True, slots=True, eq=False)
class SourceStep(Step):
    source: Source
    kind = "source"
    role = "source"

    @property
    def fallible(self) -> bool:
        """A row with a time that is far ahead counts as one that could not be read."""
        return self.source.fallible or self.checks_times

    @property
    def checks_times(self) -> bool:
        """Whether event times that are far ahead are looked for: rows that are known by their offsets alone
        are made by the source itself."""
        return self.source.event_time is not None and not self.source.countable

    @property
    def receipt_name(self) -> str:
        """What the receipts of its dead letters are filed under."""
        return f"dead-letters:{self.name}"

    def event_time(self, known: Mapping[Step, EventTime | None]) -> EventTime | None:
        return EventTime(self.source.event_time) if self.source.event_time else None

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return self.source.known_columns

    def wrong_column(self, given: Sequence[Columns | None]) -> str | None:
        at, columns = self.source.event_time, self.source.known_columns
        if at is None or columns is None:
            return None
        if not known.has(columns, at):
            return f"event_time={at!r}: {known.missing(columns, at)}"
        kind = known.type_of(columns, at)
        if kind in known.NUMBERS | known.OTHERS | known.NESTED:
            return f"event_time={at!r} is a {kind}; it must be a timestamp"
        return None

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

    def event_time(self, known: Mapping[Step, EventTime | None]) -> EventTime | None:
        found = known[self.inputs[0]]
        return found and found.renamed(self._renamed)

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        found: dict[str, str] = {}
        for text in self.columns:
            part = _selected(text, given[0])
            if part is None:
                return None
            found |= part
        return {**found, **{name: _type(value, given[0]) for name, value in self.named.items()}}

    def _renamed(self, column: str) -> str:
        """The name that a column has after the select; its own when it is not plainly renamed."""
        for name, value in self.named.items():
            if value == column:
                return name
        plain = re.compile(rf"\s*`?{re.escape(column)}`?\s+as\s+`?(\w+)`?\s*", re.IGNORECASE)
        return next((match[1] for match in map(plain.fullmatch, map(str, self.columns)) if match), column)


@dataclass(frozen=True, slots=True, eq=False)
class Filter(Step):
    condition: Expression
    kind = "filter"

    def keeps(self, columns: Sequence[str]) -> bool:
        return True

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return given[0]

    def describe(self) -> str:
        return show(self.condition)


@dataclass(frozen=True, slots=True, eq=False)
class WithColumn(Step):
    column: str
    value: Expression
    kind = "with_column"

    def keeps(self, columns: Sequence[str]) -> bool:
        return self.column.lower() not in {name.lower() for name in columns}

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return given[0] and {**given[0], self.column: _type(self.value, given[0])}

    def describe(self) -> str:
        return f"{self.column} = {show(self.value)}"


@dataclass(frozen=True, slots=True, eq=False)
class Drop(Step):
    columns: tuple[str, ...]
    kind = "drop"

    def reads(self, side: int) -> tuple[str, ...]:
        return self.columns

    def keeps(self, columns: Sequence[str]) -> bool:
        return not {name.lower() for name in self.columns} & {name.lower() for name in columns}

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        gone = {name.lower() for name in self.columns}
        return given[0] and {name: kind for name, kind in given[0].items() if name.lower() not in gone}

    def describe(self) -> str:
        return ", ".join(self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Union(Step):
    kind = "union"

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return given[0] and dict.fromkeys(given[0], "")  # Spark may widen types.

    def wrong_column(self, given: Sequence[Columns | None]) -> str | None:
        for name, columns in ((name, columns) for one in given if one for name in one for columns in given):
            if columns is not None and not known.has(columns, name):
                return f"{known.missing(columns, name)}: all streams of a union need the same columns"
        return None


@dataclass(frozen=True, slots=True, eq=False)
class FlatMap(Step):
    column: str
    array: Expression
    kind = "flat_map"

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return given[0] and {**given[0], self.column: ""}

    def describe(self) -> str:
        return f"{self.column} in {show(self.array)}"


@dataclass(frozen=True, slots=True, eq=False)
class Branch(Step):
    """The rows whose first true condition is number `index`; past the last one, those with none."""

    conditions: tuple[Expression, ...]
    index: int
    kind = "branch"
    may_go_nowhere = True

    def keeps(self, columns: Sequence[str]) -> bool:
        return True

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return given[0]

    def describe(self) -> str:
        if self.index == len(self.conditions):
            return "the rest"
        return show(self.conditions[self.index])


@dataclass(frozen=True, slots=True, eq=False)
class MapArrow(Step):
    function: ArrowFunction
    schema: Schema
    kind = "map_arrow"
    runs_python = True

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return known.declared(self.schema)

    def describe(self) -> str:
        return getattr(self.function, "__name__", "function")


@dataclass(frozen=True, slots=True, eq=False)
class SinkStep(Step):
    sink: Sink
    kind = "sink"
    role = "sink"
    streams = False
    may_go_nowhere = True

    @property
    def reads_all(self) -> bool:
        return self.sink.reads_all

    @property
    def receipt_name(self) -> str:
        """What its receipts are filed under: the place, so that sinks may be declared in another order."""
        return self.sink.location or self.name

    def describe(self) -> str:
        return self.sink.describe()


@dataclass(frozen=True, slots=True, eq=False)
class KeyBy(Step):
    columns: tuple[str, ...]
    kind = "key_by"
    role = "keyed"
    streams = False

    @property
    def key(self) -> tuple[str, ...]:
        return self.columns

    def keeps(self, columns: Sequence[str]) -> bool:
        return True

    def reads(self, side: int) -> tuple[str, ...]:
        return self.columns

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return given[0]

    def describe(self) -> str:
        return ", ".join(self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Late(Step):
    """The rows of one input of the windowed step `of` that came after their window was closed."""

    of: Step
    kind = "late"
    streams = False

    def columns_after(self, given: Sequence[Columns | None]) -> Columns | None:
        return given[0]

    def describe(self) -> str:
        return f"too late for {self.of.name}"


_NAME = re.compile(r"\s*(?:`([^`]+)`|([A-Za-z_]\w*))\s*")
_ALIAS = re.compile(r".*[\s)]as\s+(?:`([^`]+)`|([A-Za-z_]\w*))\s*", re.IGNORECASE | re.DOTALL)


def _type(expression: Expression, columns: Columns | None) -> str:
    """The type of an expression that is just a column; empty for any other."""
    plain = _NAME.fullmatch(expression) if isinstance(expression, str) else None
    return known.type_of(columns, plain[1] or plain[2]) if plain and columns else ""


def _selected(expression: Expression, columns: Columns | None) -> Columns | None:
    """The columns that an expression in a `select` stands for; None where only Spark can tell."""
    if not isinstance(expression, str):
        return None
    if expression == "*":
        return columns
    if alias := _ALIAS.fullmatch(expression):
        return {alias[1] or alias[2]: ""}
    plain = _NAME.fullmatch(expression)
    name = (plain[1] or plain[2]) if plain else ""
    return {name: known.type_of(columns, name)} if columns and known.has(columns, name) else None


def show(expression: Expression) -> str:
    """An expression in one line; a function by its name."""
    if isinstance(expression, str):
        return " ".join(expression.split())
    name = getattr(expression, "__name__", "function")
    return "λ" if name == "<lambda>" else f"{name}()"
