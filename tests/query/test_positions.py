"""Positions in the user's text: outside strings, comments and quoted names."""

from __future__ import annotations

import pytest

from pgtrickle.query.syntax.positions import (
    locate,
    locate_name,
    locate_scalar_subquery,
    locate_second_statement,
    position,
)


def test_position_counts_from_one() -> None:
    assert position("ab\ncd", 0) == "line 1, column 1"
    assert position("ab\ncd", 4) == "line 2, column 2"
    assert position("ab", 99) == "line 1, column 3"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'left join' FROM a LEFT JOIN b",
        "SELECT 1 -- left join\n LEFT  JOIN b",
        "SELECT /* left join */ x left\njoin b",
        "SELECT $$left join$$, $t$left join$t$ LEFT JOIN",
        "SELECT E'\\'left join' LEFT JOIN",
    ],
)
def test_strings_and_comments_are_passed_over(text: str) -> None:
    where = text.lower().rfind("left")
    assert locate(text, "left join") == position(text, where)


def test_the_first_phrase_that_is_there_counts() -> None:
    assert locate("a left outer join b", "left join", "left outer join") == "line 1, column 3"
    assert locate("a b", "c") is None


def test_names_may_be_quoted() -> None:
    assert locate_name('SELECT "Odd ""N" FROM x', 'Odd "N') == "line 1, column 8"
    assert locate_name("SELECT NOW()", "now") == "line 1, column 8"


def test_second_statement() -> None:
    assert locate_second_statement("SELECT ';'; SELECT 2") == "line 1, column 13"
    assert locate_second_statement("SELECT 1;") is None


def test_a_subquery_in_from_is_no_operand() -> None:
    assert locate_scalar_subquery("SELECT a FROM (SELECT 1) x, (SELECT 2) y") is None
    assert locate_scalar_subquery("SELECT a FROM (SELECT 1) x WHERE a = (SELECT 2)") == "line 1, column 38"
