"""Expressions as Spark's own SQL, for rows that Spark has joined. Pure; called by `native.py`.

The list of expressions is closed (`_RULES`): of each of them Spark's answer is PostgreSQL's, or there is none. Where
Spark stops (an overflow, a division by zero, a value that its types do not hold: NaN, infinity, a year of five digits),
PostgreSQL is asked instead (`refresh/evaluate/on_spark.py`), and says what the answer, or the error, is.

    integers          + - * / % and comparisons; results are held to the range of PostgreSQL's type
    numeric(p,s)      + - * and comparisons, as decimals: where the digits are known, and 38 of them are enough
    booleans          AND OR NOT, IS TRUE and the like, = and <>
    text, char(n)     = and <>, where equal means alike, but for blanks at the end of char(n)
    date, timestamp   comparisons, of their text: years of four digits sort as text; EXTRACT of year, month, day
    uuid, timestamptz, enums and others of which equal values look alike: = and <>
    any of these      IS NULL, CASE WHEN, coalesce, = ANY of a list, <> ALL

Other columns pass as they travel: as lossless text. `tests/spark/test_native.py` compares each entry with
PostgreSQL, over edge values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from pgtrickle.model import Column, Expr, PgType
from pgtrickle.postgres.wire import quote_spark
from pgtrickle.query.expression import node_of

MOST_DIGITS: Final = 38
_BITS: Final = {21: 16, 23: 32, 20: 64}
_DIGITS: Final = {16: 5, 32: 10, 64: 19}
_SPARK_INTEGER: Final = {16: "SMALLINT", 32: "INT"}
_TEXTS: Final = frozenset({25, 1043})
_NUMERIC, _BPCHAR = 1700, 1042
_LONGEST: Final = 20_000
"""Of an expression's text: projections over projections may repeat theirs."""


class NotListedError(Exception):
    """The list has no such expression."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What Spark takes a value for; with the bits of an integer, or a decimal's digits, all and behind the point."""

    name: str
    size: int = 0
    scale: int = 0


BOOLEAN, TEXT, PADDED, DATE, TIMESTAMP = map(Kind, ("boolean", "text", "bpchar", "date", "timestamp"))
OTHER = Kind("another type")
_TIMES: Final = {1082: DATE, 1114: TIMESTAMP}


@dataclass(frozen=True, slots=True)
class Value:
    """An expression in Spark's SQL, and the form of it that travels."""

    kind: Kind
    sql: str
    wire: str

    @classmethod
    def of(cls, kind: Kind, sql: str) -> Value:
        if len(sql) > _LONGEST:
            raise NotListedError("an expression of this length")
        return cls(kind, sql, f"CAST({sql} AS STRING)" if kind.name == "decimal" else sql)


Values = Mapping[str, Value]
"""Of columns, by name."""


def of_column(column: Column) -> Value:
    """A column of rows that travel."""
    name, type_ = quote_spark(column.name), column.type
    if type_.oid in _BITS:
        return Value(Kind("integer", _BITS[type_.oid]), name, name)
    if type_.oid == 16:
        return Value(BOOLEAN, name, name)
    if type_.oid in _TEXTS and type_.deterministic:
        return Value(TEXT, name, name)
    if type_.oid == _BPCHAR and type_.deterministic:
        return Value(PADDED, f"rtrim({name})", name)
    if type_.oid in _TIMES:
        return Value(_TIMES[type_.oid], name, name)
    digits = re.fullmatch(r"numeric\((\d+),(\d+)\)", type_.name) if type_.oid == _NUMERIC else None
    if digits and int(digits[2]) <= int(digits[1]) <= MOST_DIGITS:
        kind = Kind("decimal", int(digits[1]), int(digits[2]))
        return Value(kind, f"CAST({name} AS {_decimal(kind)})", name)
    if type_.has_one_look:
        return Value(Kind(type_.name, type_.oid), name, name)
    return Value(OTHER, name, name)


def of_expression(expression: Expr, values: Values) -> Value:
    """What an expression over these columns is in Spark; `NotListedError` if the list does not have it."""
    return _value(node_of(expression), values)


def condition(expression: Expr, values: Values) -> str:
    """The same of what must be true."""
    return _of_kind(node_of(expression), values, BOOLEAN).sql


def agrees(value: Value, type_: PgType) -> bool:
    """Whether a value is of the kind that PostgreSQL gives it."""
    if value.kind.name == "decimal":
        return type_.oid == _NUMERIC
    if value.kind == OTHER:
        return True  # only a column is, as it is
    return of_column(Column("c", type_)).kind == value.kind


