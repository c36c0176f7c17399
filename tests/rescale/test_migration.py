"""Rescales as events and instructions."""

from __future__ import annotations

import pytest

from tidegate.errors import ControlError
from tidegate.rescale.migration import (
    Asked,
    Boundary,
    Committed,
    Event,
    GiveUp,
    Migration,
    NotStarted,
    Replaced,
    Restart,
    Restarted,
    Settle,
    Started,
    StartNodes,
    Switch,
)
from tidegate.rescale.model import Strategy
from tidegate.rescale.route import Route


def route(nodes: int, version: int = 1) -> Route:
    return Route.even(16, nodes=nodes, partitions=nodes, version=version)


def asked(number: int, nodes: int, strategy: Strategy = "hybrid") -> Asked:
    return Asked(number, route(nodes, number + 1), strategy)


def on_two() -> Migration:
    return Migration(route(2), nodes=2)


def moving(strategy: Strategy = "hybrid") -> Migration:
    """On the way from two nodes to four."""
    migration = on_two()
    migration.handle(asked(1, 4, strategy))
    migration.handle(Started())
    migration.handle(Boundary())
    return migration


def test_nodes_start_while_batches_go_on() -> None:
    migration = on_two()
    assert migration.handle(asked(1, 4)) == [StartNodes(4)]
    assert migration.handle(Boundary()) == []
    assert migration.handle(Committed(0)) == []
    assert migration.route == route(2)
    assert migration.handle(Started()) == []
    assert migration.handle(Boundary()) == [Switch(1, route(4, 2), hold=False)]
    assert migration.route == route(4, 2)


def test_it_settles_with_the_batch_after_which_nothing_is_left() -> None:
    migration = moving()
    assert migration.handle(Committed(5)) == []
    assert migration.handle(Boundary()) == []
    assert migration.handle(Committed(0)) == [Settle(1, 4)]
    assert migration.current is None
    assert migration.handle(Committed(0)) == []


def test_scaling_in_ends_nodes_only_when_nothing_depends_on_them() -> None:
    migration = Migration(route(4), nodes=4)
    assert migration.handle(asked(1, 2)) == []
    assert migration.handle(Boundary()) == [Switch(1, route(2, 2), hold=False)]
    assert migration.handle(Committed(8)) == []
    assert migration.handle(Committed(0)) == [Settle(1, 2)]


def test_eager_holds_the_batch() -> None:
    migration = on_two()
    migration.handle(asked(1, 4, "eager"))
    migration.handle(Started())
    assert migration.handle(Boundary()) == [Switch(1, route(4, 2), hold=True)]


def test_restart_starts_no_node_beside_the_old_ones() -> None:
    migration = on_two()
    assert migration.handle(asked(1, 4, "restart")) == []
    assert migration.handle(Boundary()) == [Restart(1, route(4, 2))]
    assert migration.handle(Boundary()) == []
    assert migration.handle(Restarted()) == []
    assert migration.handle(Committed(0)) == [Settle(1, 4)]


def test_nodes_that_do_not_start_change_nothing() -> None:
    migration = on_two()
    migration.handle(asked(1, 4))
    assert migration.handle(NotStarted("no memory")) == [GiveUp(1, 2, "no memory")]
    assert migration.handle(Boundary()) == []
    assert migration.route == route(2)
    assert migration.handle(asked(2, 4)) == [StartNodes(4)]


def test_the_story_is_what_changed_something_since_all_was_settled() -> None:
    migration = moving()
    migration.handle(Committed(5))
    migration.handle(Boundary())
    migration.handle(asked(2, 6))
    migration.handle(NotStarted("no memory"))
    assert list(map(str, migration.story)) == [
        "rescale 1 (hybrid) to 4 nodes was asked for",
        "its new nodes are up",
        "it switched to its route",
        "rescale 2 (hybrid) to 6 nodes was asked for",
        "its new nodes did not start: no memory",
    ]
    migration.handle(Committed(0))
    migration.handle(asked(3, 2))
    assert list(map(str, migration.story)) == ["rescale 3 (hybrid) to 2 nodes was asked for"]


