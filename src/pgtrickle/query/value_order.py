"""The text of an aggregate call that takes its values in a given order, after the one that it says itself. Pure; used
by `rewrite/order_values.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query.expression import from_node, node_of
from pgtrickle.query.syntax.special_calls import SpecialCall

_ARRAY = "JSON_ARRAYAGG"
_DIRECTION = re.compile(r"(?: (?:ASC|DESC|USING \S+))?(?: NULLS (?:FIRST|LAST))?")


def ordered(call: Expr, values: Sequence[Expr]) -> Expr | None:
    """The call with these values at the end of its order; None if it can have none."""
    node = node_of(call)
    function = node.this if isinstance(node, exp.Filter) else node
    function = function.expression if isinstance(function, exp.Dot) else function
    nodes = [node_of(value) for value in values]
    match function:
        case exp.Anonymous():
            _append(function, nodes)
        case SpecialCall(name=name) if name == _ARRAY:
            _append_special(function, nodes)
        case _:
            return None
    return from_node(node)


def _append(function: exp.Anonymous, values: Sequence[exp.Expr]) -> None:
    *others, last = function.expressions
    order = last if isinstance(last, exp.Order) else exp.Order(this=last, expressions=[])
    known = [part.this for part in order.expressions]
    more = [exp.Ordered(this=value, nulls_first=False) for value in values if value not in known]
    order.set("expressions", [*order.expressions, *more])
    function.set("expressions", [*others, order])


def _append_special(function: SpecialCall, values: Sequence[exp.Expr]) -> None:
    """What follows the last operand is its direction, if it is one of the order, and clauses of the call."""
    *before, last = function.args["texts"]
    direction = ""
    if function.is_ordered:
        found = _DIRECTION.match(last)
        direction = found[0] if found else ""
        last = last.removeprefix(direction)
    first = f"{direction}, " if function.is_ordered else " ORDER BY "
    function.set("texts", (*before, first, *(", " for _ in values[1:]), last))
    function.set("expressions", [*function.expressions, *values])
    function.set("ordered", True)
