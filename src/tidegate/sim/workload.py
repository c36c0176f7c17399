"""What goes into a simulated pipeline, and what must come out: two running sums, each keyed otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TypeAlias

Rows: TypeAlias = tuple[tuple[int, int], ...]
"""Key and value."""
State: TypeAlias = dict[tuple[str, int], int]
"""Table and key -> value."""

FIRST, SECOND = "sum-1", "sum-2"
TABLES = (FIRST, SECOND)


def group_of(table: str, key: int, count: int) -> int:
    """The key group; the second table spreads its keys otherwise."""
    return (key if table == FIRST else 5 * key + 3) % count


def apply(
    state: Mapping[int, int], rows: Iterable[tuple[int, int]], blind: frozenset[int] = frozenset()
) -> dict[int, int]:
    """A running sum: the new value of every key that the rows touch. Of `blind` keys it is the largest value,
    for which nobody has to know the one before."""
    sums: dict[int, int] = {}
    for key, value in rows:
        if key in blind:
            sums[key] = max(value, sums.get(key, value))
        else:
            sums[key] = sums.get(key, state.get(key, 0)) + value
    return sums


def rekeyed(rows: Iterable[tuple[int, int]]) -> Rows:
    """What the first step hands to the second."""
    return tuple((key * 3 % 7, total) for key, total in rows)


class Workload:
    """Input, state and output of every batch, worked out without any of the machinery."""

    def __init__(
        self,
        rng: Random,
        *,
        batches: tuple[int, int] = (3, 6),
        groups: Sequence[int] = (4, 8),
        keys: int = 10,
        blind: frozenset[int] = frozenset(),
    ) -> None:
        """From as many batches to as many; one of these numbers of key groups; keys of the first step."""
        self.batches = rng.randint(*batches)
        self.groups = rng.choice(groups)
        self.blind = blind
        self.input: list[Rows] = []
        self.output: list[Rows] = []
        self._states: list[State] = [{}]
        for _ in range(self.batches):
            rows = tuple((rng.randrange(keys), rng.randint(1, 99)) for _ in range(rng.randint(1, 7)))
            state = dict(self._states[-1])
            for table in TABLES:
                before = {key: value for (name, key), value in state.items() if name == table}
                sums = apply(before, rows, blind)
                state.update({(table, key): total for key, total in sums.items()})
                done = tuple(sorted(sums.items()))
                self.input.append(rows) if table == FIRST else self.output.append(done)
                rows = rekeyed(done)
            self._states.append(state)

    def state(self, batch_id: int) -> State:
        """The state after a batch; -1 for the one before the first."""
        return self._states[batch_id + 1]

    def part(
        self, batch_id: int, table: str, groups: frozenset[int], keys: frozenset[int] | None = None
    ) -> dict[int, int]:
        """What a table holds of some key groups after a batch, of all keys or of these."""
        return {
            key: value
            for (name, key), value in self.state(batch_id).items()
            if name == table and group_of(table, key, self.groups) in groups and (keys is None or key in keys)
        }
