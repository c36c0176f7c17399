"""What a node is started with."""

from __future__ import annotations

import pytest

from tidegate.errors import StateError
from tidegate.state.node import spec
from tidegate.storage.memory import Memory


def test_a_node_knows_the_log_of_its_driver_by_a_file_in_it() -> None:
    log, another = Memory(), Memory()
    log.write("000000000001-g1-node-0-ab.run", [b"rows"])
    name = spec.write_probe(log, 3)
    spec.check_probe(log, name, "here")
    with pytest.raises(StateError, match=r"as seen from there: .* Set state.log to an object store"):
        spec.check_probe(another, name, "there")


def test_probes_of_earlier_drivers_go() -> None:
    log = Memory()
    first, second = spec.write_probe(log, 3), spec.write_probe(log, 4)
    assert log.names() == [second]
    with pytest.raises(StateError):
        spec.check_probe(log, first, "here")


def test_what_tells_of_object_stores_and_of_us_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"AWS_ACCESS_KEY_ID": "id", "GOOGLE_SERVICE_ACCOUNT": "me", "TIDEGATE_FAULTS": "plan"}
    for name, value in {**given, "PRIVATE": "x"}.items():
        monkeypatch.setenv(name, value)
    found = spec.inherited()
    assert given.items() <= found.items()
    assert "PRIVATE" not in found
