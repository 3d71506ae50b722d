"""What the event triggers on DDL (migration 0003) need from us: the objects each stream table uses, and to be told
which DDL is our own. Called by `writer.py` and `install.py`, and where a stream table gets other columns.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle.query.analyse.analysis import Dependencies

NOT_TRACKED: Final = (
    "this role may not create event triggers, so DDL on sources is noticed at the next refresh,"
    " and block_source_ddl has no effect"
)


def track(conn: psycopg.Connection[Any]) -> bool:
    """Create the event triggers where they are missing; false if this role may not."""
    makers = conn.execute(  # a directory of older migrations has them elsewhere, or has not all
        "SELECT p.oid::regproc::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace"
        " WHERE n.nspname IN ('pgtrickle', 'pgtrickle_internal') AND p.proname IN ('track_ddl', 'track_subscriptions')"
    ).fetchall()
    tracked = [conn.execute(sql.SQL("SELECT {}()").format(sql.SQL(maker))).fetchone() for (maker,) in makers]
    return all(row is not None and bool(row[0]) for row in tracked)


def use(conn: psycopg.Connection[Any], pgt_id: int, dependencies: Dependencies) -> None:
    """Remember what a stream table depends on as it is now, in place of what was known and noted before."""
    forget(conn, pgt_id)
    conn.execute("DELETE FROM pgtrickle.pgt_used_objects WHERE pgt_id = %s", (pgt_id,))
    addresses = dependencies.addresses
    conn.execute(
        "INSERT INTO pgtrickle.pgt_used_objects (pgt_id, classid, objid, objsubid, title, shape)"
        " SELECT %s, o.classid, o.objid, o.objsubid, d.title, d.shape"
        " FROM unnest(%s::oid[], %s::oid[], %s::integer[]) AS o(classid, objid, objsubid)"
        " CROSS JOIN LATERAL pgtrickle_internal.describe_object(o.classid, o.objid, o.objsubid) AS d"
        " WHERE d.shape IS NOT NULL ON CONFLICT DO NOTHING",
        (pgt_id, *([address[place] for address in addresses] for place in range(3))),
    )


def only_of_views(conn: psycopg.Connection[Any], pgt_id: int, reason: str | None) -> bool:
    """Whether the DDL that was noted replaced views and did no more, and `reason` tells of that."""
    row = conn.execute(
        "SELECT bool_and(l.objsubid = 0 AND NOT l.gone AND c.relkind = 'v'), bool_or(l.reason = %s)"
        " FROM pgtrickle.pgt_source_ddl AS l LEFT JOIN pg_catalog.pg_class AS c"
        "   ON l.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND c.oid = l.objid"
        " WHERE l.pgt_id = %s",
        (reason, pgt_id),
    ).fetchone()
    return row is not None and bool(row[0]) and bool(row[1])


def forget(conn: psycopg.Connection[Any], pgt_id: int) -> None:
    """What was noted of DDL is settled: the stream table is defined anew, or goes."""
    conn.execute("DELETE FROM pgtrickle.pgt_source_ddl WHERE pgt_id = %s", (pgt_id,))


def announce_own(conn: psycopg.Connection[Any]) -> None:
    """The DDL of this transaction is ours from here on: the event triggers pass it over."""
    conn.execute("SELECT set_config('pg_trickle.own_ddl', 'on', true)")
