"""Monotone queries: which are, what they gain when their tables gain rows, and the name of what is in the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import event, given
from hypothesis import strategies as st

from pgtrickle.delta.monotone import growth, name, obstacle
from pgtrickle.model import Expr
from pgtrickle.query.operators import Operator, Project
from tests.delta.interpreter import Moment, World, ZSet, add, evaluate
from tests.delta.test_law import thorough
from tests.delta.trees import INT, TABLES, Names, call, filtered, grouped, joined, operators, scan, union, worlds

A, B, _ = TABLES
OIDS = [table.oid for table in TABLES]


@dataclass(frozen=True, slots=True)
class LeftJoin(Operator):
    """An operator that the rules have never heard of."""

    input: Operator

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)


def growing(world: World, changed: frozenset[int]) -> World:
    """The world in which just these tables change, and only gain rows."""
    return {
        oid: replace(window, changes=Counter({r: w for r, w in window.changes.items() if w > 0 and oid in changed}))
        for oid, window in world.items()
    }


def is_within(one: ZSet, other: ZSet) -> bool:
    return all(weight <= other[row] for row, weight in one.items())


@thorough
@given(operators(max_depth=3), worlds(), st.frozensets(st.sampled_from(OIDS), min_size=1), st.booleans())
def test_what_a_monotone_query_gains(tree: Operator, world: World, changed: frozenset[int], distinct: bool) -> None:
    tree = grouped(tree, tree.columns) if distinct else tree
    if obstacle(tree, changed) is not None:
        event("not monotone")
        return
    world = growing(world, changed)
    before, after = (evaluate(tree, world, moment) for moment in Moment)
    assert is_within(before, after)
    found = growth(tree, changed)
    if found is None:
        event("told by the whole query")
        return
    gained = [(term.sign, evaluate(term.tree, world, Moment.AFTER)) for term in found.terms]
    if found.distinct:
        event("distinct")
        assert set(after) == set(before).union(*(rows for _, rows in gained))
    else:
        event("linear")
        weighted = [Counter({row: sign * weight for row, weight in rows.items()}) for sign, rows in gained]
        assert add(before, *weighted) == after


def test_what_is_in_the_way_is_named() -> None:
    names = Names()
    one, other = scan(names, A, "x", "y"), scan(names, B, "x")
    total = grouped(one, one.columns[:1], call(names, "sum", one.columns[1]), call(names, "count"))
    tree = joined(filtered(total, f"{total.names[1]} > 0", total.names[1]), other, (total.names[0], other.names[0]))
    found = obstacle(tree, {A.oid})
    assert found is total
    assert name(found) == "aggregate sum, count"
    assert obstacle(tree, {B.oid}) is None, "it is not above that table"
    alone = grouped(other, (), call(names, "count"))
    assert obstacle(alone, {B.oid}) is alone
    unknown = LeftJoin(one.columns, one)
    found = obstacle(union(names, unknown, one), {A.oid})
    assert found is unknown
    assert name(found) == "left join"


def test_distinct_rows_stay_distinct_if_all_keys_are_shown() -> None:
    names = Names()
    keys = grouped(rows := scan(names, A, "x", "y"), rows.columns)

    def shown(*expressions: str) -> Project:
        columns = tuple(names.column(INT) for _ in expressions)
        return Project(columns, keys, tuple(Expr(each, keys.names) for each in expressions))

    one, other = (f'"{each}"' for each in keys.names)
    plain = [Expr(one, keys.names[:1]), Expr(other, keys.names[1:])]
    both = replace(shown(one, other), expressions=tuple(plain))
    only = replace(shown(one), expressions=(plain[0],))
    found = growth(both, {A.oid})
    assert found is not None
    assert found.distinct
    assert growth(only, {A.oid}) is None
    assert growth(shown(f"{one} + {other}"), {A.oid}) is None


def test_a_change_at_several_places_is_counted_once() -> None:
    names = Names()
    one, other, third = (scan(names, A, "x") for _ in range(3))
    found = growth(union(names, one, other), {A.oid})
    assert found is not None
    assert [term.sign for term in found.terms] == [1, 1], "no row comes from two branches"
    found = growth(joined(one, other), {A.oid})
    assert found is not None
    assert sorted(term.sign for term in found.terms) == [-1, 1, 1]
    keys = grouped(one, one.columns)
    renamed = Project((names.column(INT),), keys, (Expr(keys.names[0], keys.names),))
    twice = joined(keys, renamed)
    assert growth(grouped(twice, twice.columns), {A.oid}) is None, "a part that is used twice"
    many = joined(joined(one, other), joined(third, scan(names, A, "x")))
    assert growth(many, {A.oid}) is None, "more terms than it is worth"
