"""State nodes on other machines, started and ended by supervisors there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from tidegate.errors import HostError, TidegateError
from tidegate.state.fleet.provider import NodeHandle
from tidegate.state.node.spec import NodeSpec
from tidegate.state.supervisor.client import SupervisorClient

_log = logging.getLogger(__name__)


class Hosts(Protocol):
    """Machines with supervisors, or where one can be started. May be called by several threads at once."""

    def names(self) -> Sequence[str]:
        """Where nodes may be started, as far as is known without asking; one that has more room may be there
        several times."""

    def leaving(self) -> frozenset[str]:
        """Those that are going away, as far as can be known soon."""

    def known(self, host: str) -> SupervisorClient | None:
        """The supervisor that was last used on a host."""

    def supervisor(self, host: str) -> SupervisorClient:
        """One that answered just now, started if need be. Raises HostError when there is none."""

    def renew(self) -> None:
        """Have what was started there go on."""

    def lost(self, host: str) -> None:
        """One is out of reach. Does not raise."""

    def close(self) -> None:
        """End what was started there."""


class SupervisedLauncher:
    """Starts nodes by the supervisors on hosts."""

    def __init__(self, spec: NodeSpec, hosts: Hosts) -> None:
        self._spec = spec
        self._hosts = hosts

    def hosts(self) -> Sequence[str]:
        """Those whose supervisor has fallen silent come in question only when there are no others."""
        names = self._hosts.names()
        leaving = self._hosts.leaving()
        staying = [name for name in names if name not in leaving]
        each = {*staying}
        with ThreadPoolExecutor(max(len(each), 1)) as pool:
            silent = dict(zip(each, pool.map(self._is_silent, each), strict=True))
        found = [name for name in staying if not silent[name]] or staying
        if not found:
            raise HostError("there is no machine on which a state node could be started", host="")
        return found

    def leaving(self) -> frozenset[str]:
        return self._hosts.leaving()

    def start(self, name: str, host: str, *, gently: bool = False) -> SupervisedNode:
        supervisor = self._hosts.supervisor(host)
        started = supervisor.start(name, self._spec, gently=gently)
        return SupervisedNode(NodeHandle(name, started.address, started.pid, supervisor.host), supervisor)

    def renew(self) -> None:
        self._hosts.renew()

    def lost(self, host: str) -> None:
        self._hosts.lost(host)

    def close(self) -> None:
        self._hosts.close()

    def _is_silent(self, host: str) -> bool:
        supervisor = self._hosts.known(host)
        if supervisor is None:
            return False
        try:
            supervisor.look()
        except TidegateError:
            return True
        return False


@dataclass(frozen=True, slots=True)
class SupervisedNode:
    """A node of which a supervisor knows more."""

    handle: NodeHandle
    supervisor: SupervisorClient

    @property
    def alive(self) -> bool:
        """Whether it answers tells the rest."""
        return True

    def request_end(self) -> None:
        """All of its end is in `end`: a word to its supervisor takes no longer than waiting for it."""

    def end(self, seconds: float) -> None:
        try:
            self.supervisor.end(self.handle.name, seconds)
        except TidegateError as error:
            _log.warning("%s is left to end with its lease: %s", self.handle.name, error)
