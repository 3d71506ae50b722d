"""What is done to a stream table's columns when its query has others: the plan alone, without a database."""

from __future__ import annotations

import pytest

from pgtrickle.model import Column, PgType
from pgtrickle.refresh.definition.reshape import Reshape, Stored, plan

INT, TEXT, NUMERIC = PgType(23, "integer"), PgType(25, "text"), PgType(1700, "numeric")


def stored(*names: str, carry: str = "") -> list[Stored]:
    return [Stored(name, INT, name in carry.split()) for name in names]


def wanted(*names: str, **types: PgType) -> list[Column]:
    return [Column(name, types.get(name, INT)) for name in names]


@pytest.mark.parametrize(
    ("before", "after", "dropped", "retyped", "added"),
    [
        (stored("a", "b"), wanted("a", "b"), "", "", ""),
        (stored("a", "b"), wanted("b", "a"), "", "", ""),  # another order alone is no reason
        (stored("a", "b"), wanted("a", "b", "c"), "", "", "c"),
        (stored("a", "b"), wanted("b"), "a", "", ""),
        (stored("a", "b"), wanted("a", "b", b=NUMERIC), "", "b", ""),
        (stored("a", "b"), wanted("c", "d"), "a b", "", "c d"),
        # to stand where the query has them, if nothing is lost by it
        (stored("a", "b"), wanted("a", "c", "b"), "b", "", "c b"),
        (stored("a", "b"), wanted("c", "b", "a"), "b a", "", "c b a"),
        (stored("a", "b", "x"), wanted("a", "c", "b", b=TEXT), "x b", "", "c b"),
        (stored("a", "b", carry="a"), wanted("a", "c", "b"), "b", "", "c b"),
        # and not if something is
        (stored("a", "b", carry="b"), wanted("a", "c", "b"), "", "", "c"),
        (stored("a", "b", carry="b"), wanted("c", "b", "a", b=TEXT), "", "b", "c"),
    ],
)
def test_the_plan(before: list[Stored], after: list[Column], dropped: str, retyped: str, added: str) -> None:
    found = plan(before, after)
    assert found.dropped == tuple(dropped.split())
    assert [column.name for column in found.retyped] == retyped.split()
    assert [column.name for column in found.added] == added.split()
    assert found.other_names == ({each.name for each in before} != {each.name for each in after})


def test_another_collation_is_another_type() -> None:
    german = PgType(25, "text", 'public."de"')
    assert plan([Stored("a", TEXT)], [Column("a", german)]) == Reshape((), (Column("a", german),), ())
