"""A run as it is seen and steered from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tidegate.control.controls import NodeLine, Status
from tidegate.errors import ControlError, TidegateError
from tidegate.rescale.model import Ask, PlanView, Rescale
from tidegate.rescale.spread import share
from tidegate.run import savepoint
from tidegate.run.opening import Opened
from tidegate.run.progress import BatchProgress
from tidegate.state.fleet.nodes import Nodes
from tidegate.state.table.keys import show_groups


class RunControls:
    """The `Controls` of a run; listens to its batches."""

    def __init__(self, opened: Opened, *, stop: Callable[[], None]) -> None:
        self._opened = opened
        self._pipeline = opened.plan.name
        self._stop = stop
        self._phase: Literal["starting", "running", "stopping"] = "starting"
        self._last: BatchProgress | None = None

    def __call__(self, progress: BatchProgress) -> None:
        """Hear of a batch."""
        self._last = progress
        if self._phase == "starting":
            self._phase = "running"

    def status(self) -> Status:
        last, nodes = self._last, self._opened.nodes
        history = self.history()
        return Status(
            pipeline=self._pipeline,
            phase=self._phase,
            batch_id=last.batch_id if last else None,
            rows_per_second=last.rows_per_second if last else None,
            batch_seconds=last.batch_seconds if last else None,
            interval_seconds=self._opened.interval,
            latency_p50=last.latency_p50 if last else None,
            lag=last.lag if last else None,
            parallelism=self._opened.route.parallelism,
            route=nodes.route.version if nodes else None,
            nodes=_lines(nodes) if nodes else (),
            steps=self._opened.steps,
            rescale=history[-1] if history else None,
            waiting_files=last.waiting_files if last else None,
            waiting_bytes=last.waiting_bytes if last else None,
            state_wire=last.state_wire if last else 0,
            state_wire_remote=last.state_wire_remote if last else 0,
        )

    def plan(self, ask: Ask) -> PlanView:
        return self._opened.rescaler.plan(ask)

    def apply(self, ask: Ask) -> Rescale:
        if self._phase == "stopping":
            raise ControlError(f"{self._pipeline} is stopping and can no longer be rescaled")
        return self._opened.rescaler.apply(ask)

    def savepoint(self, place: str) -> str:
        try:
            batch_id = savepoint.save(self._opened.checkpoint, place, log=self._opened.config.state.log)
        except (TidegateError, OSError) as error:
            raise ControlError(f"the savepoint failed: {error}") from error
        return f"{place} (batch {batch_id})"

    def stop(self) -> None:
        self._stop()

    def end(self) -> None:
        """The run ends: whoever has these controls can change nothing any more."""
        self._phase = "stopping"

    def history(self) -> tuple[Rescale, ...]:
        return self._opened.rescaler.history.all()


def _lines(nodes: Nodes) -> tuple[NodeLine, ...]:
    route, stored = nodes.route, nodes.stored()
    shares = share(route, nodes.load)
    lines = []
    for index, handle in enumerate(nodes.handles):
        groups = route.groups_of(index)
        lines.append(
            NodeLine(
                index=index,
                name=handle.name,
                address=handle.address,
                pid=handle.pid,
                groups=show_groups(groups),
                load=shares[index] if index < len(shares) else 0.0,
                bytes=stored[index] if index < len(stored) else 0,
            )
        )
    return tuple(lines)
