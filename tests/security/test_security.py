"""One value for all that the parties of a run show to each other."""

from __future__ import annotations

import pickle

import pytest

from tidegate.security.authority import Authority
from tidegate.security.security import Security

ROLES = "driver", "node", "task", "control"


def test_it_shows_nothing_secret() -> None:
    mine = Security.of_run("p", tls=True)
    assert mine.tls is not None
    shown = f"{mine!r} {mine} {mine.tls!r} {mine.authority!r}"
    for secret in (mine.token, *mine.tls.key.splitlines()):
        assert secret not in shown


def test_every_run_has_secrets_of_its_own() -> None:
    one, other = (Security.of_run("p", tls=True) for _ in range(2))
    assert one.tls is not None
    assert other.tls is not None
    assert one.token != other.token
    assert one.tls.name != other.tls.name
    assert one.tls.authority != other.tls.authority


def test_the_key_of_the_authority_stays_in_the_driver() -> None:
    mine = Security.of_run("p", tls=True)
    assert mine.authority is not None
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(mine.authority)
    for sent in (pickle.loads(pickle.dumps(mine)), Security.from_text(mine.as_text()), mine.party("node")):
        assert sent.authority is None
        assert sent.token == mine.token


@pytest.mark.parametrize("role", ROLES)
def test_every_party_has_a_key_of_its_own_and_the_name_of_the_run(role: str) -> None:
    mine = Security.of_run("Größe der Stadt", tls=True)
    theirs = mine.party(role)  # type: ignore[arg-type]
    assert mine.tls is not None
    assert theirs.tls is not None
    assert theirs.tls.key != mine.tls.key
    assert (theirs.tls.name, theirs.tls.authority) == (mine.tls.name, mine.tls.authority)
    assert mine.tls.name.startswith("gr-e-der-stadt-")


def test_without_tls_there_is_a_token() -> None:
    mine = Security.of_run("p", tls=False)
    assert mine.tls is None
    assert len(mine.token) > 40
    assert (
        pickle.loads(pickle.dumps(mine)) == mine == mine.party("task") == Security.from_text(mine.as_text())
    )


def test_a_party_as_text_is_the_same_party() -> None:
    mine = Security.of_run("p", tls=True).party("task")
    assert Security.from_text(mine.as_text()) == mine == pickle.loads(pickle.dumps(mine))


def test_a_name_fits_a_certificate_whatever_the_pipeline_is_called() -> None:
    for pipeline in ("", "日本", "x" * 500, "a b/c"):
        name = Authority.of_run(pipeline).name
        assert name.endswith(".tidegate")
        assert max(map(len, name.split("."))) <= 63
