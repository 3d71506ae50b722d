"""A stream table's own table, known by oid: locked under the name that it has now, in the transaction that acts.

SQL has only names, and a name may come to mean another relation between two statements. A lock on the table keeps its
name (RENAME, SET SCHEMA and DROP wait for it), so the name is looked up, locked and compared. Nothing keeps the name of
a schema: so it is compared again when the work is done, before anything is committed. Called wherever a stream table is
written, altered or dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
from psycopg import sql

from pgtrickle.db import Connection
from pgtrickle.errors import Refused, StateError
from pgtrickle.model import Table
from pgtrickle.postgres.statements.result import Storage

_MOST_TRIES = 10


def dropped(name: object) -> Refused:
    """The error for a stream table whose table is gone."""
    return Refused(
        f"the stream table {name} was dropped",
        code="PT311",
        hint="what belonged to it is removed at the next look; if the database was restored from a dump, run"
        " `pgtrickle repair`",
    )


def present(connection: Connection, relid: int) -> Table | None:
    """The relation under the name it has now; None if there is no such table."""
    row = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n"
        " ON n.oid = c.relnamespace WHERE c.oid = %s AND c.relkind IN ('r', 'p')",
        (relid,),
    ).fetchone()
    return None if row is None else Table(relid, str(row[0]), str(row[1]))


def locked(connection: Connection, relid: int, mode: str) -> Table | None:
    """The same, locked for the caller's transaction, so that it keeps its name until that ends."""
    for _ in range(_MOST_TRIES):
        table = present(connection, relid)
        if table is None or _lock(connection, table, mode):
            return table
    raise _renamed(relid)


@contextmanager
def named(connection: Connection, relid: int, mode: str) -> Iterator[Table]:
    """The table under the name it has now, to be worked on in the caller's transaction."""
    table = locked(connection, relid, mode)
    if table is None:
        raise dropped(f"with oid {relid}")
    yield table
    if present(connection, relid) != table:
        raise _renamed(relid)


@contextmanager
def held(connection: Connection, relid: int, storage: Storage, mode: str = "ROW EXCLUSIVE") -> Iterator[Storage]:
    """The storage under the name of the table that it is, to write its rows. A protected table lets us in by that."""
    with named(connection, relid, mode) as table:
        connection.execute(
            "SELECT set_config(%(name)s, concat(current_setting(%(name)s, true), ' ', %(relid)s::text), true)",
            {"name": "pg_trickle.writing", "relid": relid},
        )
        yield replace(storage, schema=table.schema, name=table.name)


def drop(connection: Connection, relid: int, *, cascade: bool) -> None:
    """Drops the table, if it is still there; and no other, or nothing at all."""
    table = locked(connection, relid, "ACCESS EXCLUSIVE")
    if table is None:
        return
    statement = sql.SQL("DROP TABLE {}{}").format(_identifier(table), sql.SQL(" CASCADE" if cascade else ""))
    connection.execute(statement)
    if present(connection, relid) is not None:
        raise _renamed(relid)


def _lock(connection: Connection, table: Table, mode: str) -> bool:
    """Whether the name still means the table; else nothing stays locked."""
    still = False
    try:
        with connection.transaction():
            connection.execute(sql.SQL("LOCK TABLE ONLY {} IN {} MODE").format(_identifier(table), sql.SQL(mode)))
            still = present(connection, table.oid) == table
            if not still:
                raise psycopg.Rollback
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.WrongObjectType):
        return False  # the name was taken from it, and given to nothing or to no table
    return still


def _identifier(table: Table) -> sql.Identifier:
    return sql.Identifier(table.schema, table.name)


def _renamed(relid: int) -> StateError:
    return StateError(
        f"the table or schema with oid {relid} was renamed while it was worked on",
        code="PT312",
        hint="nothing was changed; try again when no DDL is under way",
    )
