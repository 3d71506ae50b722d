"""Joins become left-deep, each input joined as soon as a conjunct connects it to those before it.

    a × b × c, a.x = c.x, c.y = b.y   becomes   (a ⋈ c) ⋈ b

So comma joins turn into equi-joins. Left joins, semi-joins and the like stay where they are. An input that holds an
aggregate or a window comes after those that hold none, as long as that needs no cross product. Otherwise the text's
order is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgtrickle.model import Expr
from pgtrickle.query.expression import conjunction, conjuncts, equality_sides
from pgtrickle.query.operators import Aggregate, Equality, InnerJoin, LeftJoin, Match, Operator, Window, walk


def order_joins(tree: Operator) -> Operator:
    return _order(tree)


def _order(operator: Operator) -> Operator:
    match operator:
        case InnerJoin():
            inputs, conditions = _flatten(operator)
            return _join_all([_order(part) for part in inputs], conditions)
        case LeftJoin() | Match():
            ordered = operator.with_inputs([_order(side) for side in operator.inputs])
            return replace(ordered, equalities=_equalities(ordered.left, ordered.right, ordered.condition))
    return operator.with_inputs([_order(below) for below in operator.inputs])


def _flatten(operator: Operator) -> tuple[list[Operator], list[Expr]]:
    if not isinstance(operator, InnerJoin):
        return [operator], []
    left, left_conditions = _flatten(operator.left)
    right, right_conditions = _flatten(operator.right)
    own = [] if operator.condition is None else list(conjuncts(operator.condition))
    return left + right, left_conditions + right_conditions + own


def _join_all(inputs: list[Operator], conditions: list[Expr]) -> Operator:
    remaining = sorted(inputs, key=_has_aggregate)  # stable: otherwise as written
    joined = remaining.pop(0)
    while remaining:
        chosen = min(remaining, key=lambda part: (_distance(joined, part, conditions), _has_aggregate(part)))
        remaining.remove(chosen)
        known = {*joined.names, *chosen.names}
        ready = [condition for condition in conditions if known.issuperset(condition.columns)]
        conditions = [condition for condition in conditions if condition not in ready]
        joined = _join(joined, chosen, ready)
    return joined


def _distance(joined: Operator, part: Operator, conditions: Sequence[Expr]) -> int:
    """0 if an equality connects `part` to what is joined already, 1 if another condition does, else 2."""
    known = {*joined.names, *part.names}
    connecting = [c for c in conditions if known.issuperset(c.columns) and not set(c.columns).isdisjoint(part.names)]
    if any(_equality(joined, part, condition) for condition in connecting):
        return 0
    return 1 if connecting else 2


def _join(left: Operator, right: Operator, conditions: Sequence[Expr]) -> InnerJoin:
    condition = conjunction(conditions)
    return InnerJoin(left.columns + right.columns, left, right, condition, _equalities(left, right, condition))


def _equalities(left: Operator, right: Operator, condition: Expr | None) -> tuple[Equality, ...]:
    found = (_equality(left, right, part) for part in (() if condition is None else conjuncts(condition)))
    return tuple(equality for equality in found if equality is not None)


def _equality(left: Operator, right: Operator, condition: Expr) -> Equality | None:
    sides = equality_sides(condition)
    if sides is None or not sides[0].columns or not sides[1].columns:
        return None
    for one, other in (sides, sides[::-1]):
        if set(one.columns) <= set(left.names) and set(other.columns) <= set(right.names):
            return Equality(one, other)
    return None


def _has_aggregate(operator: Operator) -> bool:
    return any(isinstance(node, Aggregate | Window) for node in walk(operator))
