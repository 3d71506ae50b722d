"""Calls that read the clock, written as what a refresh says that the time is. Pure; called by `builder/build.py`.

    now()         ▶  current_setting('pgtrickle.now')::timestamptz        a setting of every session of the refresh
    CURRENT_DATE  ▶  that ::date, under the table's own time zone

So the time is a constant of one refresh, the same wherever a part of the query is evaluated. Only calls that begin with
the transaction's time are known here; those that move within a query (`clock_timestamp()`) are refused.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from pgtrickle.answers import NOW

_CALLS: Final = {"now": "timestamptz", "transaction_timestamp": "timestamptz"}
_KEYWORDS: Final = {
    "CURRENT_DATE": "date",
    "CURRENT_TIME": "timetz",
    "CURRENT_TIMESTAMP": "timestamptz",
    "LOCALTIME": "time",
    "LOCALTIMESTAMP": "timestamp",
}
_NODES: Final[dict[type[exp.Expr], str]] = {
    exp.CurrentDate: "CURRENT_DATE",
    exp.CurrentTime: "CURRENT_TIME",
    exp.CurrentTimestamp: "CURRENT_TIMESTAMP",
    exp.Localtime: "LOCALTIME",
    exp.Localtimestamp: "LOCALTIMESTAMP",
}


def with_values(query: exp.Expr) -> exp.Expr:
    """The query with the refresh's time in place of all that reads the clock."""
    return query.transform(_value)


def setting_of(node: exp.Expr) -> str | None:
    """The setting that a node reads the time from; None for any other node."""
    if not isinstance(node, exp.Anonymous) or node.name != "current_setting" or len(node.expressions) != 1:
        return None
    name = node.expressions[0]
    return str(name.this) if isinstance(name, exp.Literal) else None


def time_of(setting: str) -> exp.Expr:
    """The time that a setting holds."""
    call = exp.Anonymous(this="current_setting", expressions=[exp.Literal.string(setting)])
    return exp.Cast(this=call, to=exp.DataType.build("timestamptz", dialect="postgres"))


def _value(node: exp.Expr) -> exp.Expr:
    if type(node) in _NODES and not node.args.get("this"):
        return _as(_KEYWORDS[_NODES[type(node)]], None)
    if not isinstance(node, exp.Anonymous) or isinstance(node.parent, exp.Dot):
        return node
    arguments = node.expressions
    if node.this in _CALLS and not arguments:
        return _as(_CALLS[node.this], None)
    if node.this in _KEYWORDS and len(arguments) == 1:
        return _as(_KEYWORDS[node.this], arguments[0])
    if node.this == "age" and len(arguments) == 1:  # since midnight of the day: PostgreSQL's own definition of it
        return exp.Anonymous(this="age", expressions=[_as("date", None), arguments[0].transform(_value)])
    return node


def _as(type_: str, precision: exp.Expr | None) -> exp.Expr:
    time = time_of(NOW)
    if type_ == "timestamptz" and precision is None:
        return time
    to = exp.DataType.build(type_, dialect="postgres")
    if precision is not None:
        to.set("expressions", [exp.DataTypeParam(this=precision.copy())])
    return exp.Cast(this=time, to=to)
