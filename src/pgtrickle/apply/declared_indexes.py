"""The indexes that the owner of a stream table asked for, as an option of it: which PostgreSQL can make, which are
missing, and making these. Called by `define.py`, by the refresh that fills the table, and by `api.py`.

They are on record in the catalog (`pgt_stream_tables.indexes`), and made once the table has its rows. The next refresh
in full makes one again that was dropped by hand. One that is there already is not made twice, whatever its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import psycopg
from psycopg import sql

from pgtrickle.apply import storage
from pgtrickle.db import OWN_PATH, Connection, caller, execute
from pgtrickle.errors import StateError, UsageError
from pgtrickle.index_text import Index, parse_definition
from pgtrickle.model import Column
from pgtrickle.postgres.wire import definition

_COPY: Final = "pg_temp.pgtrickle_columns"
# Without those of constraints, which belong to these.
_PRESENT: Final = """
SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname), pg_catalog.pg_get_indexdef(i.indexrelid)
FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE i.indrelid = %s::pg_catalog.oid AND i.indisvalid
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint AS k
                  WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x'))
ORDER BY i.indexrelid
"""


def possible(connection: Connection, columns: Sequence[Column], wanted: Iterable[Index]) -> tuple[Index, ...]:
    """The indexes as PostgreSQL reads them, found out on an empty table with these columns; raises for one that cannot
    be. Operator classes and collations are found by the path of who asks; nothing of theirs is run."""
    found: list[Index] = []
    for index in wanted:
        with connection.transaction(force_rollback=True):
            execute(connection, f"CREATE TEMPORARY TABLE {_COPY} ({', '.join(map(definition, columns))})")
            oid = connection.execute("SELECT %s::pg_catalog.regclass::pg_catalog.oid", (_COPY,)).fetchone()
            assert oid is not None
            _use_path(connection, caller(connection).search_path)
            _try(connection, index)
            _use_path(connection, OWN_PATH)
            found.append(_present(connection, int(str(oid[0])))[0][1])
    return tuple(dict.fromkeys(found))


def remaining(declared: Iterable[Index], columns: Iterable[Column]) -> tuple[Index, ...]:
    """Those whose columns are all there."""
    names = {column.name for column in columns}
    return tuple(index for index in declared if index.names <= names)


def make_missing(connection: Connection, relid: int, declared: Sequence[Index]) -> None:
    """Makes those that the table has not got, in the caller's transaction."""
    missing = dict.fromkeys(declared).keys() - {index for _, index in _present(connection, relid)} if declared else ()
    if not missing:
        return
    with storage.named(connection, relid, "SHARE") as table:
        for index in declared:
            if index in missing:
                connection.execute(index.statement(sql.Identifier(table.schema, table.name)))


def make_now(connection: Connection, relid: int, declared: Sequence[Index], title: str) -> None:
    """The same for a table that has rows, which may be against a unique one."""
    try:
        with connection.transaction():
            make_missing(connection, relid, declared)
    except psycopg.errors.UniqueViolation as error:
        raise StateError(
            f"{title} cannot have a unique index: {error.diag.message_detail or error.diag.message_primary}",
            code="PT323",
            hint="take columns that are different in each row, or an index that is not unique",
        ) from error


def drop(connection: Connection, relid: int, gone: Iterable[Index]) -> None:
    """Drops these, one of each, in the caller's transaction."""
    names = {index: name for name, index in reversed(_present(connection, relid))}
    dropped = [names[index] for index in gone if index in names]
    if dropped:
        with storage.named(connection, relid, "ACCESS EXCLUSIVE"):
            execute(connection, f"DROP INDEX {', '.join(dropped)}")


def _present(connection: Connection, relid: int) -> list[tuple[str, Index]]:
    """Its indexes that could be declared, each with its name as SQL text."""
    rows = connection.execute(_PRESENT, (relid,)).fetchall()
    read = [(str(name), parse_definition(str(statement))) for name, statement in rows]
    return [(name, index) for name, index in read if index is not None]


def _try(connection: Connection, index: Index) -> None:
    try:
        with connection.transaction():
            connection.execute(index.statement(sql.SQL(_COPY)))
    except psycopg.OperationalError:  # a full disk, a shutdown: not what was asked for
        raise
    except psycopg.Error as error:
        raise UsageError(
            f"there cannot be the index {index}: {error.diag.message_primary}",
            code="PT024",
            hint=error.diag.message_hint
            or "name columns that the query gives, of types that can be indexed; write the schema before an operator"
            " class that is not found",
        ) from error


def _use_path(connection: Connection, path: str) -> None:
    connection.execute("SELECT pg_catalog.set_config('search_path', %s, true)", (path,))
