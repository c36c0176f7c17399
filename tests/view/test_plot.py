"""A run as a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.view.batches import batch
from tidegate.errors import ConfigError
from tidegate.view.plot import Plot


def test_without_a_batch_there_is_no_picture(tmp_path: Path) -> None:
    assert Plot(tmp_path / "run.png").draw() is None
    assert not (tmp_path / "run.png").exists()


def drawn(path: Path, nodes: list[int], rescale: list[str | None]) -> NDArray[np.float32]:
    plot = Plot(path)
    for number, (count, phase) in enumerate(zip(nodes, rescale, strict=True)):
        plot(replace(batch(number), state_nodes=count, rescale=phase, latency_p99=None))
    assert plot.draw() == path
    return np.asarray(matplotlib.image.imread(path))


def test_a_rescale_is_shaded(tmp_path: Path) -> None:
    """A new folder is made for the picture; batches without a latency are left out of it."""
    calm = drawn(tmp_path / "new" / "calm.png", [2, 2, 2, 2], [None] * 4)
    moved = drawn(tmp_path / "moved.png", [2, 2, 2, 2], [None, "moving", None, None])
    assert calm.shape == moved.shape
    assert (calm != moved).any()
    assert (drawn(tmp_path / "again.png", [2, 2, 2, 2], [None] * 4) == calm).all()


def test_without_state_the_parallelism_is_drawn(tmp_path: Path) -> None:
    pictures = []
    for name, sizes in (("same", [2, 2, 2]), ("more", [2, 4, 4])):
        plot = Plot(tmp_path / f"{name}.png")
        for number, size in enumerate(sizes):
            plot(replace(batch(number), state_nodes=0, parallelism=size))
        plot.draw()
        pictures.append(np.asarray(matplotlib.image.imread(tmp_path / f"{name}.png")))
    assert pictures[0].shape == pictures[1].shape
    assert (pictures[0] != pictures[1]).any()


@pytest.mark.parametrize("name", ["run", "run.foo"])
def test_a_name_that_matplotlib_cannot_write_is_refused_before_the_run(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}' names no kind of picture; end it in .png"):
        Plot(tmp_path / name)


def test_memory_of_a_long_run_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered is spread evenly over the run."""
    monkeypatch.setattr("tidegate.view.plot._MOST", 10)
    plot = Plot(tmp_path / "run.png")
    for number in range(100):
        plot(batch(number))
        assert len(plot._batches) <= 10
    numbers = [each.batch_id for each in plot._batches]
    assert numbers == list(range(0, 100, numbers[1]))
    assert plot.draw() is not None
