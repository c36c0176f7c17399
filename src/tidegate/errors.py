"""Every error that Tidegate raises on purpose.

One base, one leaf per subject. A message says what happened, to what, and what to do about it; the
same facts are fields, so a program need not read the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Where:
    """The line of the user's file where a step was declared."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class TidegateError(Exception):
    """Base of all errors below."""


class PipelineError(TidegateError, ValueError):
    """The pipeline as declared cannot run.

    Operator action: correct the step named in the message, at the line it names.
    """

    def __init__(self, problem: str, *, step: str | None = None, where: Where | None = None) -> None:
        self.problem = problem
        self.step = step
        self.where = where
        place = f" (declared at {where})" if where else ""
        super().__init__(f"{step}{place}: {problem}" if step else f"{problem}{place}")


class DurationError(TidegateError, ValueError):
    """A text that is not a duration. Operator action: write it like '4 seconds' or '250 ms'."""


class SizeError(TidegateError, ValueError):
    """A text that is not a size. Operator action: write it like '512m', '2 GiB' or '200 MB'."""


class ConfigError(TidegateError, ValueError):
    """A configuration key or value that cannot be used. Operator action: see `tidegate config`."""


class SecurityError(ConfigError):
    """A secret, key or certificate that cannot be used. Operator action: as the message says."""


class CheckpointError(TidegateError, RuntimeError):
    """A checkpoint that this pipeline cannot be resumed from.

    Operator action: use another checkpoint folder, or the pipeline that wrote this one.
    """


class InUseError(CheckpointError):
    """A driver is running on this checkpoint. `pid` and `host` are None if it has not named them yet.

    Operator action: stop that one first, or replace it with `--take-over`.
    """

    def __init__(self, message: str, *, pid: int | None, host: str | None) -> None:
        self.pid = pid
        self.host = host
        super().__init__(message)


class FencedError(TidegateError, RuntimeError):
    """A newer driver has taken over this checkpoint. Operator action: none, this driver must stop."""


class StaleError(TidegateError, RuntimeError):
    """A request for a batch, or for an attempt at it, that is over or was never begun.

    Operator action: none; the sender gives up or begins again.
    """


class StateError(TidegateError, RuntimeError):
    """State that cannot be served or kept: a damaged run, an unknown table, a store that cannot be reached.

    Operator action: as the message says; `tidegate state verify CHECKPOINT` checks what is on disk.
    """


class StateLostError(StateError):
    """A node has ended that alone had some of the state, since nothing is logged.

    Operator action: start with a new checkpoint; with `state.durable` on, nodes may end at any time.
    """


class StorageError(TidegateError, OSError):
    """A folder or an object store that cannot be read or written to. Operator action: as the message says."""


class MissingFileError(StorageError, FileNotFoundError):
    """A file that should be in a folder or an object store is not there.

    Operator action: restore it, or start from a savepoint.
    """


class NodeError(TidegateError, ConnectionError):
    """A state node does not answer. Operator action: none; it is replaced and the batch tried again."""

    def __init__(self, message: str, *, node: str) -> None:
        self.node = node
        super().__init__(message)


class HostError(TidegateError, ConnectionError):
    """A machine on which a state node was to start does not answer. Operator action: none while there are
    others; else see that one can be reached."""

    def __init__(self, message: str, *, host: str) -> None:
        self.host = host
        super().__init__(message)


class BatchError(TidegateError, RuntimeError):
    """A batch failed as often as the configuration allows.

    The message says why the last try failed; `story`, which the command line and tracebacks show, what led to
    it. Operator action: remove the cause and start the pipeline again; it resumes with this batch.
    """

    def __init__(self, message: str, *, batch_id: int, tries: int, story: Sequence[str] = ()) -> None:
        self.batch_id = batch_id
        self.tries = tries
        self.story = tuple(story)
        super().__init__(message)
        _tell(self, self.story)


class StepError(TidegateError, RuntimeError):
    """The user's own code in a step fails on the rows of a batch, however often it is tried.

    Operator action: correct the step that the message names and start again; it resumes with that batch.
    """


LASTING = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What Python raises for mistakes in code or data: another try cannot help, as it might with an OSError."""


class SinkError(TidegateError, RuntimeError):
    """A sink could not take a batch. Operator action: as the message says; the batch is tried again."""


class MissingExtraError(TidegateError, ImportError):
    """An optional part is not installed. Operator action: the install line in the message."""

    def __init__(self, extra: str, needed_by: str) -> None:
        self.extra = extra
        super().__init__(
            f"{needed_by} needs an optional package: pip install 'tidegate[{extra}]' "
            f"(in a checkout: pip install '.[{extra}]')"
        )


class SessionError(TidegateError, RuntimeError):
    """Spark does not start. Operator action: `tidegate doctor --spark`, then as it says."""


class ListenerError(TidegateError, RuntimeError):
    """A listener raised; the pipeline was stopped after its batch.

    Operator action: correct the listener and start again; it resumes where it stopped.
    """


class QueryError(TidegateError, RuntimeError):
    """Spark ended the query by itself. Operator action: remove the cause that the message gives."""


class ControlError(TidegateError, RuntimeError):
    """Something was asked of a running pipeline that is invalid, or not possible now. Nothing has changed.

    `story` is what has happened to the rescale that is in the way; empty if none is.
    Operator action: as the message says; `tidegate status` shows what the pipeline is doing.
    """

    def __init__(self, message: str, *, story: Sequence[str] = ()) -> None:
        self.story = tuple(story)
        super().__init__(message)
        _tell(self, self.story)


class ClusterError(TidegateError, RuntimeError):
    """A cluster that does not start, or cannot do what is asked. Operator action: as the message says."""


class LabError(TidegateError, RuntimeError):
    """The lab cannot do what is asked on this machine. Operator action: as the message says."""


def _tell(error: Exception, story: Sequence[str]) -> None:
    """Have a traceback tell what happened, and end with the error again."""
    if story:
        told = (f"  {line}" for line in story)
        error.add_note("\n".join(("What happened before:", *told, f"{type(error).__name__}: {error}")))
