"""What the rows of a window are looked up by: the columns that a join above compares for equality. Pure.

Their state has an index on each (`refresh/definition/define.py`), of those types whose values are small: an index page
cannot hold any text. Without one, a delta meets all rows at once (`operands.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pgtrickle.model import Expr
from pgtrickle.query.expression import element, referenced
from pgtrickle.query.operators import (
    Equality,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    RowWise,
    TopK,
    Window,
    walk,
)


def looked_up(tree: Operator) -> Mapping[Window, tuple[str, ...]]:
    """The columns of each window that an index serves."""
    found: dict[Window, dict[str, None]] = {}
    joins = [node for node in walk(tree) if isinstance(node, InnerJoin | LeftJoin | Match)]
    for join in joins:
        for equality in join.equalities:
            for side, expression in ((join.left, equality.left), (join.right, equality.right)):
                at = _origin(side, expression)
                if at is not None:
                    found.setdefault(at[0], {})[at[1]] = None
    return {window: tuple(columns) for window, columns in found.items()}


def is_found_by(operand: Operator, key: Equality) -> bool:
    """Whether an operand that keeps state, the right side of the key, is looked up by it."""
    return _origin(operand, key.right) is not None or not any(isinstance(node, Window) for node in walk(operand))


def _origin(operator: Operator, expression: Expr) -> tuple[Window, str] | None:
    """The window, and its column, that an expression above it is."""
    name = referenced(element(expression))
    if name is None:
        return None
    match operator:
        case Window():
            small = any(column.name == name and column.type.is_small for column in operator.columns)
            return (operator, name) if small else None
        case Project():
            return _origin(operator.input, operator.expressions[operator.names.index(name)])
        case RowWise() | TopK():
            return _origin(operator.input, expression) if name in operator.input.names else None
        case Match():
            return _origin(operator.left, expression) if name in operator.left.names else None
        case InnerJoin() | LeftJoin():
            side = operator.left if name in operator.left.names else operator.right
            return _origin(side, expression)
    return None
