"""Which nodes a configuration asks for."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.config.settings import StateSettings
from tidegate.errors import ConfigError
from tidegate.run import fleet


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"provider": "executors", "bind": "10.0.0.5"}, "state.bind is for nodes on the driver's machine"),
        ({"provider": "remote"}, "set state.registry and state.token_file"),
        ({"provider": "remote", "registry": "/shared"}, "set state.registry and state.token_file"),
        ({"provider": "executors", "lease": "1 second"}, "a busy driver needs 4 seconds or more"),
    ],
)
def test_what_contradicts_itself_or_is_missing_is_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fleet.check(StateSettings(**given))


@pytest.mark.parametrize(
    "given",
    [
        {"bind": "10.0.0.5", "lease": "1 second"},
        {"provider": "executors"},
        {"provider": "remote", "registry": "/shared", "token_file": "/etc/tidegate/token"},
    ],
)
def test_what_is_enough_passes(given: dict[str, Any]) -> None:
    fleet.check(StateSettings(**given))
