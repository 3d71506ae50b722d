"""ORDER BY … LIMIT … OFFSET as the first rows of an order. Pure; a part of `build.py`.

Rows that tie are ordered by all of their columns, and by how these look: of rows that PostgreSQL might choose among,
these are chosen always. FETCH FIRST … WITH TIES has all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.expression import column_node
from pgtrickle.query.looks import tie_breaks
from pgtrickle.query.operators import Operator, TopK
from pgtrickle.query.syntax import dialect
from pgtrickle.query.syntax.calls import Calls


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many rows, None being all, after how many others; `ties`: and those that tie with the last of them."""

    limit: int | None
    offset: int
    ties: bool = False


_WHOLE = (exp.DType.INT, exp.DType.BIGINT, exp.DType.SMALLINT)
_ARITHMETIC: Mapping[type[exp.Expr], Callable[[int, int], int]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
}
_MOST: Final = 2**31
"""Beyond it, integers overflow."""


class UnknownBoundError(ValueError):
    """A LIMIT that is not a number we can read."""


def bounds(query: exp.Expr) -> Bounds | None:
    """What LIMIT and OFFSET say; None if there are none."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is None and offset is None:
        return None
    number = None if limit is None else _number(limit)
    found = Bounds(number, 0 if offset is None else _number(offset), bool(number) and isinstance(limit, exp.Fetch))
    return None if found == Bounds(None, 0) else found


def without_all(query: exp.Expr) -> exp.Expr:
    """The query without LIMIT ALL, which says nothing; LIMIT NULL is written so, too."""
    for limit in list(query.find_all(exp.Limit)):
        if limit.expression.name.upper() == "ALL":
            limit.pop()
    return query


def any_row(query: exp.Expr) -> exp.Expr:
    """A query that has rows just if `query` has, without a LIMIT that leaves one of them: which, does not matter."""
    limit = query.args.get("limit")
    if limit is None or query.args.get("offset") is not None or not _number(limit):
        return query
    query = query.copy()
    query.set("limit", None)
    query.set("order", None)
    return query


def without_needless(query: exp.Expr, calls: Calls) -> exp.Expr:
    """The query without LIMIT where there is one row at most: that of an aggregate of all rows, or without FROM."""
    for select in list(query.find_all(exp.Select)):
        limit = select.args.get("limit")
        if limit is None or select.args.get("offset") is not None or not is_one_row(select, calls):
            continue
        if _value(_bound(limit)):
            select.set("limit", None)
    return query


def is_one_row(query: exp.Expr, calls: Calls) -> bool:
    """Whether it is a SELECT that has one row or none, whatever its tables hold."""
    if not isinstance(query, exp.Select) or calls.any_set(query.expressions):
        return False
    grouped = query.args.get("group") is None and calls.groups(query)
    return grouped or query.args.get("from_") is None


def _number(clause: exp.Expr) -> int:
    number = _value(_bound(clause))
    if number is None or not 0 <= number < _MOST:
        raise UnknownBoundError(dialect.text(clause))
    return number


def _bound(clause: exp.Expr) -> exp.Expr:
    bound: exp.Expr = clause.args["count"] if isinstance(clause, exp.Fetch) else clause.expression
    return bound


def _value(node: exp.Expr) -> int | None:
    """The value of an expression of whole numbers, as PostgreSQL computes it; None for any other."""
    node = node.unnest()
    if isinstance(node, exp.Cast):
        return _value(node.this) if node.to.this in _WHOLE or _is_text(node.this) else None
    if isinstance(node, exp.Literal):
        return int(node.this) if node.this.isdigit() else None
    operation = _ARITHMETIC.get(type(node))
    sides = [_value(side) for side in (node.left, node.right)] if operation and isinstance(node, exp.Binary) else []
    known = [side for side in sides if side is not None]
    value = operation(*known) if operation is not None and len(known) == 2 else None
    return value if value is not None and abs(value) < _MOST else None


def _is_text(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and node.is_string


def ordered(parts: Iterable[exp.Expr]) -> list[exp.Ordered]:
    """The parts of an ORDER BY, none of which may be lost on the way: with it the rows would be others."""
    found = list(parts)
    assert all(isinstance(part, exp.Ordered) for part in found), "a part of ORDER BY was taken for its expression"
    return [part for part in found if isinstance(part, exp.Ordered)]


def sorted_by(part: exp.Ordered, name: str) -> exp.Ordered:
    """A part of ORDER BY that sorts by a column in place of what it sorts by."""
    ordered = part.copy()
    ordered.set("this", column_node(name))
    return ordered


def top(factory: ColumnFactory, rows: Operator, order: Iterable[exp.Ordered], bound: Bounds) -> TopK:
    """The first rows of `rows`."""
    parts = [dialect.text(part) for part in order]
    ties = [*factory.sortable(rows, rows.names), *tie_breaks(rows.columns)]
    listed, shared = tuple(dict.fromkeys([*parts, *ties])), len(dict.fromkeys(parts)) if bound.ties else None
    return TopK(rows.columns, rows, listed, bound.limit, bound.offset, shared)
