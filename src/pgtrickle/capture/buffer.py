"""The change buffer of a source: its table, its columns, its clean-up. Called by `triggers.py` and the refresh.

    changes_<oid>(change_id, xid, lsn, action I/U/D/T, cdc_source T/W, new_<column>…, old_<column>…)

An update is one row U with both images, or, where these may not fit a page, two rows D and I.

`xid` is the writer's top-level transaction, which decides the window a change falls in. T says that the content of
the source is no longer what the changes before it add up to (TRUNCATE, or DDL): consumers compute it anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle.capture import named_locks
from pgtrickle.capture.source import SourceColumn
from pgtrickle.errors import Unsupported
from pgtrickle.model import Table

SCHEMA: Final = "pgtrickle_changes"
_LONGEST_NAME = 63
_MOST_COLUMNS: Final = 1600
_OWN_COLUMNS: Final = 5
PAGE: Final = 8160
"""Bytes of a page that a row may take."""
_TRUNCATE_FROM_BYTES: Final = 1 << 20  # below, a DELETE is cheaper than a new file and its fsync


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up removed; `rows` is unknown (None) after a TRUNCATE, which does not count."""

    rows: int | None
    truncated: bool = False


def buffer_name(source_oid: int) -> str:
    return f"changes_{source_oid}"


def function_name(source_oid: int) -> str:
    """The trigger function that fills the buffer; it lives in the same schema."""
    return f"capture_{source_oid}"


def share(conn: psycopg.Connection[Any], kind: str, name: sql.Identifier) -> None:
    """Gives what captures a source to the owner of our schemas: logins that share a catalog, all members of that role,
    share it too. One that may not give it away keeps it."""
    row = conn.execute(
        "SELECT pg_get_userbyid(n.nspowner)::text, pg_has_role(n.nspowner,"
        " CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END)"
        " FROM pg_namespace AS n WHERE n.nspname = %s",
        (SCHEMA,),
    ).fetchone()
    if row is not None and row[1]:
        conn.execute(sql.SQL("ALTER {} {} OWNER TO {}").format(sql.SQL(kind), name, sql.Identifier(row[0])))


def buffer_identifier(source_oid: int) -> sql.Identifier:
    return sql.Identifier(SCHEMA, buffer_name(source_oid))


def buffer_column(side: str, column: str) -> str:
    """The buffer's name for one side (`new` or `old`) of a column.

    A name that the prefix makes longer than PostgreSQL keeps is cut and told apart by a digest of the whole.
    """
    name = f"{side}_{column}"
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(column.encode()).hexdigest()[:16]
    head = name.encode()[: _LONGEST_NAME - len(digest) - 1].decode(errors="ignore")
    return f"{head}~{digest}"


def exists(conn: psycopg.Connection[Any], source_oid: int) -> bool:
    row = conn.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{SCHEMA}.{buffer_name(source_oid)}",)).fetchone()
    return row is not None and bool(row[0])


def may_read(conn: psycopg.Connection[Any], source_oids: Collection[int]) -> bool:
    """Whether this role may read the buffers of these sources: who only looks may not, since they hold rows."""
    row = conn.execute(
        "SELECT has_schema_privilege(n.oid, 'USAGE') AND NOT EXISTS (SELECT FROM pg_class AS c"
        "   WHERE c.relnamespace = n.oid AND c.relname = ANY(%s::text[]) AND NOT has_table_privilege(c.oid, 'SELECT'))"
        " FROM pg_namespace AS n WHERE n.nspname = %s",
        ([buffer_name(oid) for oid in source_oids], SCHEMA),
    ).fetchone()
    return row is not None and bool(row[0])


def require_room(table: Table, columns: Sequence[SourceColumn]) -> None:
    """Unsupported if a table cannot have the columns that the buffer would need."""
    most = (_MOST_COLUMNS - _OWN_COLUMNS) // 2
    if len(columns) > most:
        raise Unsupported(
            f"{len(columns)} columns of {table} are used, and changes of at most {most} can be captured",
            code="PT282",
            hint="name only the columns that are needed, or use refresh_mode => 'FULL'",
        )


def holds_pairs(columns: Sequence[SourceColumn]) -> bool:
    """Whether a row with both images of any change fits a page, whatever the values are."""
    header = 24 + (2 * len(columns) + _OWN_COLUMNS) // 8 + 8
    return header + 8 * _OWN_COLUMNS + 2 * sum(column.width for column in columns) <= PAGE


def create(conn: psycopg.Connection[Any], source_oid: int, columns: Sequence[SourceColumn]) -> None:
    """Make an empty buffer. No index: it is read whole and short-lived. `change_id` is only an aid, so it is cached."""
    conn.execute(
        sql.SQL(
            "CREATE TABLE {} (change_id bigint GENERATED ALWAYS AS IDENTITY (CACHE 100), xid xid8 NOT NULL, lsn pg_lsn,"
            " action \"char\" NOT NULL CHECK (action IN ('I', 'U', 'D', 'T')),"
            " cdc_source \"char\" NOT NULL DEFAULT 'T' CHECK (cdc_source IN ('T', 'W')){})"
            " WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)"
        ).format(
            buffer_identifier(source_oid),
            sql.SQL("").join(sql.SQL(", ") + each for column in columns for each in _definitions(column)),
        )
    )


def unfit(conn: psycopg.Connection[Any], source_oid: int, columns: Sequence[SourceColumn]) -> tuple[SourceColumn, ...]:
    """The columns that the buffer lacks, or holds with another type or collation."""
    have = {
        name: (type_name, collation)
        for name, type_name, collation in conn.execute(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod),"
            " (SELECT pg_catalog.format('%%I.%%I', n.nspname, c.collname)"
            " FROM pg_collation AS c JOIN pg_namespace AS n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation)"
            " FROM pg_attribute AS a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped",
            (f"{SCHEMA}.{buffer_name(source_oid)}",),
        )
    }
    return tuple(
        column
        for column in columns
        if any(have.get(buffer_column(side, column.name)) != (column.type, column.collation) for side in ("new", "old"))
    )


