"""WINDOW clauses put in the place of their names. Pure; called by `builder/build.py`.

    SELECT sum(x) OVER w, rank() OVER (w ORDER BY y) FROM t WINDOW w AS (PARTITION BY k)
    SELECT sum(x) OVER (PARTITION BY k), rank() OVER (PARTITION BY k ORDER BY y) FROM t        the same

A name alone stands for all of its window; within parentheses it gives what is not said there.
"""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.query.syntax.dialect import COPIED

_PARTS = ("partition_by", "order", "spec")


def inlined(query: exp.Expr) -> exp.Expr:
    """The query without WINDOW clauses, in place."""
    for select in list(query.find_all(exp.Select)):
        named: dict[str, exp.Window] = {}
        for window in select.args.get("windows") or []:  # one may be made of those before it
            named[window.name] = _complete(window, named)
        select.set("windows", None)
        for window in list(select.find_all(exp.Window)):
            if window.args.get("alias") is not None and window.parent_select is select:
                window.replace(_complete(window, named))
    return query


def _complete(window: exp.Window, named: dict[str, exp.Window]) -> exp.Window:
    """A window with what the one that it names has."""
    known = named.get(window.alias)
    if known is None:
        return window
    whole = window.copy()
    whole.set("alias", None)
    whole.set(COPIED, None)
    for part in _PARTS:
        value = known.args.get(part)
        if value and not window.args.get(part):
            whole.set(part, [each.copy() for each in value] if isinstance(value, list) else value.copy())
    return whole


def orders(node: exp.Expr) -> list[exp.Expr]:
    """The expressions of PARTITION BY and ORDER BY in the windows of an expression."""
    found: list[exp.Expr] = []
    for window in node.find_all(exp.Window):
        order = window.args.get("order")
        found += window.args.get("partition_by") or []
        found += [] if order is None else [part.this for part in order.expressions]
    return found


def sorted_by(select: exp.Select) -> list[exp.Expr]:
    """Those of a SELECT itself."""
    return [part for part in orders(select) if part.parent_select is select]
