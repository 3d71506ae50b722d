"""The shape of delta plans: which terms there are, and which side of a join is read when, as `explain` prints it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from pgtrickle.delta.algebra import Changes, Plus, empty, is_empty, plus
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.tree_text import plan
from pgtrickle.model import Expr
from pgtrickle.query.operators import MalformedTree, MatchKind, Project
from tests.delta.trees import INT, TABLES, Names, call, filtered, grouped, joined, left_joined, matched, scan, union

A, B, C = TABLES


def text(expected: str) -> str:
    return dedent(expected).strip()


def test_a_join_reads_its_left_side_after_and_its_right_side_before() -> None:
    names = Names()
    tree = joined(scan(names, A, "x"), scan(names, B, "x"), ("c1", "c2"))
    assert plan(differentiate(tree)) == text("""
        sum (c1, c2)
          join on c1 = c2
            Δpublic.a (c1 = x)
            public.b (c2 = x)
          join on c1 = c2
            public.a′ (c1 = x)
            Δpublic.b (c2 = x)
    """)


def test_a_left_join_looks_at_what_came_and_rematches_what_was_there() -> None:
    names = Names()
    tree = left_joined(scan(names, A, "x"), scan(names, B, "x"), ("c1", "c2"))
    assert plan(differentiate(tree)) == text("""
        sum (c1, c2)
          left join on c1 = c2
            Δpublic.a (c1 = x)
            public.b (c2 = x)
          rematch, left join on c1 = c2
            public.a′ (c1 = x)
            Δpublic.b (c2 = x)
    """)
    assert plan(differentiate(tree, frozenset({B.oid}))) == text("""
        rematch, left join on c1 = c2
          public.a′ (c1 = x)
          Δpublic.b (c2 = x)
    """)


def test_an_anti_join_of_an_aggregate_reads_the_aggregate_before() -> None:
    names = Names()
    below = scan(names, A, "x")
    totals = grouped(below, below.columns, call(names, "count"))
    tree = matched(names, MatchKind.ANTI, totals, scan(names, B, "x"), ("c1", "c3"))
    assert plan(differentiate(tree)) == text("""
        sum (c1, c2)
          anti join on c1 = c3
            Δaggregate by c1: c2 = count(*)
              Δpublic.a (c1 = x)
            public.b′ (c3 = x)
          rematch, anti join on c1 = c3
            aggregate by c1: c2 = count(*)
              public.a (c1 = x)
            Δpublic.b (c3 = x)
    """)


def test_an_aggregate_joined_to_a_table_is_read_before() -> None:
    names = Names()
    left, below = scan(names, A, "x"), scan(names, B, "x", "y")
    totals = grouped(below, below.columns[:1], call(names, "sum", below.columns[1]))
    big = filtered(totals, "c4 > 1", "c4")
    assert plan(differentiate(joined(left, big, ("c1", "c2")))) == text("""
        sum (c1, c2, c4)
          join on c1 = c2
            Δpublic.a (c1 = x)
            filter c4 > 1
              aggregate by c2: c4 = sum(c3)
                public.b (c2 = x, c3 = y)
          join on c1 = c2
            public.a′ (c1 = x)
            filter c4 > 1
              Δaggregate by c2: c4 = sum(c3)
                Δpublic.b (c2 = x, c3 = y)
    """)
    assert plan(differentiate(joined(big, left, ("c2", "c1")))) == text("""
        sum (c2, c4, c1)
          join on c2 = c1
            filter c4 > 1
              Δaggregate by c2: c4 = sum(c3)
                Δpublic.b (c2 = x, c3 = y)
            public.a′ (c1 = x)
          join on c2 = c1
            filter c4 > 1
              aggregate by c2: c4 = sum(c3)
                public.b (c2 = x, c3 = y)
            Δpublic.a (c1 = x)
    """)


def test_two_aggregates_joined_read_one_before_and_one_after() -> None:
    names = Names()
    left, right = scan(names, A, "x"), scan(names, B, "x")
    tree = joined(grouped(left, left.columns), grouped(right, right.columns), ("c1", "c2"))
    assert plan(differentiate(tree)) == text("""
        sum (c1, c2)
          join on c1 = c2
            Δaggregate by c1
              Δpublic.a (c1 = x)
            aggregate by c2
              public.b (c2 = x)
          join on c1 = c2
            aggregate′ by c1
              public.a′ (c1 = x)
            Δaggregate by c2
              Δpublic.b (c2 = x)
    """)


def test_one_changed_table_of_three_gives_one_term() -> None:
    names = Names()
    ab = joined(scan(names, A, "x"), scan(names, B, "x"), ("c1", "c2"))
    tree = joined(ab, scan(names, C, "x"), ("c2", "c3"))
    assert plan(differentiate(tree, frozenset({A.oid}))) == text("""
        join on c2 = c3
          join on c1 = c2
            Δpublic.a (c1 = x)
            public.b′ (c2 = x)
          public.c′ (c3 = x)
    """)
    assert plan(differentiate(tree, frozenset({C.oid}))) == text("""
        join on c2 = c3
          join′ on c1 = c2
            public.a′ (c1 = x)
            public.b′ (c2 = x)
          Δpublic.c (c3 = x)
    """)


def test_an_unchanged_aggregate_is_read_off_its_state() -> None:
    names = Names()
    left, below = scan(names, A, "x"), scan(names, B, "x")
    tree = joined(grouped(below, below.columns, call(names, "count")), left, ("c2", "c1"))
    assert plan(differentiate(tree, frozenset({A.oid}))) == text("""
        join on c2 = c1
          aggregate by c2: c3 = count(*)
            public.b (c2 = x)
          Δpublic.a (c1 = x)
    """)


def test_a_self_join_has_both_terms_though_one_table_changed() -> None:
    names = Names()
    tree = joined(scan(names, A, "x"), scan(names, A, "y"), ("c1", "c2"))
    assert plan(differentiate(tree, frozenset({A.oid}))).splitlines()[0] == "sum (c1, c2)"


def test_unchanged_branches_leave_a_union_and_the_last_one_keeps_its_columns() -> None:
    names = Names()
    tree = union(names, scan(names, A, "x"), scan(names, B, "x"), scan(names, C, "x"))
    assert plan(differentiate(tree, frozenset({A.oid, C.oid}))) == text("""
        union all (c4)
          Δpublic.a (c1 = x)
          Δpublic.c (c3 = x)
    """)
    assert plan(differentiate(tree, frozenset({B.oid}))) == text("""
        union all (c4)
          Δpublic.b (c2 = x)
    """)


def test_nothing_changed_is_empty_through_every_operator() -> None:
    names = Names()
    table = scan(names, A, "x")
    pair = joined(filtered(table, "c1 > 0", "c1"), scan(names, B, "x"))
    tree = union(names, grouped(pair, pair.columns[:1]), scan(names, C, "x"))
    top = Project((names.column(INT),), tree, (Expr(tree.names[0], tree.names),))
    assert differentiate(top, frozenset()) == empty(top)
    assert plan(differentiate(top, frozenset())) == "∅"


def test_a_delta_plan_has_no_delta() -> None:
    table = scan(Names(), A, "x")
    with pytest.raises(MalformedTree, match="no delta rule for Changes"):
        differentiate(Changes(table.columns, table))


def test_a_sum_flattens_drops_nothing_but_empties_and_unwraps_one_term() -> None:
    table = scan(Names(), A, "x")
    changes, nothing = Changes(table.columns, table), empty(table)
    assert plus(nothing, changes) is changes
    assert is_empty(plus(nothing, nothing))
    assert plus(plus(changes, changes), nothing, changes) == Plus(table.columns, (changes, changes, changes))
    with pytest.raises(MalformedTree):
        plus()


def test_a_plain_operator_tree_prints_without_marks() -> None:
    names = Names()
    tree = joined(scan(names, A, "x"), scan(names, B, "x"))
    assert plan(tree) == text("""
        cross join
          public.a (c1 = x)
          public.b (c2 = x)
    """)
