"""Scalar SQL expressions over Python values, for the interpreter: three-valued logic, PostgreSQL's integer division
and PostgreSQL's scale of numeric division. Small on purpose: what it does not know it refuses.

Values: int (any integer type), Decimal (numeric), str, bool, None (NULL).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache, singledispatch
from typing import Any

import sqlglot
from sqlglot import exp

Value = Any
Row = Mapping[str, Value]

EXACT = Context(prec=1000, rounding=ROUND_HALF_UP)


TIME: dict[str, Value] = {}
"""The settings that the clock is read from, while something is evaluated."""


class NotInterpretedError(NotImplementedError):
    """The interpreter has no meaning for this piece of SQL."""


@lru_cache(maxsize=4096)
def parse(sql: str) -> exp.Expr:
    return sqlglot.parse_one(sql, dialect="postgres")


def evaluate(sql: str, row: Row) -> Value:
    """The value of an expression's text for one row, given as column name → value."""
    return value_of(parse(sql), row)


def convert(value: Value, type_name: str) -> Value:
    """The value as a cast to the named PostgreSQL type gives it."""
    if value is None:
        return None
    base, _, modifier = type_name.lower().partition("(")
    base = base.strip()
    if base in {"int", "integer", "smallint", "bigint", "int2", "int4", "int8"}:
        return int(Decimal(value).to_integral_value(rounding=ROUND_HALF_UP))
    if base == "double precision":
        return float(value)
    if base in {"numeric", "decimal"}:
        number = Decimal(value)
        scale = re.search(r",\s*(\d+)", modifier)
        if modifier:
            number = number.quantize(Decimal(1).scaleb(-int(scale[1]) if scale else 0), context=EXACT)
        return number
    if base == "double precision":  # of which tests have exact ones
        return Decimal(value)
    if base in {"text", "varchar", "character varying"}:
        return _text(value)
    if base in {"bool", "boolean"}:
        return value if isinstance(value, bool) else {"t": True, "true": True, "f": False, "false": False}[value]
    if base in {"date", "interval", "timestamptz", "timestamp with time zone"}:
        return _of_time(value, base)
    raise NotInterpretedError(f"cast to {type_name}")


def _of_time(value: Value, base: str) -> Value:
    """Times are UTC's, and intervals have days of 24 hours."""
    if base == "interval":
        return value if isinstance(value, timedelta) else _interval(value)
    if base == "date":
        return value.date() if isinstance(value, datetime) else date.fromisoformat(str(value))
    if isinstance(value, datetime):
        return value
    given = datetime.fromisoformat(str(value))
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def _interval(text: str) -> timedelta:
    """As it is written, or as PostgreSQL prints it: `1 day 02:30:00`."""
    units = {"day": 86400, "hour": 3600, "min": 60, "sec": 1}
    named = sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+) (day|hour|min|sec)", text))
    clock = re.search(r"(\d+):(\d+):(\d+)$", text)
    hours, minutes, seconds = map(int, clock.groups()) if clock else (0, 0, 0)
    return timedelta(seconds=named + hours * 3600 + minutes * 60 + seconds)


def divide(dividend: Decimal, divisor: Decimal) -> Decimal:
    """Numeric division with the scale PostgreSQL gives the quotient: 16 significant digits or the inputs' scale."""
    weight1, digit1 = _leading(dividend)
    weight2, digit2 = _leading(divisor)
    weight = weight1 - weight2 - (1 if digit1 <= digit2 else 0)
    scale = max(16 - 4 * weight, _scale(dividend), _scale(divisor), 0)
    return EXACT.divide(dividend, divisor).quantize(Decimal(1).scaleb(-min(scale, 1000)), context=EXACT)


def _leading(number: Decimal) -> tuple[int, int]:
    """Weight and value of the first base-10000 digit, as PostgreSQL stores a numeric."""
    if number == 0:
        return 0, 0
    weight = number.copy_abs().adjusted() // 4
    return weight, int(number.copy_abs().scaleb(-4 * weight, context=EXACT))


