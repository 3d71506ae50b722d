"""The syntax of FROM items: LATERAL that is not written, joins in parentheses, which side a join pads. Pure; for
`from_items.py`, `from_clause.py`, `domain_joins.py`."""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.query.builder import correlation, table_functions
from pgtrickle.query.builder.scope import Scope

_QUERY = exp.Select | exp.SetOperation | exp.Values


def as_lateral(node: exp.Expr, scope: Scope) -> exp.Lateral | None:
    """The item as LATERAL, if it is or if it reads `scope`: in a subquery no word is needed for what is around it."""
    if isinstance(node, exp.Lateral):
        return node
    values = node if isinstance(node, exp.Values) else node.this if isinstance(node.this, exp.Values) else None
    if values is not None and not isinstance(node, exp.Subquery):
        node = exp.Subquery(this=values.copy(), alias=node.args.get("alias"), joins=node.args.get("joins"))
        node.this.set("alias", None)
    if isinstance(node, exp.Subquery) and (node.args.get("joins") or not isinstance(node.this, _QUERY)):
        return None
    if not isinstance(node, exp.Subquery) and not table_functions.is_function(_called(node)):
        return None
    if not correlation.read(node, scope):
        return None
    if not isinstance(node, exp.Subquery):
        return as_function(node)
    alias = node.args.get("alias")
    return exp.Lateral(this=exp.Subquery(this=node.this.copy()), alias=alias and alias.copy())


def as_function(item: exp.Expr) -> exp.Lateral:
    """A function in FROM as LATERAL."""
    alias = item.args.get("alias")
    ordinality = item.args.get("ordinality")
    return exp.Lateral(this=_called(item).copy(), alias=alias and alias.copy(), ordinality=ordinality)


def _called(item: exp.Expr) -> exp.Expr:
    called: exp.Expr = item if isinstance(item, exp.Unnest) else item.this
    return called


def taken_apart(join: exp.Join, scope: Scope) -> list[exp.Join]:
    """The joins in parentheses of an inner join, if they read `scope`: a, (b JOIN c ON p) is a, b JOIN c ON p."""
    if join.args.get("side") or join.args.get("using") or not correlation.read(join.this, scope):
        return []
    first, joins = opened(join.this)
    return [exp.Join(this=first), *joins] if joins and all(map(keeps_left, joins)) else []


def opened(item: exp.Expr) -> tuple[exp.Expr, list[exp.Join]]:
    """The first of the joins in parentheses, and the joins."""
    joins = list[exp.Join]()
    while isinstance(item, exp.Subquery) and not item.alias and not isinstance(item.this, _QUERY):
        joins = [*(item.args.get("joins") or []), *joins]
        item = item.this
    item, joins = item.copy(), [*(item.args.get("joins") or []), *joins]
    item.set("joins", None)
    return item, joins


def keeps_left(join: exp.Join) -> bool:
    return str(join.args.get("side") or "").upper() not in ("RIGHT", "FULL")
