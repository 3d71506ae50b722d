"""A filter of the first rows of each group tells the window below it, so that no others are computed.

    σ_{n ≤ 3}(ω R)  =  σ_{n ≤ 3}(ω₃ R)           n = row_number() or rank(), ω₃: rows beyond the third may be left out

And calls that go on from the row before get the columns for that: running calls over rows have these numbered, as of
rows that tie the last must be known, and a running mean has its sum beside it. Windows of other orders, or
with calls that look at later rows, stay as they are (`continued_windows.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from pgtrickle.model import BIGINT, Column, Expr, PgType
from pgtrickle.query.continued_windows import (
    goes_on,
    is_placed,
    lacks_columns,
    needs_place,
    number,
    reach,
    shared_order,
    total,
)
from pgtrickle.query.expression import conjuncts, from_node, node_of, reference
from pgtrickle.query.operators import Filter, FirstPlaces, GoesOn, Operator, Project, Ties, Window, WindowCall

_NUMERIC = PgType(1700, "numeric")
_MOST = 1_000_000
"""Of places that are looked for by themselves."""


def first_places(tree: Operator) -> Operator:
    return _tell(tree, ())


def _tell(operator: Operator, conditions: Sequence[Expr]) -> Operator:
    """`conditions` are those of the filters right above."""
    match operator:
        case Filter():
            return operator.with_inputs([_tell(operator.input, (*conditions, *conjuncts(operator.condition)))])
        case Window() if shared_order(operator):
            below = operator.with_inputs([_tell(operator.input, ())])
            first = _first(below, conditions)
            return _completed(below) if first is None else replace(below, first=first)
    return operator.with_inputs([_tell(below, ()) for below in operator.inputs])


def _first(window: Window, conditions: Sequence[Expr]) -> FirstPlaces | None:
    """The least number of places that a condition leaves, if no call looks at rows beyond its own."""
    if reach(window).ahead:
        return None
    places = {call.output.name for call in window.calls if call.goes_on in (GoesOn.PLACE, GoesOn.RANK)}
    bounds = [bound for condition in conditions if (bound := _bound(condition)) is not None]
    found = [(last, place) for place, last in bounds if place in places and 1 <= last <= _MOST]
    return FirstPlaces(min(found)[1], min(found)[0]) if found else None


def _bound(condition: Expr) -> tuple[str, int] | None:
    """The column that a condition bounds from above by a whole number, and the last value that it may have."""
    node = node_of(condition)
    match node:
        case exp.LTE() | exp.LT() | exp.EQ():
            column, number = node.left, node.right
        case exp.GTE() | exp.GT():
            column, number = node.right, node.left
        case _:
            return None
    if not isinstance(column, exp.Column) or not isinstance(number, exp.Literal) or not number.is_int:
        return None
    strict = isinstance(node, exp.LT | exp.GT)
    return column.name, int(number.name) - (1 if strict else 0)


def _completed(window: Window) -> Operator:
    """With the columns that calls need to go on from the row before: the sum and the number of what a mean is of, and
    the place of each row."""
    if not goes_on(window) or not lacks_columns(window):
        return window
    calls = list(window.calls)
    for mean in window.calls:
        if mean.goes_on is GoesOn.MEAN:
            calls += [_part_of(mean, "sum", total(mean), _NUMERIC), _part_of(mean, "count", number(mean), BIGINT)]
    if needs_place(window) and not is_placed(window):
        output = Column(f"pgt_place_{calls[0].output.name}", BIGINT)
        like = calls[0]
        calls.append(WindowCall(Expr("row_number()"), like.order, "", Ties.ORDERED, output, like.sorts, GoesOn.PLACE))
    columns = (*window.input.columns, *(call.output for call in calls))
    made = Window(columns, window.input, window.keys, tuple(calls))
    return Project(window.columns, made, tuple(map(reference, window.columns)))


def _part_of(mean: WindowCall, function: str, name: str, type_: PgType) -> WindowCall:
    """The sum, or the number, of the values that a mean is of."""
    node = node_of(mean.call)
    call = node.this if isinstance(node, exp.Filter) else node
    (value,) = call.expressions
    call.set("this", function)
    if function == "sum":  # of integers too, as avg has it
        call.set("expressions", [exp.Cast(this=exp.Paren(this=value), to=exp.DataType.build("numeric"))])
    return replace(mean, call=from_node(node), output=Column(name, type_), goes_on=GoesOn.ADDED)