def comparable(value: Value) -> str:
    """SQL that sorts as the values do. What may not stops: the text of a time beyond four digits of a year."""
    if value.kind == DATE:
        return _unless(f"length({value.sql}) <> 10", value.sql)
    if value.kind == TIMESTAMP:
        text = value.sql
        return _unless(f"length({text}) < 19 OR substring({text}, 5, 1) <> '-' OR endswith({text}, 'BC')", text)
    if value.kind.name in {"integer", "decimal"}:
        return value.sql
    raise NotListedError(f"the order of {value.kind.name}")


def _unless(far: str, value: str) -> str:
    return f"CASE WHEN {far} THEN raise_error('a time that does not sort as text') ELSE {value} END"


def _decimal(kind: Kind) -> str:
    return f"DECIMAL({kind.size},{kind.scale})"


def _value(node: exp.Expr, values: Values) -> Value:
    rule = _RULES.get(type(node))
    if rule is None:
        raise NotListedError(_told(node))
    return rule(node, values)


def _told(node: exp.Expr) -> str:
    """What is not listed, for people."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else type(node).__name__.lower()


def _of_kind(node: exp.Expr, values: Values, kind: Kind) -> Value:
    found = _value(node, values)
    if found.kind != kind:
        raise NotListedError(f"{_told(node)} of {found.kind.name}")
    return found


def _column(node: exp.Expr, values: Values) -> Value:
    if node.args.get("table") or node.name not in values:
        raise NotListedError("a column of a subquery")
    return values[node.name]


def _literal(node: exp.Expr, _: Values) -> Value:
    text = str(node.this)
    if node.args["is_string"]:
        raise NotListedError("a constant without a type")
    return _number(text)


def _number(text: str) -> Value:
    """A number as PostgreSQL reads it: an integer if it has no point and is not too large."""
    if re.fullmatch(r"\d+", text):
        for bits in (32, 64):
            if int(text) < 2 ** (bits - 1):
                return Value.of(Kind("integer", bits), f"{int(text)}L")
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise NotListedError("a number of this form")
    return _exact(text)


def _exact(text: str) -> Value:
    """A decimal with the digits that are written."""
    whole, _, behind = text.lstrip("-").partition(".")
    digits = len(whole.lstrip("0")) + len(behind)
    if digits > MOST_DIGITS:
        raise NotListedError("so many digits")
    kind = Kind("decimal", max(digits, 1), len(behind))
    return Value.of(kind, f"CAST('{text}' AS {_decimal(kind)})")


def _boolean(node: exp.Expr, _: Values) -> Value:
    return Value.of(BOOLEAN, "true" if node.this else "false")


def _paren(node: exp.Expr, values: Values) -> Value:
    return _value(node.this, values)


def _cast(node: exp.Expr, values: Values) -> Value:
    to, inner = node.args["to"], node.this.unnest()
    if to.expressions:
        raise NotListedError("a cast to so many digits")
    target = _CAST_TO.get(to.this)
    if target is None:
        raise NotListedError(f"a cast to {to.this.value.lower()}")
    if isinstance(inner, exp.Literal) and inner.args["is_string"]:
        return _constant(target, str(inner.this))
    if isinstance(inner, exp.Null):
        if target.name not in _SPARK_TYPE:
            raise NotListedError(f"NULL as {target.name}")
        return Value.of(target, f"CAST(NULL AS {_SPARK_TYPE[target.name]})")
    if target.name == "decimal" and isinstance(inner, exp.Literal):
        return _exact(str(inner.this))
    return _converted(_value(inner, values), target)


_CAST_TO: Final = {
    exp.DType.SMALLINT: Kind("integer", 16),
    exp.DType.INT: Kind("integer", 32),
    exp.DType.BIGINT: Kind("integer", 64),
    exp.DType.BOOLEAN: BOOLEAN,
    exp.DType.TEXT: TEXT,
    exp.DType.VARCHAR: TEXT,
    exp.DType.BPCHAR: PADDED,
    exp.DType.DATE: DATE,
    exp.DType.TIMESTAMP: TIMESTAMP,
    exp.DType.DECIMAL: Kind("decimal"),
}
_SPARK_TYPE: Final = {
    "integer": "BIGINT", "boolean": "BOOLEAN", "text": "STRING", "date": "STRING", "timestamp": "STRING",
}  # fmt: skip
_CONSTANTS: Final = {
    "integer": re.compile(r"-?\d+"),
    "decimal": re.compile(r"-?\d+(\.\d+)?"),
    "boolean": re.compile(r"true|false"),
    "text": re.compile(r"(?s).*"),
    "bpchar": re.compile(r"(?s).*"),
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "timestamp": re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{0,5}[1-9])?"),
}


def _constant(kind: Kind, text: str) -> Value:
    """'…'::type, in the form in which PostgreSQL writes a value."""
    if not _CONSTANTS[kind.name].fullmatch(text):
        raise NotListedError(f"a constant {kind.name} of this form")
    if kind.name == "decimal":
        return _exact(text)
    if kind.name == "integer":
        if not -(2 ** (kind.size - 1)) < int(text) < 2 ** (kind.size - 1):
            raise NotListedError("the smallest integer")
        return Value.of(kind, f"({int(text)}L)")
    if kind == BOOLEAN:
        return Value.of(kind, text)
    bare = text.rstrip(" ") if kind == PADDED else text
    return Value(kind, *(f"CAST(X'{each.encode().hex()}' AS STRING)" for each in (bare, text)))


def _converted(value: Value, target: Kind) -> Value:
    match value.kind.name, target.name:
        case ("integer", "integer"):
            return _held(target.size, value.sql) if target.size < value.kind.size else Value.of(target, value.sql)
        case ("integer", "decimal"):
            kind = Kind("decimal", _DIGITS[value.kind.size], 0)
            return Value.of(kind, f"CAST({value.sql} AS {_decimal(kind)})")
        case ("decimal", "decimal") | ("text", "text"):
            return value
    raise NotListedError(f"a cast of {value.kind.name} to {target.name}")


def _held(bits: int, sql: str) -> Value:
    """An integer in the range of its type, or Spark stops."""
    held = sql if bits == 64 else f"CAST(CAST({sql} AS {_SPARK_INTEGER[bits]}) AS BIGINT)"
    return Value.of(Kind("integer", bits), held)


_ARITHMETIC: Final[Mapping[type[exp.Expr], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "div",
    exp.Mod: "%",
}


def _arithmetic(node: exp.Expr, values: Values) -> Value:
    left, right = _value(node.this, values), _value(node.expression, values)
    sign = _ARITHMETIC[type(node)]
    sql = f"({left.sql} {sign} {right.sql})"
    names = {left.kind.name, right.kind.name}
    if names == {"integer"}:
        return _held(max(left.kind.size, right.kind.size), sql)
    if names != {"decimal"} or sign in {"div", "%"}:
        raise NotListedError(f"{_told(node)} of {left.kind.name} and {right.kind.name}")
    scale = left.kind.scale + right.kind.scale if sign == "*" else max(left.kind.scale, right.kind.scale)
    digits = 1 + (left.kind.size + right.kind.size if sign == "*" else _digits([left.kind, right.kind]))
    if digits > MOST_DIGITS:
        raise NotListedError("so many digits")
    return Value.of(Kind("decimal", digits, scale), sql)


def _negative(node: exp.Expr, values: Values) -> Value:
    value = _value(node.this, values)
    if value.kind.name == "integer":
        return _held(value.kind.size, f"(- {value.sql})")
    if value.kind.name == "decimal":
        return Value.of(value.kind, f"(- {value.sql})")
    raise NotListedError(f"- of {value.kind.name}")


_COMPARISONS: Final[Mapping[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_SAFE: Final[Mapping[type[exp.Expr], str]] = {exp.NullSafeEQ: "", exp.NullSafeNEQ: "NOT "}


def _comparison(node: exp.Expr, values: Values) -> Value:
    listed = _list(node)
    if listed is not None:
        return _one_of(node, listed, values)
    left, right = _value(node.this, values), _value(node.expression, values)
    sign = _COMPARISONS[type(node)]
    _require_alike([left, right])
    if sign in {"=", "<>"}:
        return Value.of(BOOLEAN, f"({left.sql} {sign} {right.sql})")
    return Value.of(BOOLEAN, f"({comparable(left)} {sign} {comparable(right)})")


def _distinct(node: exp.Expr, values: Values) -> Value:
    left, right = _value(node.this, values), _value(node.expression, values)
    _require_alike([left, right])
    return Value.of(BOOLEAN, f"({_SAFE[type(node)]}({left.sql} <=> {right.sql}))")


def _require_alike(values: Sequence[Value]) -> None:
    """Values that both engines compare alike: integers, decimals whose digits fit together, or all of a kind."""
    kinds = [value.kind for value in values]
    names = {kind.name for kind in kinds}
    if len(names) > 1 or OTHER in kinds:
        raise NotListedError(f"a comparison of {' with '.join(sorted(names))}")
    if names == {"decimal"} and _digits(kinds) > MOST_DIGITS:
        raise NotListedError("so many digits")


def _digits(kinds: Sequence[Kind]) -> int:
    """Those of a decimal that holds values of all these."""
    return max(kind.size - kind.scale for kind in kinds) + max(kind.scale for kind in kinds)


def _list(node: exp.Expr) -> exp.Expr | None:
    """What x is compared with in x = ANY (…) or x <> ALL (…)."""
    right: exp.Expr = node.expression
    found: exp.Expr | None = None
    if type(node) is exp.EQ and isinstance(right, exp.Any):
        found = right.this.unnest()
    if type(node) is exp.NEQ and isinstance(right, exp.Anonymous) and right.name == "ALL":
        found = right.expressions[0].unnest()
    return found


def _one_of(node: exp.Expr, listed: exp.Expr, values: Values) -> Value:
    """x = ANY (ARRAY[…]), x <> ALL (ARRAY[…])"""
    if isinstance(listed, exp.Cast) and listed.args["to"].this is exp.DType.ARRAY:
        to, listed = listed.args["to"].expressions, listed.this.unnest()
        if [each.this for each in to] != [exp.DType.TEXT]:
            raise NotListedError("a list of this type")
    if not isinstance(listed, exp.Array) or not listed.expressions:
        raise NotListedError("any or all")
    sign = "IN" if isinstance(node, exp.EQ) else "NOT IN"
    one, *others = (_value(each, values) for each in (node.this, *listed.expressions))
    _require_alike([one, *others])
    return Value.of(BOOLEAN, f"({one.sql} {sign} ({', '.join(other.sql for other in others)}))")


def _both(node: exp.Expr, values: Values) -> Value:
    left, right = (_of_kind(side, values, BOOLEAN).sql for side in (node.this, node.expression))
    return Value.of(BOOLEAN, f"({left} {'AND' if isinstance(node, exp.And) else 'OR'} {right})")


def _not(node: exp.Expr, values: Values) -> Value:
    return Value.of(BOOLEAN, f"(NOT {_of_kind(node.this, values, BOOLEAN).sql})")


def _is(node: exp.Expr, values: Values) -> Value:
    negated = "NOT " if node.args.get("negate") else ""
    if isinstance(node.expression, exp.Boolean):
        truth = "true" if node.expression.this else "false"
        return Value.of(BOOLEAN, f"({negated}({_of_kind(node.this, values, BOOLEAN).sql} <=> {truth}))")
    value = _value(node.this, values)
    if not isinstance(node.expression, exp.Null) or value.kind == OTHER:  # a row is NULL in its own way
        raise NotListedError(f"a test of {value.kind.name}")
    return Value.of(BOOLEAN, f"({value.wire} IS {negated}NULL)")


def _case(node: exp.Expr, values: Values) -> Value:
    if node.args.get("this") is not None:
        raise NotListedError("case of a value")
    branches = [
        (_of_kind(each.this, values, BOOLEAN).sql, _value(each.args["true"], values)) for each in node.args["ifs"]
    ]
    default = node.args.get("default")
    last = None if default is None or isinstance(default, exp.Null) else _value(default, values)
    kind = _one_kind([value for _, value in branches] + ([] if last is None else [last]))
    whens = " ".join(f"WHEN {when} THEN {_as(value, kind)}" for when, value in branches)
    otherwise = "" if last is None else f" ELSE {_as(last, kind)}"
    return Value.of(kind, f"(CASE {whens}{otherwise} END)")


def _coalesce(node: exp.Expr, values: Values) -> Value:
    found = [_value(each, values) for each in (node.this, *node.expressions)]
    kind = _one_kind(found)
    return Value.of(kind, f"coalesce({', '.join(_as(value, kind) for value in found)})")


def _one_kind(found: list[Value]) -> Kind:
    """Of decimals, one that holds them all; each shows the same digits behind the point."""
    first = found[0].kind
    if first.name == "decimal" and all(
        value.kind.name == "decimal" and value.kind.scale == first.scale for value in found
    ):
        return Kind("decimal", max(value.kind.size for value in found), first.scale)
    if first in {OTHER, PADDED} or any(value.kind != first for value in found):
        raise NotListedError("values of several kinds")
    return first


def _as(value: Value, kind: Kind) -> str:
    return value.sql if value.kind == kind else f"CAST({value.sql} AS {_decimal(kind)})"


_PLACES: Final = {"YEAR": (1, 4), "MONTH": (6, 2), "DAY": (9, 2)}
"""Where the text of a time has its fields: from which character on, and how many."""


def _extract(node: exp.Expr, values: Values) -> Value:
    """EXTRACT(field FROM time), a numeric without a fraction."""
    value, place = _value(node.expression, values), _PLACES.get(node.name.upper())
    if place is None or value.kind not in {DATE, TIMESTAMP}:
        raise NotListedError("extract")
    first, digits = place
    field = f"substring({comparable(value)}, {first}, {digits})"
    return Value.of(Kind("decimal", digits, 0), f"CAST({field} AS DECIMAL({digits},0))")


_RULES: Final[Mapping[type[exp.Expr], Callable[[exp.Expr, Values], Value]]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: _boolean,
    exp.Paren: _paren,
    exp.Cast: _cast,
    exp.Neg: _negative,
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_SAFE, _distinct),
    exp.And: _both,
    exp.Or: _both,
    exp.Not: _not,
    exp.Is: _is,
    exp.Case: _case,
    exp.Coalesce: _coalesce,
    exp.Extract: _extract,
}
