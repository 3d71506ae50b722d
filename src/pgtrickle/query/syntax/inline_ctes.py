"""WITH queries that read the query around them, put in the place of their names. Pure; called by `builder/build.py`.

    (WITH w AS (SELECT r.v FROM r WHERE r.k = t.k) SELECT count(*) FROM w)
    (SELECT count(*) FROM (SELECT r.v FROM r WHERE r.k = t.k) w)                 the same

So they are derived tables, wherever their name is used. One that reads nothing around it keeps its name.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from pgtrickle.query.syntax import query_levels


def inlined(query: exp.Expr) -> exp.Expr:
    """The query without WITH queries that read around it."""
    if not any(reads_around(part.this) for part in query.find_all(exp.CTE)):
        return query
    query = _told_apart(query.copy())
    while True:  # one may read around only by the name of another
        found = [part for part in query.find_all(exp.CTE) if reads_around(part.this) and not _is_recursive(part)]
        if not found:
            return query
        _put_in_place(found[-1], query)  # the innermost first: what is copied has none in it


def _told_apart(query: exp.Expr) -> exp.Expr:
    """The query with no name for two WITH queries, so that they mean the same wherever they are put."""
    known: set[str] = set()
    for part in list(query.find_all(exp.CTE)):
        name, uses = part.alias, _uses(part, query)
        if name in known:
            part.args["alias"].set("this", exp.to_identifier(f"{name} {len(known)}", quoted=True))
            for table in uses:
                if not table.alias:
                    table.set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
                table.set("this", exp.to_identifier(part.alias, quoted=True))
        known.add(part.alias)
    return query


def definition(name: str, node: exp.Expr) -> exp.CTE | None:
    """The WITH query that a name means in the place of `node`."""
    while node.parent is not None:
        below, node = node, node.parent
        for part in _known(node, below):
            if part.alias == name:
                return part
    return None


def _known(node: exp.Expr, below: exp.Expr) -> Iterator[exp.CTE]:
    """The WITH queries of a query that are known in its part `below`."""
    if isinstance(below, exp.With):
        return
    inside = isinstance(node, exp.With)
    clause: exp.Expr | None = node if inside else node.args.get("with_")
    if clause is None:
        return
    for part in clause.expressions:
        if inside and part is below and not clause.args.get("recursive"):
            return
        yield part


def reads_around(query: exp.Expr) -> bool:
    """Whether a column in it is not of one of its own tables."""
    return not all(
        query_levels.is_own(column, query) or _is_merged(column, query) for column in query.find_all(exp.Column)
    )


def _is_merged(column: exp.Column, query: exp.Expr) -> bool:
    """Whether it is a column that USING merged in the query, which has no alias."""
    joins = (join for join in query.find_all(exp.Join) if not column.table)
    return any(column.name == name.name for join in joins for name in join.args.get("using") or [])


def reads_itself(part: exp.CTE) -> bool:
    """Whether it is a recursion: its own name stands in it."""
    return any(table.name == part.alias and definition(part.alias, table) is part for table in _named(part.this))


def _is_recursive(part: exp.CTE) -> bool:
    return part.parent is not None and bool(part.parent.args.get("recursive"))


def _uses(part: exp.CTE, query: exp.Expr) -> list[exp.Table]:
    return [table for table in _named(query) if table.name == part.alias and definition(part.alias, table) is part]


def _named(query: exp.Expr) -> Iterator[exp.Table]:
    """What may be the name of a WITH query: tables have a schema."""
    return (table for table in query.find_all(exp.Table) if not table.db and isinstance(table.this, exp.Identifier))


def _put_in_place(part: exp.CTE, query: exp.Expr) -> None:
    clause, own, uses = part.parent, list(part.args["alias"].columns), _uses(part, query)
    assert clause is not None
    part.pop()
    if not clause.expressions:
        clause.pop()
    for table in uses:
        alias = table.args.get("alias")
        renamed = [] if alias is None else list(alias.columns)
        columns = [column.copy() for column in (*renamed, *own[len(renamed) :])]
        called = exp.TableAlias(this=exp.to_identifier(table.alias_or_name, quoted=True), columns=columns)
        table.replace(exp.Subquery(this=part.this.copy(), alias=called, joins=table.args.get("joins")))
