"""Which SELECT a column, and an aggregate call, is of: not always the one it stands in. Pure; a part of
`builder/build.py`.

An aggregate goes over the rows of the innermost SELECT that it reads a column of; one that reads none, of the SELECT it
stands in. So a subquery may hold an aggregate of the query around it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp


def owner(call: exp.Expr) -> exp.Select | None:
    """The SELECT whose rows an aggregate call goes over; None if it is further out than the text."""
    around = list(_around(call))
    columns = list(call.find_all(exp.Column))
    if not columns:
        return around[0] if around else None
    places = {id(select): place for place, select in enumerate(around)}
    found = [places[id(select)] for select in map(reader, columns) if id(select) in places]
    return around[min(found)] if found else None


def enclosing(node: exp.Expr) -> exp.Select | None:
    """The SELECT that a node stands in."""
    return next(_around(node), None)


def reader(column: exp.Column) -> exp.Select | None:
    """The SELECT whose FROM has the column; None if it is further out than the text.

    PostgreSQL writes a column without its table if USING merged it, or if the whole query has but one table.
    """
    around = list(_around(column))
    for select in around:
        if column.table in aliases(select) if column.table else column.name in _merged(select):
            return select
    return around[0] if around and not column.table else None


def is_own(column: exp.Column, query: exp.Expr) -> bool:
    """Whether a FROM in the query has the column's alias.

    In a WITH query there may be one that the query which uses it has too: it is only unlike those around its text.
    """
    node: exp.Expr | None = column
    while node is not None:
        if isinstance(node, exp.Select) and column.table in aliases(node):
            return True
        node = None if node is query else node.parent
    return False


def aliases(select: exp.Select) -> set[str]:
    """The names of what a SELECT has in its FROM, in parentheses or not."""
    found: set[str] = set()
    items = [item for item, _ in _items(select)]
    while items:
        item = items.pop()
        items += [join.this for join in item.args.get("joins") or []]
        if item.alias_or_name:
            found.add(item.alias_or_name)
        elif isinstance(item, exp.Subquery):
            items.append(item.this)
    return found


def item(select: exp.Select, alias: str) -> exp.Expr | None:
    """What has this name in the FROM of a SELECT, unless that are joins in parentheses."""
    items = [each for each, _ in _items(select)]
    while items:
        found = items.pop()
        items += [join.this for join in found.args.get("joins") or []]
        if found.alias_or_name == alias:
            is_query = isinstance(found.this, exp.Query) and not isinstance(found.this, exp.Subquery)
            return found if is_query or isinstance(found, exp.Table | exp.Lateral) else None
        if isinstance(found, exp.Subquery) and not found.alias_or_name:
            items.append(found.this)
    return None


def _merged(select: exp.Select) -> set[str]:
    """The columns that USING merges in the FROM of a SELECT."""
    found: set[str] = set()
    items = list(_items(select))
    while items:
        item, join = items.pop()
        found |= {name.name for name in ([] if join is None else join.args.get("using") or [])}
        items += [(inner.this, inner) for inner in item.args.get("joins") or []]
        if isinstance(item, exp.Subquery) and not isinstance(item.this, exp.Select | exp.SetOperation):
            items.append((item.this, None))
    return found


def _items(select: exp.Select) -> list[tuple[exp.Expr, exp.Join | None]]:
    first = select.args.get("from_")
    joins = select.args.get("joins") or []
    return [*([] if first is None else [(first.this, None)]), *((join.this, join) for join in joins)]


def _around(node: exp.Expr) -> Iterator[exp.Select]:
    """The SELECTs that a node stands in, the innermost first."""
    above = node.parent
    while above is not None:
        if isinstance(above, exp.Select):
            yield above
        above = above.parent
