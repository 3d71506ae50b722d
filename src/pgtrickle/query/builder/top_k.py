"""ORDER BY … LIMIT … OFFSET as the first rows of an order. Pure; a part of `build.py`.

Rows that tie are ordered by all of their columns, and by how these look: of rows that PostgreSQL might choose among,
these are chosen always. FETCH FIRST … WITH TIES has all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlglot import exp

from pgtrickle.query.expression import column_node, reference
from pgtrickle.query.looks import tie_breaks
from pgtrickle.query.operators import Operator, TopK
from pgtrickle.query.syntax import dialect


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many rows, None being all, after how many others; `ties`: and those that tie with the last of them."""

    limit: int | None
    offset: int
    ties: bool = False


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


def _number(clause: exp.Expr) -> int:
    value = (clause.args["count"] if isinstance(clause, exp.Fetch) else clause.expression).unnest()
    while isinstance(value, exp.Cast | exp.Paren):
        value = value.this
    if not isinstance(value, exp.Literal) or not value.this.isdigit():
        raise UnknownBoundError(dialect.text(clause))
    return int(value.this)


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


def top(operator: Operator, order: Iterable[exp.Ordered], bound: Bounds) -> TopK:
    """The first rows of `operator`."""
    parts = [dialect.text(part) for part in order]
    ties = [*(reference(column).sql for column in operator.columns), *tie_breaks(operator.columns)]
    listed, shared = tuple(dict.fromkeys([*parts, *ties])), len(dict.fromkeys(parts)) if bound.ties else None
    return TopK(operator.columns, operator, listed, bound.limit, bound.offset, shared)
