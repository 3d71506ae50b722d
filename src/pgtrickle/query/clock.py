"""What expressions make of the clock: which values of it they read, and which rows it can matter to. Pure.

The time is a constant of a refresh, and another one in the next (`syntax/clock.py`). An operator whose expressions read
it is one function of its rows before the window and another after it; `delta/row_wise.py` has the rule. Of its rows
those count for which a comparison with the clock turns:

    ts > now() - '1 day'    turns for    ts > a AND ts <= b  OR  ts > b AND ts <= a        a, b: the value then and now

That needs no clock that goes forward, and no value that rises with it: either range may be the empty one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlglot import exp

from pgtrickle.answers import BEFORE, CLOCK, NOW
from pgtrickle.model import Expr
from pgtrickle.query.expression import from_node, node_of
from pgtrickle.query.operators import Expand, Filter, Operator, Project, RowWise, Stateful, walk
from pgtrickle.query.syntax.clock import setting_of

_OPPOSITE: dict[type[exp.Expr], type[exp.Binary]] = {
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
}
_EQUALITY = (exp.EQ, exp.NEQ)
_OF_MANY = (exp.Any, exp.All, exp.Tuple, exp.Slice)


@dataclass(frozen=True, slots=True)
class ClockValue:
    """What is made of the clock alone, as of this refresh. `number` stands for it among the tables that changed; two
    that share one by chance count as changed together."""

    now: Expr

    @property
    def number(self) -> int:
        return -1 - zlib.crc32(self.now.sql.encode())

    @property
    def before(self) -> Expr:
        return as_before(self.now)


@dataclass(frozen=True, slots=True)
class Turn:
    """Values of a row between which a comparison with the clock turns: a condition that is true of all such rows, if
    the value of the clock is not NULL."""

    condition: Expr
    value: ClockValue


def expressions_of(operator: Operator) -> tuple[Expr, ...]:
    """The expressions of a row-wise operator."""
    match operator:
        case Filter(condition=condition):
            return (condition,)
        case Project(expressions=expressions):
            return expressions
        case Expand(call=call):
            return (call,)
    return ()


def reads_clock(expression: Expr) -> bool:
    return bool(_values(expression))


def values_of(operator: Operator) -> tuple[ClockValue, ...]:
    """What an operator reads of the clock itself."""
    call = isinstance(operator, Expand)
    found = (value for expression in expressions_of(operator) for value in _values(expression, call))
    return tuple(dict.fromkeys(found))


def values_in(tree: Operator) -> tuple[ClockValue, ...]:
    """What any operator of a tree reads of the clock."""
    return tuple(dict.fromkeys(value for node in walk(tree) for value in values_of(node)))


def before_window(operator: RowWise) -> RowWise:
    """The operator as it was before the window."""
    match operator:
        case Filter():
            return replace(operator, condition=as_before(operator.condition))
        case Project():
            return replace(operator, expressions=tuple(map(as_before, operator.expressions)))
        case Expand():
            return replace(operator, call=as_before(operator.call))
    return operator


def over_old_state(operator: Operator) -> Operator:
    """What is made of state, as it was when that state was: before the window."""
    if isinstance(operator, Stateful):
        return operator
    below = operator.with_inputs([over_old_state(each) for each in operator.inputs])
    return before_window(below) if isinstance(below, RowWise) and values_of(below) else below


def turns(operator: Operator) -> tuple[Turn, ...] | None:
    """The rows that the clock can matter to are those for which one of these holds; None if it may be any row."""
    found: list[Turn] = []
    for expression in expressions_of(operator):
        if reads_clock(expression):
            each = None if isinstance(operator, Expand) else _turns(node_of(expression))
            if each is None:
                return None
            found += each
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def as_before(expression: Expr) -> Expr:
    """The expression as it was before the window."""
    return from_node(node_of(expression).transform(_before)) if reads_clock(expression) else expression


def _before(node: exp.Expr) -> exp.Expr:
    if setting_of(node) == NOW:
        return exp.Anonymous(this=node.this, expressions=[exp.Literal.string(BEFORE)])
    return node


@lru_cache(maxsize=1024)
def _values(expression: Expr, call: bool = False) -> tuple[ClockValue, ...]:
    """What an expression reads of the clock, or the arguments of a `call` that makes rows."""
    if NOW not in expression.sql:  # most do not, and need not be parsed
        return ()
    node = node_of(expression)
    parts = [node] if not call else list(node.iter_expressions())
    return tuple(dict.fromkeys(ClockValue(from_node(part)) for each in parts for part in _parts(each)))


def _parts(node: exp.Expr) -> Iterator[exp.Expr]:
    """The largest parts of an expression that are made of the clock and of constants; within a query, the time alone:
    what is around it there may be an aggregate."""
    if isinstance(node, exp.Query | exp.Values):
        yield from filter(is_time, node.walk())
    elif _of_clock(node):
        yield node
    else:
        for part in node.iter_expressions():
            yield from _parts(part)


def is_time(node: exp.Expr) -> bool:
    """Whether a node is the time of the refresh itself."""
    return isinstance(node, exp.Cast) and setting_of(node.this) == NOW


def _of_clock(node: exp.Expr) -> bool:
    """A cast stands around each call, so that a part is never the call in it."""
    made_of_rows = (exp.Column, exp.Query, exp.Values, exp.Filter)
    return not _of_many(node) and _has_time(node) and not any(isinstance(part, made_of_rows) for part in node.walk())


def _of_many(node: exp.Expr) -> bool:
    """Whether a node is several values at once, of which no column can be made."""
    return isinstance(node, _OF_MANY) or (isinstance(node, exp.Anonymous) and node.name.upper() == "ROW")


def _has_time(node: exp.Expr) -> bool:
    return any(setting_of(part) in CLOCK for part in node.walk())


def _turns(node: exp.Expr) -> list[Turn] | None:
    """Of one expression: whatever it is made of comparisons with the clock, it turns only if one of these does."""
    if not _has_time(node):
        return []
    if isinstance(node, (*_OPPOSITE, *_EQUALITY)):
        return _compared(node)
    if isinstance(node, exp.Query | exp.Values) or setting_of(node) is not None:
        return None
    found: list[Turn] = []
    for part in node.iter_expressions():
        each = _turns(part)
        if each is None:
            return None
        found += each
    return found


def _compared(node: exp.Expr) -> list[Turn] | None:
    """Of a comparison, one side of which is made of the clock and the other is not."""
    sides = [node.this, node.expression]
    place = 1 if _of_clock(sides[1]) else 0
    row, clock = sides[1 - place], sides[place]
    if not _of_clock(clock) or _has_time(row) or any(map(_of_many, sides)):
        return None
    value = ClockValue(from_node(clock))
    then = clock.transform(_before)

    def compared(kind: type[exp.Expr], at: exp.Expr) -> Expr:
        left, right = (row, at) if place else (at, row)
        return from_node(kind(this=left.copy(), expression=right.copy()))

    if isinstance(node, _EQUALITY):
        return [Turn(compared(exp.EQ, at), value) for at in (clock, then)]
    kept, lost = type(node), _OPPOSITE[type(node)]
    ranges = ((compared(kept, one), compared(lost, other)) for one, other in ((clock, then), (then, clock)))
    return [Turn(Expr(f"({one.sql}) AND ({other.sql})", one.columns), value) for one, other in ranges]