def _scale(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return max(-exponent, 0)


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _number(value: int | Decimal) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(value)


# --- one function a kind of node ------------------------------------------------------------------------------


def value_of(node: exp.Expr, row: Row) -> Value:
    """The value of a parsed expression for one row. sqlglot keeps the NOT of IS NOT, NOT IN, !~~ inside the node."""
    value = _value(node, row)
    return not value if node.args.get("negate") and value is not None else value


@singledispatch
def _value(node: object, row: Row) -> Value:
    raise NotInterpretedError(f"{type(node).__name__}: {node}")


@_value.register
def _(node: exp.Literal, row: Row) -> Value:
    if node.is_string:
        return node.this
    return Decimal(node.this) if "." in node.this or "e" in node.this.lower() else int(node.this)


@_value.register
def _(node: exp.Null, row: Row) -> Value:
    return None


@_value.register
def _(node: exp.Boolean, row: Row) -> Value:
    return bool(node.this)


@_value.register
def _(node: exp.Column, row: Row) -> Value:
    return row[f"{node.table}.{node.name}" if node.table else node.name]


@_value.register
def _(node: exp.Paren, row: Row) -> Value:
    return value_of(node.this, row)


@_value.register
def _(node: exp.Collate, row: Row) -> Value:
    return value_of(node.this, row)  # values are compared as by "C" anyway


@_value.register
def _(node: exp.Cast, row: Row) -> Value:
    return convert(value_of(node.this, row), node.to.sql(dialect="postgres"))


@_value.register
def _(node: exp.Anonymous, row: Row) -> Value:
    if node.name == "current_setting":
        return TIME[value_of(node.expressions[0], row)]
    if node.name.upper() != "ROW":
        raise NotInterpretedError(f"{type(node).__name__}: {node}")
    return str([value_of(item, row) for item in node.expressions])  # only ever compared, as text


@_value.register
def _(node: exp.Neg, row: Row) -> Value:
    value = value_of(node.this, row)
    return EXACT.minus(value) if isinstance(value, Decimal) else _strict(operator.neg, value)


@_value.register
def _(node: exp.Not, row: Row) -> Value:
    value = value_of(node.this, row)
    return None if value is None else not value


@_value.register
def _(node: exp.And, row: Row) -> Value:
    return _all(value_of(side, row) for side in (node.left, node.right))


@_value.register
def _(node: exp.Or, row: Row) -> Value:
    return _any(value_of(side, row) for side in (node.left, node.right))


def _any(values: Iterable[Value]) -> bool | None:
    seen = list(values)
    return True if True in seen else None if None in seen else False


def _all(values: Iterable[Value]) -> bool | None:
    seen = list(values)
    return False if False in seen else None if None in seen else True


COMPARISONS: dict[type[exp.Expr], Callable[[Any, Any], bool]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}


@_value.register(exp.EQ)
@_value.register(exp.NEQ)
@_value.register(exp.LT)
@_value.register(exp.LTE)
@_value.register(exp.GT)
@_value.register(exp.GTE)
def _(node: exp.Binary, row: Row) -> Value:
    compare = COMPARISONS[type(node)]
    if isinstance(node.left, exp.Tuple) and isinstance(node.right, exp.Tuple):
        sides = ([value_of(item, row) for item in side.expressions] for side in (node.left, node.right))
        return _of_rows(type(node), list(zip(*sides, strict=True)))
    left = value_of(node.left, row)
    if isinstance(node.right, exp.Any):
        return _any(_strict(compare, left, item) for item in _items(node.right.this, row))
    if isinstance(node.right, exp.All):
        return _all(_strict(compare, left, item) for item in _items(node.right.this, row))
    if isinstance(node.right, exp.Anonymous) and node.right.name.upper() == "ALL":
        return _all(_strict(compare, left, item) for item in _items(node.right.expressions[0], row))
    return _strict(compare, left, value_of(node.right, row))


def _of_rows(kind: type[exp.Binary], pairs: list[tuple[Value, Value]]) -> bool | None:
    """Rows are equal if all columns are; which is less is said by the first column in which they differ."""
    if kind in (exp.EQ, exp.NEQ):
        found = [_strict(COMPARISONS[kind], *pair) for pair in pairs]
        return _all(found) if kind is exp.EQ else _any(found)
    deciding = next((pair for pair in pairs if None in pair or pair[0] != pair[1]), pairs[-1])
    return None if None in deciding else COMPARISONS[kind](*deciding)


def _items(array: exp.Expr, row: Row) -> Iterable[Value]:
    if isinstance(array, exp.Query | exp.Values):
        return [values[0] for values in rows_of(array, row)]
    if isinstance(array, exp.Paren | exp.Cast):
        return _items(array.this, row)
    if isinstance(array, exp.Column):
        return value_of(array, row) or ()
    if not isinstance(array, exp.Array):
        raise NotInterpretedError(f"an array that is not written out: {array}")
    return [value_of(item, row) for item in array.expressions]


def _strict(function: Callable[..., Value], *arguments: Value) -> Value:
    return None if any(argument is None for argument in arguments) else function(*arguments)


@_value.register
def _(node: exp.Array, row: Row) -> Value:
    """Of two arrays, NULLs in the same place are equal."""
    return tuple(value_of(item, row) for item in node.expressions)


@_value.register
def _(node: exp.In, row: Row) -> Value:
    value, query = value_of(node.this, row), node.args.get("query")
    queries = [item for item in (query, *node.expressions) if isinstance(item, exp.Query | exp.Values)]
    items = [item for query in queries for item in _items(query, row)] or (
        [] if queries else [value_of(item, row) for item in node.expressions]
    )
    return _any(_strict(operator.eq, value, item) for item in items)


@_value.register
def _(node: exp.Between, row: Row) -> Value:
    value = value_of(node.this, row)
    low, high = value_of(node.args["low"], row), value_of(node.args["high"], row)
    return _all([_strict(operator.ge, value, low), _strict(operator.le, value, high)])


@_value.register
def _(node: exp.Is, row: Row) -> Value:
    left, right = value_of(node.this, row), value_of(node.expression, row)
    return left is right if right is None or isinstance(right, bool) else left == right


@_value.register
def _(node: exp.NullSafeEQ, row: Row) -> Value:
    return _identical(value_of(node.left, row), value_of(node.right, row))


@_value.register
def _(node: exp.NullSafeNEQ, row: Row) -> Value:
    return not _identical(value_of(node.left, row), value_of(node.right, row))


def _identical(left: Value, right: Value) -> bool:
    return (left is None and right is None) or (left is not None and right is not None and left == right)


@_value.register
def _(node: exp.Coalesce, row: Row) -> Value:
    values = (value_of(item, row) for item in (node.this, *node.expressions))
    return next((value for value in values if value is not None), None)


@_value.register
def _(node: exp.Nullif, row: Row) -> Value:
    left, right = value_of(node.this, row), value_of(node.expression, row)
    return None if _strict(operator.eq, left, right) is True else left


@_value.register
def _(node: exp.Case, row: Row) -> Value:
    for branch in node.args["ifs"]:
        condition = value_of(branch.this, row)
        if node.this is not None:
            condition = _strict(operator.eq, value_of(node.this, row), condition)
        if condition is True:
            return value_of(branch.args["true"], row)
    default = node.args.get("default")
    return None if default is None else value_of(default, row)


ARITHMETIC: dict[type[exp.Expr], tuple[Callable[[int, int], int], Callable[[Decimal, Decimal], Decimal]]] = {
    exp.Add: (operator.add, EXACT.add),
    exp.Sub: (operator.sub, EXACT.subtract),
    exp.Mul: (operator.mul, EXACT.multiply),
    exp.Div: (lambda a, b: _truncated(a, b), divide),
    exp.Mod: (lambda a, b: a - b * _truncated(a, b), EXACT.remainder),
}


def _truncated(dividend: int, divisor: int) -> int:
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


@_value.register(exp.Add)
@_value.register(exp.Sub)
@_value.register(exp.Mul)
@_value.register(exp.Div)
@_value.register(exp.Mod)
def _(node: exp.Binary, row: Row) -> Value:
    on_integers, on_numerics = ARITHMETIC[type(node)]
    left, right = value_of(node.left, row), value_of(node.right, row)
    if left is None or right is None:
        return None
    if isinstance(left, date | timedelta) or isinstance(right, date | timedelta):
        return _timely(type(node), left, right)
    if isinstance(left, int) and isinstance(right, int):
        return on_integers(left, right)
    return on_numerics(_number(left), _number(right))


def _timely(kind: type[exp.Expr], left: Value, right: Value) -> Value:
    """Sums and differences of times; a date may be given days."""
    if isinstance(left, date) and not isinstance(left, datetime) and isinstance(right, int):
        right = timedelta(days=right)
    found = left + right if kind is exp.Add else left - right
    return found.days if type(left) is type(right) is date else found


@_value.register
def _(node: exp.DPipe, row: Row) -> Value:
    left, right = value_of(node.left, row), value_of(node.right, row)
    if isinstance(left, tuple):
        return (*left, right)
    return _strict(lambda a, b: _text(a) + _text(b), left, right)


@_value.register
def _(node: exp.Like, row: Row) -> Value:
    return _strict(_like, value_of(node.this, row), value_of(node.expression, row))


@_value.register
def _(node: exp.Operator, row: Row) -> Value:
    if node.args["operator"] != "^@":
        raise NotInterpretedError(str(node))
    return _strict(str.startswith, value_of(node.this, row), value_of(node.expression, row))


def _like(text: str, pattern: str) -> bool:
    parts = {"%": ".*", "_": "."}
    return re.fullmatch("".join(parts.get(c, re.escape(c)) for c in pattern), text, re.DOTALL) is not None


@singledispatch
def rows_of(query: object, row: Row) -> list[tuple[Value, ...]]:
    """The rows of a query that reads no table (`subselects.py`)."""
    raise NotInterpretedError(f"{type(query).__name__}: {query}")


@_value.register
def _(node: exp.Subquery, row: Row) -> Value:
    found = rows_of(node, row)
    if len(found) > 1:
        raise ValueError("more than one row returned by a subquery used as an expression")
    return found[0][0] if found else None


@_value.register
def _(node: exp.Exists, row: Row) -> Value:
    return bool(rows_of(node.this, row))


FUNCTIONS: dict[type[exp.Expr], Callable[[Any], Value]] = {
    exp.Upper: str.upper,
    exp.Lower: str.lower,
    exp.Length: len,
    exp.Abs: lambda value: EXACT.abs(value) if isinstance(value, Decimal) else abs(value),
}


@_value.register(exp.Upper)
@_value.register(exp.Lower)
@_value.register(exp.Length)
@_value.register(exp.Abs)
def _(node: exp.Func, row: Row) -> Value:
    return _strict(FUNCTIONS[type(node)], value_of(node.this, row))
