"""Whether the catalog is of this database, and taking it over for this database if it came by a dump.

Oids, transactions and positions in the WAL mean something only where they were noted. In a restored catalog none of
them is used (`pgt_present` shows all stream tables in ERROR), until `adopt` has forgotten them all. What it forgets,
`refresh/definition/repair.py` finds again, stream table by stream table: until then each of these is `restored`.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle.errors import ServerError

REASON: Final = "it was restored from a dump"

_NOWHERE: Final = """
UPDATE pgtrickle.pgt_dependencies AS d
SET source_relid = (4294967295 - t.pgt_id)::oid
FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_relid = d.source_relid;

UPDATE pgtrickle.pgt_dependencies AS d
SET source_relid = (4000000000 - n.number)::oid
FROM (SELECT source_relid, dense_rank() OVER (ORDER BY source_relid) AS number FROM pgtrickle.pgt_dependencies
      WHERE source_relid < 3900000000::bigint::oid) AS n
WHERE n.source_relid = d.source_relid;

UPDATE pgtrickle.pgt_dependencies
SET cdc_mode = 'TRIGGER', slot_name = NULL, decoder_confirmed_lsn = NULL, transition_started_at = NULL;

UPDATE pgtrickle.pgt_stream_tables
SET pgt_relid = (4294967295 - pgt_id)::oid, restored = true, frontier = pg_current_snapshot(), upstream_frontier = NULL,
    source_fingerprint = NULL, last_error = NULL, consecutive_errors = 0, updated_at = now();

UPDATE pgtrickle.pgt_cdc_history SET source_relid = 0;

DELETE FROM pgtrickle.pgt_used_objects;
DELETE FROM pgtrickle.pgt_source_ddl;
DELETE FROM pgtrickle.pgt_change_tracking;
DELETE FROM pgtrickle.pgt_handovers;
DELETE FROM pgtrickle.pgt_leases;
DELETE FROM pgtrickle_internal.pgt_locks;
"""
"""Oids of another database become such as no relation of this one has: a counter would have to come near its end."""


class NotHere(ServerError):
    """The catalog, or a stream table, was restored from a dump and not repaired since; nothing was tried."""

    code = "PT460"


def not_here(what: str) -> NotHere:
    return NotHere(
        f"{what} was restored from a dump, and its oids are those of another database",
        hint="`pgtrickle repair` attaches the stream tables to this one; `pgtrickle uninstall` leaves plain tables.",
    )


def is_here(conn: psycopg.Connection[Any]) -> bool:
    row = conn.execute("SELECT pgtrickle_internal.catalog_is_here()").fetchone()
    return row is not None and bool(row[0])


def require_here(conn: psycopg.Connection[Any]) -> None:
    """Refuses to work by oids of another database."""
    if not is_here(conn):
        raise not_here("this catalog")


def adopt(conn: psycopg.Connection[Any]) -> bool:
    """Takes a restored catalog over for this database, all or nothing; returns whether it was one."""
    with conn.transaction():
        _require_rights(conn)
        conn.execute("LOCK TABLE pgtrickle.pgt_migrations IN SHARE ROW EXCLUSIVE MODE")
        if is_here(conn):
            return False
        for statement in filter(None, map(str.strip, _NOWHERE.split(";"))):
            conn.execute(sql.SQL(statement))  # ours, and without parameters
        forget_decoders(conn, of_any_name=True)
        conn.execute("SELECT pgtrickle_internal.set_origin()")
    return True


def forget_decoders(conn: psycopg.Connection[Any], *, of_any_name: bool = False) -> tuple[str, ...]:
    """Drops the publications that this catalog had under the name of another database, and says which. The slots of
    those names are that database's, whether it is on this server or not: they are left alone."""
    dropped = []
    with conn.transaction():
        found = conn.execute(
            "SELECT d.slot_name, p.pubname, p.pubowner IS NOT NULL AND pg_has_role(p.pubowner, 'USAGE')"
            " FROM pgtrickle.pgt_decoder AS d LEFT JOIN pg_publication AS p ON p.pubname = d.publication"
            " WHERE %s OR d.slot_name <> pgtrickle_internal.slot_name()",
            (of_any_name,),
        ).fetchall()
        for slot, publication, may_drop in found:
            if may_drop:
                conn.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(publication)))
                dropped.append(str(publication))
            conn.execute("DELETE FROM pgtrickle.pgt_decoder WHERE slot_name = %s", (slot,))
    return tuple(dropped)


def _require_rights(conn: psycopg.Connection[Any]) -> None:
    row = conn.execute(
        "SELECT pg_has_role(nspowner, 'USAGE'), pg_get_userbyid(nspowner)::text, session_user::text"
        " FROM pg_namespace WHERE nspname = 'pgtrickle'"
    ).fetchone()
    assert row is not None, "who is connected has seen the catalog"
    if not row[0]:
        raise ServerError(
            f"the catalog belongs to {row[1]}, and {row[2]} has not its rights",
            code="PT461",
            hint=f"Repair it as {row[1]}, or as a role that is a member of it.",
        )
