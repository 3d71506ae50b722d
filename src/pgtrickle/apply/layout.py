"""Whether the state of a stream table was kept by the tree that its query has now.

Another version of pgtrickle may build another tree of the same query, or keep an aggregate in another way: its state
has other columns then, or, worse, the same ones under another meaning. So each state table is labelled with its tree,
and that of an aggregate with its columns too. Called by `refresh/definition/define.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from psycopg import sql

from pgtrickle.db import Connection, statement
from pgtrickle.postgres.aggregate import state_columns
from pgtrickle.postgres.statements.first_rows import FirstRows
from pgtrickle.postgres.statements.recursion import RecursiveRows
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.query.operators import Operator

Kept = StateTable | FirstRows | WindowRows | RecursiveRows


def label(connection: Connection, kept: Iterable[Kept], tree: Operator) -> None:
    for each in kept:
        text = _label(each, tree)
        connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(statement(each.name), text))


def fits(connection: Connection, kept: Iterable[Kept], tree: Operator) -> bool:
    """Whether the state tables are there, and labelled with this tree."""
    tables = list(kept)
    found = connection.execute(
        # by the system catalogs: who only explains may not use the schema, and could not look the name up
        "SELECT name, obj_description(c.oid, 'pg_class') FROM unnest(%s::text[]) AS name LEFT JOIN pg_class AS c"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace ON ARRAY[n.nspname, c.relname]::text[] = parse_ident(name)",
        ([each.name for each in tables],),
    )
    labels = {str(name): comment for name, comment in found.fetchall()}
    return all(labels[each.name] == _label(each, tree) for each in tables)


def _label(kept: Kept, tree: Operator) -> str:
    """Of an aggregate's state with its columns: the same tree may be kept in other ones."""
    columns = repr(state_columns(kept.aggregate)) if isinstance(kept, StateTable) else ""
    return f"kept for the tree {hashlib.sha256((repr(tree) + columns).encode()).hexdigest()}"
