"""The form of a record on disk: what earlier versions wrote can still be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import CheckpointError
from tidegate.ledger import ledger
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.records import Cut, Entry, Generation, decode, encode, is_entry
from tidegate.rescale.route import Route
from tidegate.state.log.manifest import RunRef, StateManifest
from tidegate.state.table.table import StateTable
from tidegate.storage.local import Local

TABLE = StateTable("count", "value", pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))

# Arrow schemas in base64.
KEYS = (
    "/////3gAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAEAAAAUAAAAEAAUAAgABgAHAAwAAAAQABAAAA"
    "AAAAECEAAAABwAAAAEAAAAAAAAAAIAAABpZAAACAAMAAgABwAIAAAAAAAAAUAAAAA="
)
VALUES = (
    "/////3gAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAEAAAAUAAAAEAAUAAgABgAHAAwAAAAQABAAAA"
    "AAAAECEAAAABwAAAAEAAAAAAAAAAEAAABuAAAACAAMAAgABwAIAAAAAAAAAUAAAAA="
)
FORM: dict[str, Any] = {
    "batch_id": 7,
    "generation": 2,
    "cut": {
        "source-1": {"start": {"offset": 10}, "end": {"offset": 20}},
        "source-2": {"start": None, "end": 3},
    },
    "event_times": {"source-1": 1_000_000},
    "receipts": {"files:/out": {"rows": 3, "files": ["a"]}},
    "limit": 500,
    "watermark": 900_000,
    "furthest": 950_000,
    "planned_at": 1_700_000_000_000,
    "silent": {"source-1": 1.5},
    "state": {
        "batch_id": 7,
        "groups": 4,
        "closed": 900_000,
        "tables": [{"name": "count", "kind": "value", "keys": KEYS, "values": VALUES}],
        "runs": [{"name": "7-g2-node-0.run", "sequence": 7, "groups": "0-3", "rows": 5, "bytes": 99}],
        "meaning": {"count": {"n": "count()"}},
    },
    "route": {
        "version": 3,
        "owners": {"0": "0-1", "1": "2-3"},
        "partitions": {"0": "0-1", "1": "2-3"},
        "configured": [2, 2],
    },
}
ENTRY = Entry(
    batch_id=7,
    generation=2,
    cut={"source-1": Cut({"offset": 10}, {"offset": 20}), "source-2": Cut(None, 3)},
    event_times={"source-1": 1_000_000},
    receipts={"files:/out": {"rows": 3, "files": ["a"]}},
    limit=500,
    watermark=900_000,
    state=StateManifest(7, 4, 900_000, (TABLE,), (RunRef("7-g2-node-0.run", 7, frozenset(range(4)), 5, 99),)),
    meaning={"count": {"n": "count()"}},
    route=Route(3, (0, 0, 1, 1), (0, 0, 1, 1)),
    configured=(2, 2),
    furthest=950_000,
    planned_at=1_700_000_000_000,
    silent={"source-1": 1.5},
)


def test_a_record_as_version_0_1_wrote_it_is_read() -> None:
    assert decode(json.dumps(FORM).encode()) == ENTRY


def test_what_is_written_is_that_form() -> None:
    table = {**FORM["state"]["tables"][0], "labels": [], "times": []}  # added since
    assert written(ENTRY) == {**FORM, "state": {**FORM["state"], "tables": [table]}}


def written(record: Entry | Generation) -> Any:
    form = json.loads(encode(record))
    del form["checksum"]
    return form


@pytest.mark.parametrize("record", [ENTRY, Generation(3)])
def test_no_flipped_bit_goes_unnoticed(record: Entry | Generation) -> None:
    content = encode(record)
    assert decode(content) == record
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            with pytest.raises(ValueError):  # noqa: PT011 - each damage has its own message
                decode(bytes(damaged))


def test_a_record_from_before_there_was_state() -> None:
    old = {"batch_id": 0, "generation": 1, "cut": {}, "event_times": {}, "receipts": {}}
    assert decode(json.dumps(old).encode()) == Entry(0, 1, {}, {}, {})


def test_a_record_from_before_the_route_knew_what_was_configured() -> None:
    route = {key: value for key, value in FORM["route"].items() if key != "configured"}
    found = decode(json.dumps({**FORM, "route": route}).encode())
    assert isinstance(found, Entry)
    assert (found.route, found.configured) == (ENTRY.route, None)


def test_state_that_is_not_durable_leaves_no_manifest() -> None:
    form = {**FORM, "state": {"durable": False}}
    found = decode(json.dumps(form).encode())
    assert isinstance(found, Entry)
    assert (found.state, found.durable) == (None, False)
    assert written(found) == form


def test_a_generation() -> None:
    assert decode(b'{"generation": 3}') == Generation(3)
    assert written(Generation(3)) == {"generation": 3}


@pytest.mark.parametrize(
    "damage",
    [
        {"cut": {"source-1": 5}},
        {"state": {"batch_id": 7}},
        {"route": {"version": 1, "owners": {"0": "0-1"}, "partitions": {}}},
        {"from_another_version": 1},
    ],
)
def test_a_damaged_record_is_told_with_its_path(damage: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / f"{0:012d}.json"
    path.write_text(json.dumps({**FORM, **damage}))
    with pytest.raises(CheckpointError, match=path.name):
        Ledger(tmp_path)
    entries, damaged = ledger.read(Local(tmp_path))
    assert (entries, [found for found, _ in damaged]) == ([], [str(path)])


def test_a_ledger_that_starts_with_a_batch_goes_on_after_it(tmp_path: Path) -> None:
    ledger.start_with(Local(tmp_path), ENTRY)
    copy = Ledger(tmp_path)
    copy.take_over()
    assert (copy.last, copy.generation) == (ENTRY, ENTRY.generation + 1)


@pytest.mark.parametrize("content", [b"5", b"null", b"[]", b'"batch_id"'])
def test_what_is_no_record_is_no_entry(content: bytes) -> None:
    assert not is_entry(content)
