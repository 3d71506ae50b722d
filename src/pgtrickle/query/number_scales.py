"""Columns whose numerics all have one number of digits after the point, known from types. Pure; asked by
`postgres/call_states.py` of what is summed.

    numeric(p, s)     s                x + y, x − y     the larger of theirs
    an integer        0                x * y            their sum
    a constant        its own          −x               that of x
    CASE, coalesce    that of all of their values, if it is one

PostgreSQL's own rules, which hold for each value but NULL and NaN. No value with a known scale is infinite: none of
these types holds an infinity, and arithmetic makes none of finite values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlglot import exp

from pgtrickle.model import Column, PgType
from pgtrickle.query.expression import parsed
from pgtrickle.query.operators import Aggregate, Filter, InnerJoin, LeftJoin, Match, Operator, Project

_NUMERIC = 1700
_INTEGERS = frozenset({20, 21, 23})
_KEEPING = frozenset({"sum", "min", "max"})
_MOST = 1000
"""A product of more digits would be cut off somewhere."""


def known_scale(operator: Operator, column: Column) -> int | None:
    """The scale of all values of a numeric column of the operator's output, if its types tell."""
    if column.type.oid != _NUMERIC:
        return None
    return _declared(column.type) if "(" in column.type.name else _below(operator, column)


def _below(operator: Operator, column: Column) -> int | None:
    """The same of a column without a declared scale, as far as it can be followed down."""
    match operator:
        case Filter(input=below):
            return known_scale(below, column)
        case Project(input=below):
            made = operator.expressions[operator.names.index(column.name)]
            return _scale(parsed(made.sql), {each.name: each for each in below.columns}, below)
        case InnerJoin(left=left, right=right) | LeftJoin(left=left, right=right):
            return known_scale(left if column.name in left.names else right, column)
        case Match(left=left):
            return known_scale(left, column)
        case Aggregate():
            return _of_group(operator, column)
    return None


def _of_group(aggregate: Aggregate, column: Column) -> int | None:
    for call in aggregate.calls:
        if call.output.name == column.name:
            if not call.plain or call.function not in _KEEPING or call.argument is None:
                return None
            if call.argument.type.oid in _INTEGERS:
                return 0
            return known_scale(aggregate.input, call.argument)
    return known_scale(aggregate.input, column)


def _scale(node: exp.Expr, columns: dict[str, Column], below: Operator) -> int | None:
    """Of a numeric expression over these columns. What may be an operator on something else than two numerics, or a
    function, is not followed."""

    def of(part: exp.Expr) -> int | None:
        return _scale(part, columns, below)

    match node:
        case exp.Paren():
            return of(node.this)
        case exp.Column():
            found = columns.get(node.name)
            return None if found is None or node.table else known_scale(below, found)
        case exp.Literal():
            digits = re.fullmatch(r"\d+\.(\d+)", str(node.this))
            return None if node.is_string or digits is None else len(digits[1])
        case exp.Neg():
            return of(node.this)
        case exp.Mul() | exp.Add() | exp.Sub():
            return _of_both(node, of(node.left), of(node.right))
        case exp.Case():
            default = node.args.get("default")
            values = [branch.args["true"] for branch in node.args["ifs"]]
            return _one(map(of, _present([*values, *([] if default is None else [default])])))
        case exp.Coalesce():
            return _one(map(of, _present([node.this, *node.expressions])))
        case exp.Cast():
            return _of_cast(node, columns, below)
    return None


def _of_both(node: exp.Expr, left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return None
    found = left + right if isinstance(node, exp.Mul) else max(left, right)
    return found if found <= _MOST else None


def _of_cast(node: exp.Cast, columns: dict[str, Column], below: Operator) -> int | None:
    """Of a cast to numeric: of a constant without a point or an integer column, or with a scale of its own."""
    to, value = node.to, node.this.unnest()
    if type(node) is not exp.Cast or to.this is not exp.DType.DECIMAL:
        return None
    if to.expressions:
        given = [str(each.this) for each in to.expressions]
        return _declared(PgType(_NUMERIC, f"numeric({','.join(given if len(given) > 1 else [*given, '0'])})"))
    if isinstance(value, exp.Literal) and not value.is_string and str(value.this).isdigit():
        return 0
    found = columns.get(value.name) if isinstance(value, exp.Column) and not value.table else None
    if found is not None and found.type.oid in _INTEGERS:
        return 0
    return _scale(value, columns, below)


def _declared(type_: PgType) -> int | None:
    declared = re.fullmatch(r"numeric\(\d+,(-?\d+)\)", type_.name)
    return max(int(declared.group(1)), 0) if declared else None


def _present(values: Iterable[exp.Expr]) -> list[exp.Expr]:
    """Those that are not NULL."""
    return [value for value in values if not isinstance(_bare(value), exp.Null)]


def _bare(value: exp.Expr) -> exp.Expr:
    value = value.unnest()
    return _bare(value.this) if isinstance(value, exp.Cast) else value


def _one(scales: Iterable[int | None]) -> int | None:
    found = set(scales)
    return found.pop() if len(found) == 1 else None