def test_a_refusal_tells_how_the_rescale_in_the_way_got_there() -> None:
    migration = on_two()
    migration.handle(asked(1, 4))
    with pytest.raises(ControlError) as refused:
        migration.handle(asked(2, 3))
    assert refused.value.story == ("rescale 1 (hybrid) to 4 nodes was asked for",)


def test_the_next_rescale_may_come_while_state_is_on_its_way() -> None:
    migration = moving()
    migration.handle(Committed(7))
    assert migration.handle(asked(2, 3)) == []
    assert migration.handle(Boundary()) == [Replaced(1), Switch(2, route(3, 3), hold=False)]
    assert migration.handle(Committed(0)) == [Settle(2, 3)]


def test_one_that_settles_while_the_next_is_starting_keeps_the_nodes_that_start() -> None:
    migration = moving()
    assert migration.handle(asked(2, 6)) == [StartNodes(6)]
    assert migration.handle(Committed(0)) == [Settle(1, 6)]
    migration.handle(Started())
    assert migration.handle(Boundary()) == [Switch(2, route(6, 3), hold=False)]


def test_a_later_one_that_does_not_start_leaves_the_earlier_one_moving() -> None:
    migration = moving()
    migration.handle(asked(2, 6))
    assert migration.handle(NotStarted("no port")) == [GiveUp(2, 4, "no port")]
    assert migration.handle(Committed(0)) == [Settle(1, 4)]


def test_one_that_does_not_start_keeps_the_nodes_that_state_still_comes_from() -> None:
    migration = Migration(route(4), nodes=4)
    migration.handle(asked(1, 2))
    migration.handle(Boundary())
    migration.handle(Committed(8))
    assert migration.handle(asked(2, 6)) == [StartNodes(6)]
    assert migration.handle(NotStarted("no memory")) == [GiveUp(2, 4, "no memory")]
    assert migration.handle(Committed(0)) == [Settle(1, 2)]


def test_before_the_switch_no_other_is_taken() -> None:
    migration = on_two()
    migration.handle(asked(1, 4))
    with pytest.raises(ControlError, match="rescale 1 has not switched"):
        migration.handle(asked(2, 3))
    migration.handle(Started())
    with pytest.raises(ControlError, match="rescale 1 has not switched"):
        migration.handle(asked(2, 3))
    assert migration.handle(Boundary()) == [Switch(1, route(4, 2), hold=False)]


@pytest.mark.parametrize(
    ("first", "second"), [("hybrid", "restart"), ("eager", "hybrid"), ("eager", "eager")]
)
def test_strategies_that_exclude_each_other(first: Strategy, second: Strategy) -> None:
    migration = moving(first)
    with pytest.raises(ControlError, match="still moving state"):
        migration.handle(asked(2, 3, second))
    assert migration.handle(Committed(0)) == [Settle(1, 4)]
    migration.handle(asked(2, 3, second))


@pytest.mark.parametrize("late", [Started(), NotStarted("x"), Restarted(), Boundary()])
def test_what_comes_twice_or_too_late_changes_nothing(late: Event) -> None:
    migration = moving()
    assert migration.handle(late) == []
    assert migration.handle(Committed(0)) == [Settle(1, 4)]


def test_nodes_that_move_to_other_machines_are_started_first() -> None:
    migration = on_two()
    moving = Asked(1, route(2, 2), "hybrid", frozenset({1}))
    assert migration.handle(moving) == [StartNodes(2, frozenset({1}))]
    assert migration.handle(Boundary()) == []
    assert migration.handle(Started()) == []
    assert migration.handle(Boundary()) == [Switch(1, route(2, 2), hold=False)]
    assert migration.handle(Committed(3)) == []
    assert migration.handle(Committed(0)) == [Settle(1, 2)]


def test_fewer_nodes_of_which_some_move() -> None:
    migration = Migration(route(3), nodes=3)
    assert migration.handle(Asked(1, route(2, 2), "hybrid", frozenset({0}))) == [
        StartNodes(3, frozenset({0}))
    ]
    migration.handle(Started())
    migration.handle(Boundary())
    assert migration.handle(Committed(0)) == [Settle(1, 2)]
