"""The route: which state node owns each key group, and which Spark partition works on it.

A pipeline without state has a route, too: without key groups, it says how many Spark partitions there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tidegate.errors import CheckpointError
from tidegate.state.table.keys import Groups, parse_groups, show_groups


@dataclass(frozen=True)
class Route:
    """One version of the table. Position in both tuples: the key group."""

    version: int
    owners: tuple[int, ...]
    partitions: tuple[int, ...]
    slots: int = 0
    """Number of Spark partitions if there are no key groups."""

    @classmethod
    def even(cls, groups: int, *, nodes: int, partitions: int, version: int = 1) -> Route:
        """Neighbouring groups together, spread evenly over nodes and partitions.

        When the partitions are a multiple of the nodes, every task talks to one node.

        >>> Route.even(8, nodes=2, partitions=4).owners
        (0, 0, 0, 0, 1, 1, 1, 1)
        """
        nodes, partitions = min(nodes, groups), min(partitions, groups)
        return cls(
            version,
            tuple(group * nodes // groups for group in range(groups)),
            tuple(group * partitions // groups for group in range(groups)),
        )

    @classmethod
    def stateless(cls, partitions: int, *, version: int = 1) -> Route:
        """That of a pipeline without state."""
        return cls(version, (), (), partitions)

    @property
    def groups(self) -> int:
        """Number of key groups."""
        return len(self.owners)

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that own something."""
        return tuple(sorted(set(self.owners)))

    @property
    def parallelism(self) -> int:
        """Number of Spark partitions."""
        return max(self.partitions, default=self.slots - 1) + 1

    def groups_of(self, node: int) -> Groups:
        """The groups that a node owns."""
        return self._owned.get(node, frozenset())

    def groups_in(self, partition: int) -> Groups:
        """The groups that a Spark partition works on."""
        return self._worked.get(partition, frozenset())

    def partitions_on(self, node: int) -> frozenset[int]:
        """The Spark partitions that work on groups of a node."""
        return frozenset(self.partitions[group] for group in self.groups_of(node))

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for the ledger."""
        if not self.groups:
            return {"version": self.version, "slots": self.slots}
        places = range(self.parallelism)
        return {
            "version": self.version,
            "owners": {str(node): show_groups(self.groups_of(node)) for node in self.nodes},
            "partitions": {str(place): show_groups(self.groups_in(place)) for place in places},
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Route:
        """The way back. Every key group must have one owner and one partition."""
        if "slots" in form:
            return cls.stateless(form["slots"], version=form["version"])
        owners, partitions = _listed(form["owners"], "owner"), _listed(form["partitions"], "partition")
        if len(owners) != len(partitions):
            raise CheckpointError(
                f"the ledger holds a damaged route: {len(owners)} key groups have an owner and "
                f"{len(partitions)} a partition; start from a savepoint, or use another checkpoint folder"
            )
        return cls(form["version"], owners, partitions)

    @cached_property
    def _owned(self) -> dict[int, Groups]:
        return _gathered(self.owners)

    @cached_property
    def _worked(self) -> dict[int, Groups]:
        return _gathered(self.partitions)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to the tasks with every batch: only what cannot be worked out again."""
        known = ("version", "owners", "partitions", "slots")
        return {name: self.__dict__[name] for name in known}


@dataclass(frozen=True, slots=True)
class Move:
    """A key group that changes its owner."""

    group: int
    source: int
    target: int


def moves(before: Route, after: Route) -> tuple[Move, ...]:
    """What has to move from one route to the other, by key group."""
    pairs = zip(before.owners, after.owners, strict=True)
    return tuple(Move(group, *pair) for group, pair in enumerate(pairs) if pair[0] != pair[1])


def _gathered(places: tuple[int, ...]) -> dict[int, Groups]:
    found: dict[int, list[int]] = {}
    for group, place in enumerate(places):
        found.setdefault(place, []).append(group)
    return {place: frozenset(groups) for place, groups in found.items()}


def _listed(table: dict[str, str], what: str) -> tuple[int, ...]:
    found: dict[int, int] = {}
    for place, text in table.items():
        for group in parse_groups(text):
            if found.setdefault(group, int(place)) != int(place):
                raise _damaged(group, f"more than one {what}")
    for group in range(len(found)):
        if group not in found:
            raise _damaged(group, f"no {what}")
    return tuple(found[group] for group in range(len(found)))


def _damaged(group: int, problem: str) -> CheckpointError:
    return CheckpointError(
        f"the ledger holds a damaged route: key group {group} has {problem}; "
        "start from a savepoint, or use another checkpoint folder"
    )
