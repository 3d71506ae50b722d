"""VALUES that ask subqueries, as a union of SELECTs without FROM. Pure; called by `builder/build.py`.

VALUES ((SELECT max(x) FROM t)), (2)    =    SELECT (SELECT max(x) FROM t) AS column1  ⊎  SELECT 2
"""

from __future__ import annotations

from functools import reduce

from sqlglot import exp


def as_union(query: exp.Expr) -> exp.Expr:
    """The query with such lists written as unions."""
    return query.transform(_as_union)


def _as_union(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.In) and [type(part) for part in node.expressions] == [exp.Values]:
        union = _as_union(node.expressions[0])
        return node if isinstance(union, exp.Values) else exp.In(this=node.this, query=exp.Subquery(this=union))
    if not isinstance(node, exp.Values) or node.find(exp.Query) is None:
        return node
    union = reduce(_union_all, map(_select, node.expressions))
    union.set("order", node.args.get("order"))
    alias, joins = node.args.get("alias"), node.args.get("joins")
    return union if alias is None and not joins else exp.Subquery(this=union, alias=alias, joins=joins)


def _select(row: exp.Expr) -> exp.Expr:
    parts = row.expressions if isinstance(row, exp.Tuple) else [row]
    named = [exp.Alias(this=as_union(part), alias=f"column{place}") for place, part in enumerate(parts, start=1)]
    return exp.Select(expressions=named)


def _union_all(left: exp.Expr, right: exp.Expr) -> exp.Expr:
    return exp.Union(this=left, expression=right, distinct=False)
