from __future__ import annotations

import pytest

from tidegate.view.tables import print_pairs, print_rows


def test_columns_of_numbers_are_aligned_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("name", "rows", "share"), [("a", "1,200", "95.5%"), ("bb", "7", "4.5%")])
    assert capsys.readouterr().out == "name   rows  share\na     1,200  95.5%\nbb        7   4.5%\n"


def test_the_columns_that_are_named_are_aligned_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("no", "groups"), [("1", "7"), ("12", "0-3")], left=("groups",))
    assert capsys.readouterr().out == "no  groups\n 1  7     \n12  0-3   \n"


def test_nothing_is_cut_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("a", "b"), [("x" * 500, "y" * 500)])
    assert f"{'x' * 500}  {'y' * 500}" in capsys.readouterr().out


def test_labels_are_padded_to_the_longest(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("lag", "7"), ("batch time", "1 s")])
    assert capsys.readouterr().out == "lag         7\nbatch time  1 s\n"