def widen(conn: psycopg.Connection[Any], source_oid: int, columns: Sequence[SourceColumn]) -> bool:
    """Add `columns`, replacing those that were there with another type; returns whether any was replaced.

    Rows written before hold NULL in them. No consumer of the new columns reads such a row: its frontier is taken
    after the lock under which we widen, so it sees those rows' transactions as done.
    """
    known = {
        name
        for (name,) in conn.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (f"{SCHEMA}.{buffer_name(source_oid)}",),
        )
    }
    replaced = [
        buffer_column(side, column.name)
        for column in columns
        for side in ("new", "old")
        if buffer_column(side, column.name) in known
    ]
    changes = [sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)) for name in replaced]
    changes += [sql.SQL("ADD COLUMN {}").format(each) for column in columns for each in _definitions(column)]
    conn.execute(sql.SQL("ALTER TABLE {} {}").format(buffer_identifier(source_oid), sql.SQL(", ").join(changes)))
    return bool(replaced)


def mark(conn: psycopg.Connection[Any], source_oid: int) -> None:
    """Write a T row: all consumers of the source must compute it anew."""
    conn.execute(
        sql.SQL(
            "INSERT INTO {} (xid, lsn, action) VALUES (pg_current_xact_id(), pg_current_wal_insert_lsn(), 'T')"
        ).format(buffer_identifier(source_oid))
    )


def drop(conn: psycopg.Connection[Any], source_oid: int) -> None:
    conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(buffer_identifier(source_oid)))
    conn.execute("DELETE FROM pgtrickle_internal.pgt_consumed WHERE source_relid = %s", (source_oid,))
    named_locks.remove(conn, f"clean {source_oid}")


def clean(
    conn: psycopg.Connection[Any], source_oid: int, frontiers: Collection[str], *, use_truncate: bool = True
) -> Cleaned:
    """Remove the changes that every consumer has: those visible in each of their committed `frontiers`.

    TRUNCATE is used if the buffer is large, its lock is free at this instant, and no row is still needed. It cannot
    take a row from a reader with an older snapshot either: what that reader needs is not visible in its frontier.
    Runs in a READ COMMITTED transaction, after the one that moved a frontier. One cleaner at a time, others pass.
    """
    buffer = buffer_identifier(source_oid)
    if not frontiers:
        return Cleaned(0)  # no consumer known: one may just be coming; the last one that leaves drops the buffer
    done = sql.SQL(" AND ").join(
        sql.SQL("pg_visible_in_snapshot(xid, {}::pg_snapshot)").format(sql.Literal(frontier))
        for frontier in sorted(set(frontiers))
    )
    with conn.transaction():
        row = conn.execute(
            "SELECT pg_relation_size(to_regclass(%s))", (f"{SCHEMA}.{buffer_name(source_oid)}",)
        ).fetchone()
        size = None if row is None else row[0]
        if not size or not named_locks.try_lock(conn, f"clean {source_oid}"):
            return Cleaned(0)
        if use_truncate and size >= _TRUNCATE_FROM_BYTES and _truncate(conn, source_oid, done):
            return Cleaned(None, truncated=True)
        gone = sql.SQL("WITH gone AS (DELETE FROM {} WHERE {} RETURNING lsn) SELECT count(*), max(lsn)::text FROM gone")
        row = conn.execute(gone.format(buffer, done)).fetchone()
        assert row is not None
        _note_consumed(conn, source_oid, row[1])
        return Cleaned(int(row[0]))


def _note_consumed(conn: psycopg.Connection[Any], source_oid: int, lsn: str | None) -> None:
    """How far every consumer has the changes of the source, for people."""
    if lsn is not None:
        conn.execute(
            "INSERT INTO pgtrickle_internal.pgt_consumed AS c (source_relid, last_consumed_lsn) VALUES (%s, %s::pg_lsn)"
            " ON CONFLICT (source_relid) DO UPDATE"
            " SET last_consumed_lsn = greatest(c.last_consumed_lsn, excluded.last_consumed_lsn)",
            (source_oid, lsn),
        )


def _truncate(conn: psycopg.Connection[Any], source_oid: int, done: sql.Composable) -> bool:
    """Empty the buffer if no writer or reader is at it and no row is needed; the lock keeps new ones out meanwhile."""
    buffer = buffer_identifier(source_oid)
    try:
        with conn.transaction():
            conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(buffer))
            needed = conn.execute(sql.SQL("SELECT FROM {} WHERE NOT ({}) LIMIT 1").format(buffer, done)).rowcount
            if not needed:
                last = conn.execute(sql.SQL("SELECT max(lsn)::text FROM {}").format(buffer)).fetchone()
                _note_consumed(conn, source_oid, None if last is None else last[0])
                conn.execute(sql.SQL("TRUNCATE {}").format(buffer))
    except psycopg.errors.LockNotAvailable:
        return False
    return not needed


def _definitions(column: SourceColumn) -> list[sql.Composed]:
    """The column's new_ and old_ definitions. `type` is format_type()'s text, valid SQL in this session."""
    collate = sql.SQL(" COLLATE " + column.collation) if column.collation is not None else sql.SQL("")
    return [
        sql.SQL("{} {}{}").format(sql.Identifier(buffer_column(side, column.name)), sql.SQL(column.type), collate)
        for side in ("new", "old")
    ]
