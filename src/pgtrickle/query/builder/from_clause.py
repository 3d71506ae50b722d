"""FROM: the rows that a SELECT reads, and the names it may call them by. Pure; a part of `build.py`."""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.query.builder import correlation
from pgtrickle.query.builder.domain_joins import DomainJoins
from pgtrickle.query.builder.from_items import FromItems
from pgtrickle.query.builder.item_syntax import keeps_left, opened
from pgtrickle.query.builder.relations import Relations
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.with_queries import Names


class FromClause:
    """Builds FROM, beside the values that a query is built for if there are some."""

    def __init__(self, relations: Relations, items: FromItems, domain_joins: DomainJoins) -> None:
        self._relations = relations
        self._items = items
        self._domain_joins = domain_joins

    def rows(self, node: exp.Select, names: Names, start: Scope | None = None) -> Scope:
        """The rows of a FROM clause, beside those of `start`."""
        first, joins = node.args.get("from_"), node.args.get("joins") or []
        if first is None:
            return start or self._relations.nothing()
        if start is None:
            return self._items.joins(self._items.item(first.this, names), joins, names)
        item, inner = opened(first.this)
        if all(map(keeps_left, (*inner, *joins))) or any(correlation.read(part, start) for part in (first, *joins)):
            return self._domain_joins.for_each(start, item, [*inner, *joins], names)
        return self._items.crossed(start, self._items.joins(self._items.item(first.this, names), joins, names))
