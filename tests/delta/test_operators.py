"""Nodes: what is derived from the fields of each, and that each kind has its rule, its text and its interpretation."""

from __future__ import annotations

import pytest
from hypothesis import given

import pgtrickle.delta  # noqa: F401  # registers the rules
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.tree_text import line
from pgtrickle.query import operators as nodes
from pgtrickle.query.operators import MalformedTree, Operator, RowWise, Stateful, walk
from tests.delta.interpreter import rows_of
from tests.delta.trees import TABLES, Names, filtered, joined, operators, scan

BASES = (Operator, RowWise, Stateful)
KINDS = [
    node for node in vars(nodes).values() if isinstance(node, type) and issubclass(node, Operator) and node not in BASES
]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_delta_rule_a_text_and_an_interpretation(kind: type[Operator]) -> None:
    assert differentiate.dispatch(kind) is not differentiate.dispatch(Operator)
    assert line.dispatch(kind) is not line.dispatch(Operator)
    assert rows_of.dispatch(kind) is not rows_of.dispatch(Operator)


@given(operators())
def test_a_node_over_its_own_inputs_is_the_same(tree: Operator) -> None:
    for node in (*walk(tree), *walk(differentiate(tree))):
        assert node.with_inputs(node.inputs) == node


def test_a_node_passes_on_the_columns_of_its_new_inputs() -> None:
    names = Names()
    left, right = scan(names, TABLES[0], "x"), scan(names, TABLES[1], "x")
    wider = scan(names, TABLES[2], "x", "y")
    join = joined(left, right)
    assert join.with_inputs((wider, right)).names == wider.names + right.names
    assert filtered(join, "true").with_inputs((wider,)).names == wider.names


def test_a_node_has_as_many_inputs_as_before() -> None:
    names = Names()
    left, right = scan(names, TABLES[0], "x"), scan(names, TABLES[1], "x")
    with pytest.raises(MalformedTree, match="as many inputs"):
        joined(left, right).with_inputs((left,))
