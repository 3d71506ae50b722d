"""Copies of sources that nothing tells the changes of: materialized views and foreign tables. Called by `define.py`,
which makes them, by `refresh/compared.py`, which brings them up to date, and by `triggers.py`, which drops them.

    source ──compare──▶ pgtrickle_changes.copy_<oid> ──triggers──▶ change buffer

A stream table reads the copy in place of its source. To all others the copy is a table as any other: it has triggers,
a buffer, windows. Comparing adds the rows that the source has and the copy has not, and removes the others; rows are
told apart by their text, so that 1.0 and 1.00 are two. The copy has all columns that this role may read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle import db
from pgtrickle.capture import buffer, named_locks
from pgtrickle.capture.buffer import SCHEMA
from pgtrickle.model import Table

_MATERIALIZED_VIEW: Final = "m"
_SHAPE: Final = """
SELECT coalesce(array_agg(pg_catalog.format('%%I %%s %%s', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
                                            a.attcollation) ORDER BY a.attname), '{}'),
       coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{}')
FROM pg_catalog.pg_attribute AS a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
  AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT')
"""
# REFRESH writes the view's row in pg_class, with CONCURRENTLY too; nothing else does that changes what is in the view.
_STAND_FOR_CONTENT: Final = """
SELECT pg_catalog.concat_ws(' ', c.xmin, c.ctid, c.relfilenode) FROM pg_catalog.pg_class AS c WHERE c.oid = %s
"""


@dataclass(frozen=True, slots=True)
class Compared:
    """A source that has a copy. `token` stands for the content that was compared last, of a materialized view; `due`:
    the time for another comparison has come."""

    source_oid: int
    copy_oid: int
    token: str | None
    due: bool


def copy_name(source_oid: int) -> str:
    return f"copy_{source_oid}"


def ensure(conn: psycopg.Connection[Any], source: Table) -> bool:
    """Makes an empty copy of the source if there is none that fits; returns whether it did."""
    named_locks.lock(conn, f"compare {source.oid}")
    if _fits(conn, source.oid):
        return False
    drop(conn, source.oid)
    copy = sql.Identifier(SCHEMA, copy_name(source.oid))
    conn.execute(
        sql.SQL("CREATE TABLE {} AS SELECT {} FROM {} WITH NO DATA").format(
            copy, _listed(_columns(conn, source.oid)), sql.Identifier(source.schema, source.name)
        )
    )
    buffer.share(conn, "TABLE", copy)
    conn.execute(
        "INSERT INTO pgtrickle.pgt_compared AS c (source_relid, copy_relid) VALUES (%s, %s::regclass)"
        " ON CONFLICT (source_relid) DO UPDATE"
        " SET copy_relid = excluded.copy_relid, token = NULL, compared_at = NULL, changed_in = NULL",
        (source.oid, f"{SCHEMA}.{copy_name(source.oid)}"),
    )
    return True


def drop(conn: psycopg.Connection[Any], source_oid: int) -> None:
    """The copy of a source that no stream table reads any more, or that does not fit."""
    conn.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, copy_name(source_oid))))
    conn.execute("DELETE FROM pgtrickle.pgt_compared WHERE source_relid = %s", (source_oid,))
    named_locks.remove(conn, f"compare {source_oid}")


def drop_copy(conn: psycopg.Connection[Any], copy_oid: int) -> None:
    """The same, by the oid of the copy; nothing, if it is none."""
    row = conn.execute(
        "DELETE FROM pgtrickle.pgt_compared WHERE copy_relid = %s RETURNING source_relid", (copy_oid,)
    ).fetchone()
    if row is not None:
        drop(conn, int(row[0]))


def remove_strays(conn: psycopg.Connection[Any]) -> int:
    """Drops copies that are on record for no source, as they come by a dump, under the oids of another database;
    returns how many."""
    with conn.transaction():
        strays = conn.execute(
            "SELECT c.relname FROM pg_catalog.pg_class AS c WHERE c.relnamespace = %s::regnamespace AND c.relkind = 'r'"
            " AND c.relname ~ '^copy_[0-9]{1,10}$'"
            " AND NOT EXISTS (SELECT FROM pgtrickle.pgt_compared AS p WHERE p.copy_relid = c.oid"
            "   AND c.relname = 'copy_' || p.source_relid::text)",
            (SCHEMA,),
        ).fetchall()
        for (name,) in strays:
            conn.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(SCHEMA, name)))
        conn.execute(
            "DELETE FROM pgtrickle.pgt_compared WHERE NOT EXISTS"
            " (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = copy_relid)"
        )
        return len(strays)


def are_copies(conn: psycopg.Connection[Any], oids: list[int]) -> dict[int, Table]:
    """Those of the tables that are copies, each with its source."""
    rows = conn.execute(
        "SELECT p.copy_relid, c.oid, n.nspname, c.relname FROM pgtrickle.pgt_compared AS p"
        " JOIN pg_catalog.pg_class AS c ON c.oid = p.source_relid"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE p.copy_relid = ANY(%s::oid[])",
        (oids,),
    ).fetchall()
    return {int(copy): Table(int(oid), schema, name) for copy, oid, schema, name in rows}


def read_by(conn: psycopg.Connection[Any], pgt_ids: list[int], interval_s: int) -> tuple[Compared, ...]:
    """What these stream tables read that has a copy."""
    rows = conn.execute(
        "SELECT p.source_relid::bigint, p.copy_relid::bigint, p.token, p.compared_at IS NULL"
        " OR pg_catalog.clock_timestamp() >= p.compared_at + %s * interval '1 second'"
        " FROM pgtrickle.pgt_compared AS p WHERE p.copy_relid IN (SELECT d.source_relid"
        "   FROM pgtrickle.pgt_dependencies AS d JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
        "   WHERE d.pgt_id = ANY(%s::bigint[]) AND t.effective_mode <> 'FULL') ORDER BY 1",
        (interval_s, pgt_ids),
    ).fetchall()
    return tuple(Compared(*row) for row in rows)


def seen_in(conn: psycopg.Connection[Any], copy_oid: int, snapshot: str) -> bool:
    """Whether a snapshot sees the copy as it is by now, and the copy was filled."""
    row = conn.execute(
        "SELECT compared_at IS NOT NULL AND coalesce(pg_visible_in_snapshot(changed_in, %s::pg_snapshot), true)"
        " FROM pgtrickle.pgt_compared WHERE copy_relid = %s",
        (snapshot, copy_oid),
    ).fetchone()
    return row is not None and bool(row[0])


def compare(conn: psycopg.Connection[Any], source_oid: int) -> None:
    """Makes the copy what the source is now, in a transaction of its own. A copy whose columns are not the source's any
    more is dropped: its readers find that, and are defined again. So do those of a source that is gone."""
    with conn.transaction():
        conn.execute(f"SET LOCAL lock_timeout = '{db.LOCK_TIMEOUT}'")
        named_locks.lock(conn, f"compare {source_oid}")
        found = conn.execute(
            "SELECT p.copy_relid::bigint, n.nspname, c.relname, c.relkind, p.token, p.compared_at IS NULL"
            " FROM pgtrickle.pgt_compared AS p"
            " JOIN pg_catalog.pg_class AS c ON c.oid = p.source_relid"
            " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE p.source_relid = %s",
            (source_oid,),
        ).fetchone()
        if found is None:
            return
        if not _fits(conn, source_oid):
            drop(conn, source_oid)
            return
        copy_oid, schema, name, kind, known, first = found
        token = _token(conn, source_oid) if kind == _MATERIALIZED_VIEW else None  # before what it stands for is read
        changed = False
        if token is None or token != known:
            changed = _carry_over(conn, source_oid, copy_oid, sql.Identifier(schema, name), first=first)
        conn.execute(
            "UPDATE pgtrickle.pgt_compared SET token = %s, compared_at = pg_catalog.clock_timestamp(),"
            " changed_in = CASE WHEN %s OR compared_at IS NULL THEN pg_current_xact_id() ELSE changed_in END"
            " WHERE source_relid = %s",
            (token, changed, source_oid),
        )


def _carry_over(
    conn: psycopg.Connection[Any], source_oid: int, copy_oid: int, source: sql.Identifier, *, first: bool
) -> bool:
    """Writes the difference to the copy; returns whether there was one. The source is read once."""
    copy = sql.Identifier(SCHEMA, copy_name(source_oid))
    columns = _listed(_columns(conn, copy_oid))
    row = sql.SQL('ROW({})::text COLLATE "C"').format(columns)
    parts = {"columns": columns, "row": row, "source": source, "copy": copy}
    conn.execute(
        sql.SQL(
            "CREATE TEMPORARY TABLE pgtrickle_difference ON COMMIT DROP AS"
            " SELECT pgt_at, pgt_side, pgt_row FROM ("
            "   SELECT *, sum(pgt_side) OVER (PARTITION BY pgt_image) AS pgt_net,"
            "          row_number() OVER (PARTITION BY pgt_image, pgt_side) AS pgt_place FROM ("
            "     SELECT NULL::tid AS pgt_at, 1 AS pgt_side, {row} AS pgt_image, ROW({columns})::{copy} AS pgt_row"
            "     FROM (SELECT {columns} FROM {source}) AS s"
            "     UNION ALL SELECT ctid, -1, {row}, NULL FROM {copy}) AS sides) AS counted"
            " WHERE pgt_place <= pgt_net * pgt_side"
        ).format(**parts)
    )
    removed = conn.execute(
        sql.SQL(
            "DELETE FROM {copy} WHERE ctid IN (SELECT pgt_at FROM pg_temp.pgtrickle_difference WHERE pgt_side < 0)"
        ).format(**parts)
    ).rowcount
    added = conn.execute(
        sql.SQL(
            "INSERT INTO {copy} ({columns}) SELECT (d.pgt_row).* FROM pg_temp.pgtrickle_difference AS d"
            " WHERE d.pgt_side > 0"
        ).format(**parts)
    ).rowcount
    if first:
        conn.execute(sql.SQL("ANALYZE {copy}").format(**parts))
    return bool(removed or added)


def _fits(conn: psycopg.Connection[Any], source_oid: int) -> bool:
    """Whether there is a copy of ours with the columns of the source."""
    row = conn.execute(
        "SELECT p.copy_relid::bigint FROM pgtrickle.pgt_compared AS p WHERE p.source_relid = %s"
        " AND p.copy_relid = to_regclass(%s)",
        (source_oid, f"{SCHEMA}.{copy_name(source_oid)}"),
    ).fetchone()
    return row is not None and _shape(conn, int(row[0])) == _shape(conn, source_oid)


def _shape(conn: psycopg.Connection[Any], oid: int) -> object:
    row = conn.execute(_SHAPE, (oid,)).fetchone()
    assert row is not None
    return row[0]


def _columns(conn: psycopg.Connection[Any], oid: int) -> list[str]:
    row = conn.execute(_SHAPE, (oid,)).fetchone()
    assert row is not None
    return list(row[1])


def _token(conn: psycopg.Connection[Any], oid: int) -> str | None:
    row = conn.execute(_STAND_FOR_CONTENT, (oid,)).fetchone()
    return None if row is None else str(row[0])


def _listed(names: list[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
