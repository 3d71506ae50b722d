"""What a delta is expected to have: the changes, as often as each finds rows on the other sides."""

from __future__ import annotations

from hypothesis import given
from tests.delta.test_law import thorough
from tests.delta.trees import TABLES, Names, call, grouped, joined, left_joined, matched, operators, scan, union

from pgtrickle.delta.differentiate import differentiate
from pgtrickle.physical.estimate import delta_rows
from pgtrickle.physical.table_facts import ROWS_PER_UNKNOWN_VALUE, TableFacts, TableFactsMap
from pgtrickle.query.operators import MatchKind, Operator

A, B, C = TABLES
FACTS = TableFactsMap(
    tables={A.oid: TableFacts(100.0), B.oid: TableFacts(5_000.0, {"x": 40.0}), C.oid: TableFacts(7.0)},
    changes={A.oid: 3},
)
CHANGED = frozenset({A.oid})


def expected(tree: Operator) -> float:
    return delta_rows(differentiate(tree, CHANGED), FACTS)


def test_each_change_finds_what_an_index_says() -> None:
    names = Names()
    a, b = scan(names, A, "x", "y"), scan(names, B, "x", "y")
    assert expected(a) == 6
    assert expected(joined(a, b, (a.names[0], b.names[0]))) == 6 * 40
    assert expected(joined(a, b, (a.names[1], b.names[1]))) == 6 * ROWS_PER_UNKNOWN_VALUE
    assert expected(joined(a, b)) == 6 * 5_000
    assert expected(left_joined(a, b, (a.names[0], b.names[0]))) == 6 * 40
    assert expected(left_joined(b, a, (b.names[0], a.names[0]))) == 2 * 6 * 40
    assert expected(matched(names, MatchKind.SEMI, a, b, (a.names[0], b.names[0]))) == 6


def test_groups_are_found_by_their_keys_and_a_value_alone_is_one_row() -> None:
    names = Names()
    a, b = scan(names, A, "x"), scan(names, B, "x")
    groups, value = grouped(b, b.columns, call(names, "count")), grouped(b, (), call(names, "count"))
    assert expected(joined(a, groups, (a.names[0], groups.names[0]))) == 6
    assert expected(joined(a, value)) == 6
    moved = grouped(a, (), call(names, "count"))
    c = scan(names, C, "x")
    assert expected(joined(moved, c)) == 2 * 7, "all rows meet the value, as it was and as it is"
    assert expected(union(names, a, scan(names, A, "x"))) == 12


@thorough
@given(operators(max_depth=4))
def test_there_is_an_estimate_for_every_plan(tree: Operator) -> None:
    assert delta_rows(differentiate(tree), FACTS) >= 0
