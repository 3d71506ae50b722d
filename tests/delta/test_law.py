"""The one law of the algebra, R′ = R + ΔR, for random trees and random windows, at every node."""

from __future__ import annotations

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from pgtrickle.delta.algebra import Plus, StatefulDelta, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.tree_text import plan
from pgtrickle.query.clock import values_in, values_of
from pgtrickle.query.operators import Operator, Scan, Stateful, walk
from tests.delta.interpreter import CLOCK, Moment, TableWindow, World, add, evaluate, negate
from tests.delta.trees import TABLES, operators, timed_worlds

EVERY_TABLE = frozenset(table.oid for table in TABLES)
thorough = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@thorough
@given(operators(timed=True), timed_worlds(), st.frozensets(st.sampled_from(sorted(EVERY_TABLE))), st.booleans())
def test_after_is_before_plus_delta(tree: Operator, world: World, more: frozenset[int], known: bool) -> None:
    really = frozenset(oid for oid, window in world.items() if window.changes)
    moved = {value.number for value in values_in(tree)} if CLOCK in really else frozenset[int]()
    changed = really | more | moved if known else None
    for op in walk(tree):
        delta = differentiate(op, changed)
        note(plan(delta))
        assert delta.names == op.names
        before, after = evaluate(op, world, Moment.BEFORE), evaluate(op, world, Moment.AFTER)
        assert add(before, evaluate(delta, world)) == after


@thorough
@given(operators(timed=True), timed_worlds())
def test_a_window_undone_takes_back_its_delta(tree: Operator, world: World) -> None:
    undone = {
        oid: TableWindow(window.attributes, window.after, negate(window.changes)) for oid, window in world.items()
    }
    delta = differentiate(tree)
    note(plan(delta))
    assert add(evaluate(delta, world), evaluate(delta, undone)) == {}


@thorough
@given(operators(timed=True), st.frozensets(st.sampled_from(sorted(EVERY_TABLE))))
def test_nothing_empty_is_left_inside_a_plan(tree: Operator, changed: frozenset[int]) -> None:
    delta = differentiate(tree, changed)
    below = [op for op in walk(delta) if op is not delta]
    assert not any(is_empty(op) for op in below)
    assert not any(isinstance(term, Plus) for op in walk(delta) if isinstance(op, Plus) for term in op.terms)
    assert not any(isinstance(op, Plus) and len(op.terms) == 1 for op in walk(delta))


@thorough
@given(operators(timed=True))
def test_each_state_is_differentiated_once(tree: Operator) -> None:
    states = [op for op in walk(tree) if isinstance(op, Stateful) and _reads_a_table(op)]
    deltas = [op.kept for op in walk(differentiate(tree)) if isinstance(op, StatefulDelta)]
    assert sorted(map(id, deltas)) == sorted(map(id, states))


def _reads_a_table(op: Operator) -> bool:
    """Or the clock: what may change."""
    return any(isinstance(below, Scan) or values_of(below) for below in walk(op))
