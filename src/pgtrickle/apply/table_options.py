"""What a stream table's own table has beside its columns, if its owner asked for it: a primary key, and protection
against writes by hand. PostgreSQL's catalog is where both are kept. Called by `define.py`, `api.py` and `explain.py`.

Refreshes delete rows before they insert others, so a key that is checked at once is never violated in between. A
refresh whose rows would violate it fails, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import sql

from pgtrickle.apply import storage
from pgtrickle.db import Connection
from pgtrickle.errors import StateError, UsageError

TRIGGER: Final = "pgtrickle_protect"
_KEY: Final = """
SELECT k.conname::text, ARRAY(
           SELECT a.attname::text FROM pg_catalog.unnest(k.conkey) WITH ORDINALITY AS c (number, place)
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = c.number ORDER BY c.place)
FROM pg_catalog.pg_constraint AS k WHERE k.conrelid = %s::pg_catalog.oid AND k.contype = 'p'
"""
_PROTECTED: Final = """
SELECT FROM pg_catalog.pg_trigger AS g JOIN pg_catalog.pg_proc AS f ON f.oid = g.tgfoid
JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
WHERE g.tgrelid = %s::pg_catalog.oid AND n.nspname = 'pgtrickle_internal' AND f.proname = 'refuse_write_by_hand'
"""


def primary_key(connection: Connection, relid: int) -> tuple[str, ...]:
    """The columns of its primary key, in their order; none if it has none."""
    return _constraint(connection, relid)[1]


def is_protected(connection: Connection, relid: int) -> bool:
    return bool(connection.execute(_PROTECTED, (relid,)).rowcount)


def set_primary_key(connection: Connection, relid: int, columns: Sequence[str]) -> None:
    """Gives it this primary key instead of the one it has, in the caller's transaction; no columns: none."""
    name, there = _constraint(connection, relid)
    if there == tuple(columns):
        return
    with storage.named(connection, relid, "ACCESS EXCLUSIVE") as table:
        target = sql.Identifier(table.schema, table.name)
        if name is not None:
            connection.execute(
                sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}, {}").format(target, sql.Identifier(name), _nullable(there))
            )
        if columns:
            _add_key(connection, target, f"{table}", columns)


def set_protection(connection: Connection, relid: int, *, protect: bool) -> None:
    """Has writes by hand refused, or allowed again, in the caller's transaction."""
    if is_protected(connection, relid) == protect:
        return
    statement = (
        "CREATE TRIGGER {} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {} FOR EACH STATEMENT"
        " EXECUTE FUNCTION pgtrickle_internal.refuse_write_by_hand()"
        if protect
        else "DROP TRIGGER {} ON {}"
    )
    with storage.named(connection, relid, "ACCESS EXCLUSIVE") as table:
        target = sql.Identifier(table.schema, table.name)
        connection.execute(sql.SQL(statement).format(sql.Identifier(TRIGGER), target))


def _constraint(connection: Connection, relid: int) -> tuple[str | None, tuple[str, ...]]:
    row = connection.execute(_KEY, (relid,)).fetchone()
    if row is None:
        return None, ()
    assert isinstance(row[1], list)
    return str(row[0]), tuple(str(each) for each in row[1])


def _add_key(connection: Connection, target: sql.Identifier, title: str, columns: Sequence[str]) -> None:
    given = ", ".join(columns)
    try:
        with connection.transaction():
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(target, names))
    except (psycopg.errors.UniqueViolation, psycopg.errors.NotNullViolation) as error:
        raise StateError(
            f"{title} cannot have the primary key {given}: {error.diag.message_detail or error.diag.message_primary}",
            code="PT319",
            hint="take columns that are never NULL and different in each row",
        ) from error
    except psycopg.Error as error:
        raise UsageError(
            f"{title} cannot have the primary key {given}: {error.diag.message_primary}",
            code="PT019",
            hint="name columns that the query gives, each once, of types that can be indexed",
        ) from error


def _nullable(columns: Sequence[str]) -> sql.Composed:
    """What a primary key leaves behind goes with it: its columns may be NULL again."""
    return sql.SQL(", ").join(sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(each)) for each in columns)
