"""The graph of stream tables: order, readiness, what a due table needs, cycles and their names."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtrickle.errors import StateError
from pgtrickle.scheduler.dag import Dag
from pgtrickle.scheduler.diamonds import units
from tests.scheduler.graphs import BASE, OTHER, acyclic, dag


def test_an_upstream_comes_first_and_age_breaks_ties() -> None:
    chain = dag((1, 2), (2, 3), (3, BASE), (4, BASE))
    assert chain.order() == (3, 2, 1, 4)
    assert chain.order({1, 4, 3}) == (1, 3, 4), "b is read as it is: a need not wait for c"
    assert chain.upstream(2) == {3}
    assert chain.below({3}) == {1, 2}
    assert chain.below({4}) == frozenset()


def test_a_downstream_starts_when_its_own_sources_are_done() -> None:
    """Not when a level is: d reads c only, and does not wait for b, which is on c's level."""
    sorter = units(dag((2, 1), (3, 1), (4, 3), (1, BASE)), (), {1, 2, 3, 4})
    assert sorter.get_ready() == ((1,),)
    sorter.done((1,))
    assert set(sorter.get_ready()) == {(2,), (3,)}
    sorter.done((3,))
    assert sorter.get_ready() == ((4,),)


@settings(deadline=None)
@given(acyclic(), st.data())
def test_order_of_any_dag(graph: Dag, data: st.DataObject) -> None:
    selected = data.draw(st.frozensets(st.sampled_from(sorted(graph.tables))))
    for chosen, order in ((frozenset(graph.tables), graph.order()), (selected, graph.order(selected))):
        assert sorted(order) == sorted(chosen)
        place = {pgt_id: number for number, pgt_id in enumerate(order)}
        assert all(place[up] < place[pgt_id] for pgt_id in order for up in graph.upstream(pgt_id) & chosen)
    assert graph.cycle() is None
    assert graph.cyclic == frozenset()


@settings(deadline=None)
@given(acyclic(), st.data())
def test_running_side_by_side_keeps_the_order_and_starves_no_one(graph: Dag, data: st.DataObject) -> None:
    selected = data.draw(st.frozensets(st.sampled_from(sorted(graph.tables))))
    sorter, running, done = units(graph, (), selected), set[int](), set[int]()
    while sorter.is_active():
        running |= {pgt_id for unit in sorter.get_ready() for pgt_id in unit}
        expected = {t for t in selected - done if graph.upstream(t) & selected <= done}
        assert running == expected, "every table whose sources are done may run, and no other"
        finished = data.draw(st.sampled_from(sorted(running)))
        running.remove(finished)
        done.add(finished)
        sorter.done((finished,))
    assert done == selected


def test_a_due_table_needs_its_calculated_sources_through_any_depth() -> None:
    graph = dag((1, 2), (2, 3), (3, 4), (4, BASE), calculated=frozenset({2, 4}))
    assert graph.needed({1}) == {1, 2}, "c has a schedule of its own: it is read as it is, and so is d behind it"
    assert graph.needed({3}) == {3, 4}
    assert graph.needed({1, 3}) == {1, 2, 3, 4}
    assert graph.needed(set()) == frozenset()


@settings(deadline=None)
@given(acyclic(), st.data())
def test_what_is_needed(graph: Dag, data: st.DataObject) -> None:
    due = data.draw(st.frozensets(st.sampled_from(sorted(graph.tables))))
    needed = graph.needed(due)
    assert due <= needed
    assert needed == graph.needed(needed)
    calculated = {pgt_id for pgt_id, table in graph.tables.items() if table.schedule is None}
    assert needed - due <= calculated
    for pgt_id in needed - due:
        assert any(pgt_id in graph.upstream(reader) for reader in needed), "someone asked for it"
    for pgt_id in needed:
        assert graph.upstream(pgt_id) & calculated <= needed


def test_a_cycle_is_refused_by_name() -> None:
    chain = dag((3, 2), (2, 1), (1, BASE))
    chain.require_no_cycle(1, [OTHER])
    chain.require_no_cycle(4, [103])
    with pytest.raises(StateError) as refused:
        chain.require_no_cycle(1, [BASE, 103])
    assert refused.value.code == "PT371"
    assert "a → b → c → a" in refused.value.message
    assert "allow_circular" in str(refused.value.hint)
    with pytest.raises(StateError, match="b → b"):
        chain.require_no_cycle(2, [102])
    chain.require_no_cycle(3, [101])


def test_an_alter_is_not_blamed_for_a_cycle_elsewhere() -> None:
    """A view that was replaced may have closed one: its tables are set apart, the others go on."""
    graph = dag((1, 2), (2, 1), (3, 1), (4, BASE))
    assert graph.cycle() == ("a", "b", "a")
    assert graph.cyclic == {1, 2}
    graph.require_no_cycle(4, [OTHER])
    graph.require_no_cycle(3, [BASE])
    graph.require_no_cycle(2, [BASE])
    assert graph.order({3, 4}) == (3, 4)
    with pytest.raises(StateError, match="a → b → a"):
        graph.order()


@settings(deadline=None)
@given(acyclic(), st.data())
def test_a_cycle_is_refused_exactly_when_the_table_reads_what_reads_it(graph: Dag, data: st.DataObject) -> None:
    pgt_id, source = (data.draw(st.sampled_from(sorted(graph.tables))) for _ in range(2))
    closes = source == pgt_id or source in graph.below({pgt_id})
    sources = {read for reader, read in graph.edges if reader == pgt_id} | {graph.tables[source].relid}
    if not closes:
        graph.require_no_cycle(pgt_id, sources)
        return
    with pytest.raises(StateError) as refused:
        graph.require_no_cycle(pgt_id, sources)
    names = refused.value.message.split(": ")[1].split(" → ")
    changed = graph.with_sources(pgt_id, sources)
    ids = {table.name: each for each, table in changed.tables.items()}
    assert names[0] == names[-1]
    assert graph.tables[pgt_id].name in names
    for upstream, downstream in pairwise(names):
        assert ids[upstream] in changed.upstream(ids[downstream])


def test_the_same_rows_are_the_same_graph() -> None:
    assert dag((1, BASE), (2, 1)) == dag((2, 1), (1, BASE))
    assert dag((1, BASE)) != dag((1, OTHER))
    assert dag((1, BASE)) != dag((1, BASE), calculated=frozenset({2}))


def test_only_some_of_the_tables() -> None:
    graph = dag((1, BASE), (2, 1), (3, 2)).only({1, 3})
    assert set(graph.tables) == {1, 3}
    assert graph.upstream(3) == frozenset(), "what lies between is a plain relation"
