"""Columns whose equal values look alike although their type allows otherwise. Pure; `refresh/prepared.py` asks of the
keys of groups: then a group that lost rows need not be read again to see how its key looks.
"""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query.expression import node_of, referenced
from pgtrickle.query.operators import Filter, InnerJoin, Operator, Project

_WHOLE_NUMBERS = frozenset(
    {
        "year", "month", "day", "hour", "minute", "quarter", "week", "dow", "doy",
        "isodow", "isoyear", "century", "decade", "millennium",
    }
)  # fmt: skip
"""Fields of which EXTRACT makes a numeric without a fraction: 1995, never 1995.0."""


def is_whole_number(operator: Operator, name: str) -> bool:
    """Whether a numeric column is EXTRACT's of such a field, as far as it can be followed down."""
    match operator:
        case Filter(input=below):
            return is_whole_number(below, name)
        case Project(input=below):
            made = operator.expressions[operator.names.index(name)]
            same = referenced(made)
            return _extracts(made) if same is None else is_whole_number(below, same)
        case InnerJoin(left=left, right=right):
            return is_whole_number(left if name in left.names else right, name)
    return False


def _extracts(made: Expr) -> bool:
    node = node_of(made)
    return isinstance(node, exp.Extract) and node.this.name.lower() in _WHOLE_NUMBERS
