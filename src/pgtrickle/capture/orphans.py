"""Capture functions, with their triggers, and buffers that belong to no source that is captured. Called by the repair.

They come by a dump, under the oids of another database, and by rows of pgt_change_tracking that someone deleted. A
source of this database may have such an oid, so they go before anything is attached.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle.capture import buffer, named_locks
from pgtrickle.capture.locks import GIVE_UP_AFTER_S, LockRequest, lock_all

_STRAYS: Final = """
SELECT DISTINCT substring(o.name FROM '[0-9]+$')::oid::bigint
FROM (SELECT p.proname::text AS name FROM pg_proc AS p WHERE p.pronamespace = %(schema)s::regnamespace
      UNION ALL
      SELECT c.relname::text FROM pg_class AS c WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind = 'r'
     ) AS o
WHERE o.name ~ '^(capture|changes)_[0-9]{1,10}$'
  AND substring(o.name FROM '[0-9]+$')::bigint NOT IN (
      SELECT k.source_relid::bigint FROM pgtrickle.pgt_change_tracking AS k)
ORDER BY 1
"""


def find(conn: psycopg.Connection[Any]) -> tuple[int, ...]:
    """The oids in their names."""
    return tuple(int(oid) for (oid,) in conn.execute(_STRAYS, {"schema": buffer.SCHEMA}).fetchall())


def remove(conn: psycopg.Connection[Any], oid: int, *, give_up_after_s: float = GIVE_UP_AFTER_S) -> bool:
    """Drops function, triggers and buffer, whose rows count for no one; unless the source is being captured just now.
    The triggers go with their function: that needs no right on the table, but its lock, until the caller commits."""
    with conn.transaction():
        named_locks.lock(conn, f"capture {oid}")
        if conn.execute("SELECT FROM pgtrickle.pgt_change_tracking WHERE source_relid = %s", (oid,)).rowcount:
            return False
        lock_all(conn, _ours(conn, oid), give_up_after_s=give_up_after_s)
        conn.execute(
            sql.SQL("DROP FUNCTION IF EXISTS {}() CASCADE").format(
                sql.Identifier(buffer.SCHEMA, buffer.function_name(oid))
            )
        )
        buffer.drop(conn, oid)
        named_locks.remove(conn, f"capture {oid}")
    return True


def _ours(conn: psycopg.Connection[Any], oid: int) -> list[LockRequest]:
    """The tables with its triggers that this role may lock, and the buffer."""
    rows = conn.execute(
        "SELECT DISTINCT n.nspname, c.relname FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE t.tgfoid = to_regproc(%s) AND t.tgparentid = 0 AND pg_has_role(c.relowner, 'USAGE') ORDER BY 1, 2",
        (f"{buffer.SCHEMA}.{buffer.function_name(oid)}",),
    ).fetchall()
    locks = [LockRequest(sql.Identifier(schema, name), "ACCESS EXCLUSIVE") for schema, name in rows]
    if buffer.exists(conn, oid):
        locks.append(LockRequest(buffer.buffer_identifier(oid), "ACCESS EXCLUSIVE"))
    return locks
