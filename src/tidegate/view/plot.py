"""A run as a picture: rows, latency and nodes over time."""

from __future__ import annotations

from pathlib import Path

from tidegate.errors import ConfigError, MissingExtraError
from tidegate.run.progress import BatchProgress

_MOST = 10_000
"""Batches that are remembered: more than a picture has room for."""


class Plot:
    """Remembers batches, of a long run each second, fourth, ... one; `draw` writes the picture."""

    def __init__(self, path: Path) -> None:
        try:
            from matplotlib.backend_bases import FigureCanvasBase
        except ImportError:
            raise MissingExtraError("plot", "--plot") from None
        if path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
            raise ConfigError(f"{str(path)!r} names no kind of picture; end it in .png, .svg or .pdf")
        self._path = path
        self._batches: list[BatchProgress] = []
        self._told, self._every = 0, 1

    def __call__(self, progress: BatchProgress) -> None:
        if self._told % self._every == 0:
            self._batches.append(progress)
        self._told += 1
        if len(self._batches) > _MOST:
            del self._batches[1::2]
            self._every *= 2

    def draw(self) -> Path | None:
        """Write the picture; None when there was no batch."""
        if not self._batches:
            return None
        from matplotlib.figure import Figure

        start = self._batches[0].finished_at.timestamp()
        at = [batch.finished_at.timestamp() - start for batch in self._batches]
        figure = Figure(figsize=(9, 6.5), layout="constrained")
        rates, latency, sizes = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 1))
        rates.plot(at, [batch.input_rate / 1000 for batch in self._batches], label="in", color="0.6")
        rates.plot(at, [batch.rows_per_second / 1000 for batch in self._batches], label="processing")
        rates.set(ylabel="thousand rows/s", ylim=(0, None), title=self._batches[0].pipeline)
        for name, style in (("latency_p99", ":"), ("latency_p50", "-")):
            values = [getattr(batch, name) for batch in self._batches]
            latency.plot(
                at, [float("nan") if v is None else v for v in values], style, marker=".", label=name[8:]
            )
        # A batch on each dot, unless the run was long: a gap in the output is a gap between dots.
        latency.set(ylabel="latency, s", ylim=(0, None))
        name = "nodes" if self._batches[0].state_nodes else "parallelism"
        sizes.step(at, [_size(batch) for batch in self._batches], where="post", color="tab:green")
        sizes.set(ylabel=name, xlabel="seconds since the first batch", ylim=(0, None))
        sizes.yaxis.get_major_locator().set_params(integer=True)
        for axes in (rates, latency, sizes):
            for number, (begin, end) in enumerate(self._moves(at)):
                label = "rescale" if axes is rates and not number else None
                axes.axvspan(begin, end, color="tab:orange", alpha=0.2, linewidth=0, label=label)
            axes.spines[["top", "right"]].set_visible(False)
        rates.legend(frameon=False, loc="upper left")
        latency.legend(frameon=False, loc="upper right")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(self._path, dpi=120)
        return self._path

    def _moves(self, at: list[float]) -> list[tuple[float, float]]:
        """When a rescale was under way."""
        found: list[tuple[float, float]] = []
        for index, batch in enumerate(self._batches):
            changed = index and _size(batch) != _size(self._batches[index - 1])
            if batch.rescale is not None or changed:
                begin = at[index - 1] if index else at[index]
                if found and found[-1][1] >= begin:
                    found[-1] = (found[-1][0], at[index])
                else:
                    found.append((begin, at[index]))
        return found


def _size(batch: BatchProgress) -> int:
    """State nodes, or tasks where there is no state: what a rescale changes."""
    return batch.state_nodes or batch.parallelism
