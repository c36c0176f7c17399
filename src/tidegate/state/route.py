"""The route: which state node owns each key group, and which Spark partition works on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tidegate.state.keys import Groups, parse_groups, show_groups


@dataclass(frozen=True)
class Route:
    """One version of the table. Position in both tuples: the key group."""

    version: int
    owners: tuple[int, ...]
    partitions: tuple[int, ...]

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
        return max(self.partitions) + 1

    def groups_of(self, node: int) -> Groups:
        """The groups that a node owns."""
        return frozenset(group for group, owner in enumerate(self.owners) if owner == node)

    def groups_in(self, partition: int) -> Groups:
        """The groups that a Spark partition works on."""
        return frozenset(group for group, place in enumerate(self.partitions) if place == partition)

    def partitions_on(self, node: int) -> frozenset[int]:
        """The Spark partitions that work on groups of a node."""
        return frozenset(
            place for owner, place in zip(self.owners, self.partitions, strict=True) if owner == node
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for the ledger."""
        places = range(self.parallelism)
        return {
            "version": self.version,
            "owners": {str(node): show_groups(self.groups_of(node)) for node in self.nodes},
            "partitions": {str(place): show_groups(self.groups_in(place)) for place in places},
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Route:
        return cls(form["version"], _listed(form["owners"]), _listed(form["partitions"]))


def _listed(table: dict[str, str]) -> tuple[int, ...]:
    found = {group: int(place) for place, text in table.items() for group in parse_groups(text)}
    return tuple(found[group] for group in range(len(found)))
