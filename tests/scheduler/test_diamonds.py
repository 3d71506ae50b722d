"""Diamonds: which tables belong to one, when a group runs, and that its commit is never cut in two."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtrickle.config import Settings
from pgtrickle.scheduler import diamonds
from pgtrickle.scheduler.dag import Dag
from pgtrickle.scheduler.diamonds import AtomicGroup
from tests.scheduler.graphs import BASE, OTHER, acyclic, dag

DIAMOND = ((1, BASE), (2, BASE), (3, 1), (3, 2))


def asking(graph: Dag, *ends: int, consistency: str | None = None, policy: str | None = None) -> Dag:
    """The graph with this asked for these tables, or for all."""
    chosen = ends or tuple(graph.tables)
    changed = {end: replace(graph.tables[end], consistency=consistency, policy=policy) for end in chosen}
    return Dag({**graph.tables, **changed}.values(), graph.edges)


def members(graph: Dag) -> list[tuple[int, ...]]:
    return [group.members for group in diamonds.groups(graph, Settings())]


def test_a_plain_diamond() -> None:
    assert diamonds.groups(dag(*DIAMOND), Settings()) == (AtomicGroup((1, 2, 3), (3,), "atomic", "fastest"),)


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        pytest.param([(1, BASE), (2, 1), (3, 2)], [], id="a chain is none"),
        pytest.param([(1, BASE), (2, BASE), (3, BASE)], [], id="a fan is none"),
        pytest.param([(1, BASE), (2, OTHER), (3, 1), (3, 2)], [], id="a join of strangers is none"),
        pytest.param(
            [(1, BASE), (2, 1), (3, 1), (4, 2), (4, 3)], [(2, 3, 4)], id="what all ways start from is not in it"
        ),
        pytest.param([(1, BASE), (2, 1), (2, BASE)], [(1, 2)], id="one way may be direct"),
        pytest.param([(1, BASE), (2, BASE), (3, 1), (4, 3), (4, 2)], [(1, 2, 3, 4)], id="ways of unequal length"),
        pytest.param([*DIAMOND, (4, 3)], [(1, 2, 3)], id="what comes after is not in it"),
        pytest.param([*DIAMOND, (4, 3), (4, OTHER)], [(1, 2, 3)], id="nor where it meets something else"),
        pytest.param([*DIAMOND, (4, 1), (4, 2)], [(1, 2, 3, 4)], id="two ends of the same arms are one group"),
        pytest.param([*DIAMOND, (4, 3), (4, BASE)], [(1, 2, 3, 4)], id="a diamond within a diamond"),
        pytest.param(
            [*DIAMOND, (4, OTHER), (5, OTHER), (6, 4), (6, 5)], [(1, 2, 3), (4, 5, 6)], id="two that share nothing"
        ),
        pytest.param([(1, 2), (2, 1), (3, 1), (3, 2)], [(1, 2)], id="a circle is a group of its own"),
        pytest.param([(1, BASE), (2, 1), (2, 2), (3, 1), (3, 2)], [(2,)], id="and what reads it is in no diamond"),
    ],
)
def test_members(edges: list[tuple[int, int]], expected: list[tuple[int, ...]]) -> None:
    assert members(dag(*edges, tables=6)) == expected


def test_the_end_of_a_diamond_decides_and_the_slowest_wins() -> None:
    graph = dag(*DIAMOND, (4, 1), (4, 2))
    assert diamonds.groups(asking(graph, 3, policy="slowest"), Settings()) == (
        AtomicGroup((1, 2, 3, 4), (3, 4), "atomic", "slowest"),
    )
    assert diamonds.groups(asking(graph, 3, consistency="none", policy="slowest"), Settings()) == (
        AtomicGroup((1, 2, 3), (3,), "none", "slowest"),
        AtomicGroup((1, 2, 4), (4,), "atomic", "fastest"),
    )
    quiet = Settings(diamond_consistency="none", diamond_schedule_policy="slowest")
    assert diamonds.groups(dag(*DIAMOND), quiet) == (AtomicGroup((1, 2, 3), (3,), "none", "slowest"),)
    assert diamonds.groups(asking(dag(*DIAMOND), consistency="atomic", policy="fastest"), quiet)[0].atomic


def test_the_policies() -> None:
    for policy, early in (("fastest", {1, 2, 3}), ("slowest", set[int]())):
        graph = asking(dag(*DIAMOND), policy=policy)
        found = diamonds.groups(graph, Settings())
        assert diamonds.select(graph, found, {1}) == early
        assert diamonds.select(graph, found, {1, 2, 3, 4}) == {1, 2, 3, 4}
        assert diamonds.select(graph, found, {4}) == {4}
    graph = asking(dag(*DIAMOND, calculated=frozenset({1, 2})), policy="slowest")
    assert diamonds.select(graph, diamonds.groups(graph, Settings()), {3}) == {1, 2, 3}, "no schedule, nothing to await"


def test_a_halted_member_holds_its_group_and_no_other() -> None:
    graph = dag(*DIAMOND, (5, 3), (6, OTHER), tables=6)
    found = diamonds.groups(graph, Settings())
    assert diamonds.select(graph, found, set(graph.tables), {2}) == {4, 5, 6}
    loose = diamonds.groups(graph, Settings(diamond_consistency="none"))
    assert diamonds.select(graph, loose, set(graph.tables), {2}) == {1, 3, 4, 5, 6}


def test_a_reader_of_one_arm_brings_the_whole_group() -> None:
    graph = dag(*DIAMOND, (4, 1), calculated=frozenset({1, 2, 3}))
    assert diamonds.select(graph, diamonds.groups(graph, Settings()), {4}) == {1, 2, 3, 4}


def test_a_circle_runs_whole_between_what_it_reads_and_what_reads_it() -> None:
    graph = dag((1, BASE), (2, 1), (2, 3), (3, 2), (4, 3), (5, 5), tables=5, calculated=frozenset({1, 3}))
    found = diamonds.groups(graph, Settings())
    assert [(group.members, group.circular) for group in found] == [((2, 3), True), ((5,), True)]
    assert diamonds.select(graph, found, {2}) == {1, 2, 3}
    assert diamonds.select(graph, found, {2, 4, 5}, {3}) == {4, 5}, "halted as a whole"
    assert diamonds.reached(graph, found, {2, 3, 4, 5}, {3}) == {2, 3, 4}
    sorter = diamonds.units(graph, found, graph.tables)
    assert set(sorter.get_ready()) == {(1,), (5,)}
    sorter.done((1,))
    assert sorter.get_ready() == ((2, 3),)
    sorter.done((2, 3))
    assert sorter.get_ready() == ((4,),)


def test_units_wait_for_what_they_read() -> None:
    graph = dag((1, BASE), (2, 1), (3, 1), (4, 2), (4, 3), (5, 4), (6, OTHER), tables=6)
    sorter = diamonds.units(graph, diamonds.groups(graph, Settings()), graph.tables)
    assert set(sorter.get_ready()) == {(1,), (6,)}
    sorter.done((1,))
    assert sorter.get_ready() == ((2, 3, 4),)
    sorter.done((2, 3, 4))
    assert sorter.get_ready() == ((5,),)


@settings(deadline=None)
@given(acyclic())
def test_members_are_those_on_ways_that_part_and_meet(graph: Dag) -> None:
    """Against the definition, way by way: two ways from one relation that share nothing but their ends."""
    expected: dict[int, set[int]] = {}
    for end in graph.tables:
        last = graph.tables[end].relid
        for start in nx.ancestors(graph.relations, last):
            ways = [set(way[1:-1]) for way in nx.all_simple_paths(graph.relations, start, last)]
            if any(one.isdisjoint(other) for one, other in combinations(ways, 2)):
                between = {graph.by_relid[each] for way in ways for each in way}
                expected.setdefault(end, {end}).update(between)
    assert diamonds.convergences(graph) == {end: frozenset(found) for end, found in expected.items()}


@settings(deadline=None)
@given(acyclic(), st.data())
def test_groups_are_whole_and_never_in_each_others_way(graph: Dag, data: st.DataObject) -> None:
    chosen = st.frozensets(st.sampled_from(sorted(graph.tables)))
    due, halted = data.draw(chosen), data.draw(chosen)
    slow = data.draw(chosen)
    graph = Dag(
        [replace(t, policy="slowest" if t.pgt_id in slow else "fastest") for t in graph.tables.values()], graph.edges
    )
    found = diamonds.groups(graph, Settings())
    everyone = [pgt_id for group in found for pgt_id in group.members]
    assert len(everyone) == len(set(everyone)), "no table is in two groups"
    for end, diamond in diamonds.convergences(graph).items():
        assert any(diamond <= set(group.members) and end in group.convergence for group in found)
    selected = diamonds.select(graph, found, due, halted)
    assert not selected & halted
    for group in found:
        assert selected.isdisjoint(group.members) or selected.issuperset(group.members)
    done: list[int] = []
    sorter = diamonds.units(graph, found, selected)
    while sorter.is_active():
        for unit in sorter.get_ready():
            for pgt_id in unit:
                assert graph.upstream(pgt_id) & selected <= set(done)
                done.append(pgt_id)
            sorter.done(unit)
    assert sorted(done) == sorted(selected)


def test_what_work_reaches() -> None:
    """What reads a table with work, and its group; what is not selected stays out."""
    graph = dag(*DIAMOND, (4, 3), (5, OTHER), tables=5)
    found = diamonds.groups(graph, Settings())
    assert diamonds.reached(graph, found, {1, 2, 3, 4, 5}, {5}) == {5}
    assert diamonds.reached(graph, found, {1, 2, 3, 4, 5}, {4}) == {4}
    assert diamonds.reached(graph, found, {1, 2, 3, 5}, {1}) == {1, 2, 3}
    assert diamonds.reached(graph, found, {1, 2, 3, 4, 5}, {2, 5}) == {1, 2, 3, 4, 5}
    loose = diamonds.groups(asking(graph, consistency="none"), Settings())
    assert diamonds.reached(graph, loose, {1, 2, 3, 4, 5}, {1}) == {1, 3, 4}
