"""An aggregate whose result depends on the order of its rows gets one, where its groups are computed in several places.

    array_agg(x)           →   array_agg(x ORDER BY x)
    sum(f)                 →   sum(f ORDER BY f)             f a float: the last digits depend on the order
    string_agg(x, ',' ORDER BY y)   →   string_agg(x, ',' ORDER BY y, x)
    array_agg(DISTINCT x)           →   over values of which equal ones look the same (`query/equal_values.py`)

Below a join or a union a group may be read off its state in one part of a delta and computed from tables in another:
both must be the same. JSON_OBJECTAGG is refused there (PT242): it can be given no order. What is not below any is
computed in one place, and keeps PostgreSQL's order.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query import gaps
from pgtrickle.query.equal_values import with_equal_values
from pgtrickle.query.expression import node_of, reference
from pgtrickle.query.looks import look
from pgtrickle.query.operators import Aggregate, AggregateCall, Operator, RowWise, Stateful
from pgtrickle.query.value_order import ordered

_EXACT = frozenset({20, 21, 23, 1700})  # int8, int2, int4, numeric
_OF_EXACT = frozenset(
    {"sum", "avg", "stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"}
)  # whose sums are exact, of exact numbers
_ANY_ORDER = frozenset(
    {
        "count", "min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or", "bit_xor", "regr_count", "first",
    }
)  # fmt: skip

_COUNTING = frozenset({"count", "regr_count", "rank", "dense_rank", "percent_rank", "cume_dist"})
"""To which values that are equal are the same, DISTINCT or not."""
_WITHOUT_ORDER = frozenset({"JSON_OBJECTAGG"})


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
    if not read or (call.plain and call.function in _ANY_ORDER) or call.function in _COUNTING:
        return call
    node = node_of(call.call)
    if node.find(exp.Distinct, exp.WithinGroup):
        has_looks = any(not column.type.has_one_look for column in read)
        return replace(call, call=with_equal_values(call.call, read)) if has_looks else call
    if call.function in _ANY_ORDER or (call.function in _OF_EXACT and exact):
        return call
    text = ordered(call.call, [_sortable(column) for column in read])
    if text is None and call.function in _WITHOUT_ORDER:
        raise gaps.UNORDERED.refuse(call.function)
    return call if text is None else replace(call, call=text)


def _sortable(column: Column) -> Expr:
    """What only identical values share."""
    value = reference(column)
    return value if column.type.has_one_look else Expr(look(value.sql, column.type), value.columns)
