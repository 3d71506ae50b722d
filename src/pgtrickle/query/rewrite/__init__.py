"""Rewrites of the operator tree, each one function in a file of its name. Pure; `builder/build.py` applies them in
order."""

from __future__ import annotations

from collections.abc import Callable

from pgtrickle.query.operators import Operator
from pgtrickle.query.rewrite.clock_apart import clock_apart
from pgtrickle.query.rewrite.first_places import first_places
from pgtrickle.query.rewrite.merge_projects import merge_projects
from pgtrickle.query.rewrite.order_joins import order_joins
from pgtrickle.query.rewrite.order_values import order_values
from pgtrickle.query.rewrite.prune_columns import prune_columns
from pgtrickle.query.rewrite.push_filters import push_filters

RULES: tuple[Callable[[Operator], Operator], ...] = (
    push_filters,
    order_joins,
    prune_columns,
    merge_projects,
    clock_apart,
    order_values,
    first_places,
)


def rewrite(tree: Operator) -> Operator:
    """The tree after all rules; its output columns stay as they are."""
    for rule in RULES:
        tree = rule(tree)
    return tree
