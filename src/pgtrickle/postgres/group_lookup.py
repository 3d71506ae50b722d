"""SQL of a join with groups that asks for them one by one. Pure; called by `physical/lower_delta.py` for what few rows
look up.

PostgreSQL computes all groups of a subquery before it joins them. Asked for row by row, with the row's key inside, it
reads the rows of one group, by an index on the key: much better for few rows, and much worse for many. A group without
keys is the other way round: it is the same for all rows, and computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pgtrickle.model import quote
from pgtrickle.postgres.weighted import chain
from pgtrickle.query import render
from pgtrickle.query.expression import conjunction, conjuncts, element, referenced
from pgtrickle.query.operators import Aggregate, InnerJoin, LeftJoin, Operator, Scan


def groups_by_key(worthwhile: Callable[[Scan, str], bool]) -> render.Leaf:
    """Renders the joins whose right side is groups of a table by a key that the join gives, if that is `worthwhile` for
    the table and the key's attribute; and groups without keys."""

    def leaf(node: Operator) -> str | None:
        if isinstance(node, Aggregate) and not node.keys:
            whole = render.select(node, leaf=lambda below: None if below is node else leaf(below))
            return f"WITH once AS MATERIALIZED ({whole}) SELECT * FROM once"
        if not isinstance(node, InnerJoin | LeftJoin) or node.condition is None:
            return None
        key = _key(node)
        if key is None or not worthwhile(key.table, key.attribute):
            return None
        names = ", ".join(quote(name) for name in node.names)
        left = render.select(node.left, leaf=leaf)
        groups = render.select(node.right, leaf=lambda below: _asked(node, key) if below is key.table else leaf(below))
        # OFFSET keeps PostgreSQL from making an ordinary join of it
        matches = f"SELECT * FROM ({groups}) AS g WHERE {node.condition.sql} OFFSET 0"
        kind = "LEFT JOIN" if isinstance(node, LeftJoin) else "JOIN"
        return f"SELECT {names} FROM ({left}) AS l {kind} LATERAL ({matches}) AS r ON true"

    return leaf


@dataclass(frozen=True, slots=True)
class _Key:
    """The table that the right side of a join groups, and a key that the join gives: its name, and the attribute."""

    table: Scan
    name: str
    attribute: str


def _asked(node: InnerJoin | LeftJoin, key: _Key) -> str:
    """The rows of the table whose key is asked for. PostgreSQL takes what is said of a key to the rows by itself, but
    for one whose look is chosen among them."""
    parts = () if node.condition is None else conjuncts(node.condition)
    right = set(node.right.names)
    of_key = conjunction(part for part in parts if right.intersection(part.columns) == {key.name})
    rows = render.select(key.table)
    return rows if of_key is None else f"SELECT * FROM ({rows}) AS k WHERE {of_key.sql}"


def _key(node: InnerJoin | LeftJoin) -> _Key | None:
    """The key that the join gives to groups of a table on its right."""
    groups, _ = chain(node.right)
    if not isinstance(groups, Aggregate):
        return None
    table, _ = chain(groups.input)
    if not isinstance(table, Scan):
        return None
    attributes = dict(zip(table.names, table.attributes, strict=True))
    for equality in node.equalities:
        name = referenced(element(equality.right))
        if name in groups.keys and name in attributes:
            return _Key(table, name, attributes[name])
    return None
