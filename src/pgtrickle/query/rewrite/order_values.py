"""An aggregate whose result depends on the order of its rows gets one, where its groups are computed in several places.

    array_agg(x)           →   array_agg(x ORDER BY x)
    sum(f)                 →   sum(f ORDER BY f)             f a float: the last digits depend on the order
    string_agg(x, ',' ORDER BY y)   →   string_agg(x, ',' ORDER BY y, x)

Below a join or a union a group may be read off its state in one part of a delta and computed from tables in another:
both must be the same. JSON_ARRAYAGG and JSON_OBJECTAGG are refused there (PT242): the one's ties and the other's rows
cannot be given an order. What is not below any is computed in one place, and keeps PostgreSQL's order.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query import gaps
from pgtrickle.query.expression import from_node, node_of, reference
from pgtrickle.query.looks import look
from pgtrickle.query.operators import Aggregate, AggregateCall, Operator, RowWise, Stateful

_EXACT = frozenset({20, 21, 23, 1700})  # int8, int2, int4, numeric
_OF_EXACT = frozenset(
    {"sum", "avg", "stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"}
)  # whose sums are exact, of exact numbers
_ANY_ORDER = frozenset(
    {
        "count", "min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or", "bit_xor", "regr_count",
        "range_agg", "range_intersect_agg", "first",
    }
)  # fmt: skip

_WITHOUT_ORDER = frozenset({"JSON_ARRAYAGG", "JSON_OBJECTAGG"})


def order_values(tree: Operator) -> Operator:
    return _ordered(tree, once=True)


def _ordered(operator: Operator, *, once: bool) -> Operator:
    """`once`: nothing but groups, first rows and what is row by row is above."""
    below = once and isinstance(operator, RowWise | Stateful)
    operator = operator.with_inputs([_ordered(each, once=below) for each in operator.inputs])
    if once or not isinstance(operator, Aggregate):
        return operator
    columns = {column.name: column for column in operator.input.columns}
    calls = tuple(_in_order(call, [columns[name] for name in call.call.columns]) for call in operator.calls)
    return replace(operator, calls=calls)


def _in_order(call: AggregateCall, read: list[Column]) -> AggregateCall:
    exact = all(column.type.oid in _EXACT for column in read)
    if call.function in _ANY_ORDER or (call.function in _OF_EXACT and exact) or not read:
        return call
    if call.function in _WITHOUT_ORDER:
        raise gaps.UNORDERED.refuse(call.function)
    node = node_of(call.call)
    function = node.this if isinstance(node, exp.Filter) else node
    function = function.expression if isinstance(function, exp.Dot) else function
    if not isinstance(function, exp.Anonymous) or function.find(exp.Distinct):
        return call
    *others, last = function.expressions
    order = last if isinstance(last, exp.Order) else exp.Order(this=last, expressions=[])
    known = [part.this for part in order.expressions]
    wanted = [node_of(_sortable(column)) for column in read]
    more = [exp.Ordered(this=value, nulls_first=False) for value in wanted if value not in known]
    order.set("expressions", [*order.expressions, *more])
    function.set("expressions", [*others, order])
    return replace(call, call=from_node(node))


def _sortable(column: Column) -> Expr:
    """What only identical values share."""
    value = reference(column)
    return value if column.type.has_one_look else Expr(look(value.sql, column.type), value.columns)
