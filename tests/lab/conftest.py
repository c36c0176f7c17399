from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.lab import Lab


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all hosts share."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def lab(shared: Path) -> Iterator[Lab]:
    """One lab for all tests of a file, which leave it as they found it."""
    declared = {
        "lab": {"shared": [str(shared)]},
        "hosts": {
            "near": {},
            "a": {"delay": "12.5 ms"},
            "b": {"delay": "12.5 ms", "disk": "64m", "disk_in": "file"},
            "late": {"up": False},
        },
    }
    with Lab(declared) as running:
        yield running
