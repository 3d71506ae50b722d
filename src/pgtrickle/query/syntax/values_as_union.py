"""VALUES that ask subqueries, as a union of SELECTs without FROM, and the first of VALUES, as those of a SELECT. Pure;
called by `builder/build.py`.

VALUES ((SELECT max(x) FROM t)), (2)    =    SELECT (SELECT max(x) FROM t) AS column1  ⊎  SELECT 2
VALUES (1), (2) ORDER BY 1 LIMIT 1      =    SELECT column1 FROM (VALUES (1), (2)) AS v ORDER BY 1 LIMIT 1
"""

from __future__ import annotations

from functools import reduce

from sqlglot import exp

_FIRST = ("order", "limit", "offset")
_NAME = "*VALUES*"
"""What PostgreSQL calls them, in their ORDER BY."""


def as_union(query: exp.Expr) -> exp.Expr:
    """The query with such lists written as unions."""
    return query.transform(_as_union)


def _as_union(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.In) and [type(part) for part in node.expressions] == [exp.Values]:
        union = _as_union(node.expressions[0])
        return node if isinstance(union, exp.Values) else exp.In(this=node.this, query=exp.Subquery(this=union))
    if not isinstance(node, exp.Values):
        return node
    if any(node.args.get(part) for part in _FIRST):
        return _first(node)
    if node.find(exp.Query) is None:
        return node
    union = reduce(_union_all, map(_select, node.expressions))
    alias, joins = node.args.get("alias"), node.args.get("joins")
    return union if alias is None and not joins else exp.Subquery(this=union, alias=alias, joins=joins)


def _first(node: exp.Values) -> exp.Expr:
    """Its first rows."""
    row = node.expressions[0]
    width = len(row.expressions) if isinstance(row, exp.Tuple) else 1
    named = exp.TableAlias(this=exp.to_identifier(_NAME, quoted=True))
    values = as_union(exp.Values(expressions=node.expressions, alias=named))
    columns: list[exp.Expr] = [exp.column(f"column{place}", table=named.this) for place in range(1, width + 1)]
    parts = {part: node.args.get(part) for part in _FIRST}
    return exp.Select(expressions=columns, from_=exp.From(this=values), **parts)


def _select(row: exp.Expr) -> exp.Expr:
    parts = row.expressions if isinstance(row, exp.Tuple) else [row]
    named = [exp.Alias(this=as_union(part), alias=f"column{place}") for place, part in enumerate(parts, start=1)]
    return exp.Select(expressions=named)


def _union_all(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.Union(this=left, expression=right, distinct=False)
