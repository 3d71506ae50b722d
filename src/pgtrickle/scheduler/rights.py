"""What a role that made a request may ask for, what names mean to it, and who owns what comes of it.

For `request_executor.py`.

Whether its requests are ours to carry out at all is asked first, where they are picked up (`catalog/serving.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from psycopg import sql

from pgtrickle.apply import storage
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.errors import ServerError, StateError

_MAY_BECOME = """
SELECT pg_has_role(
    r.oid, CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END)
FROM pg_roles AS r WHERE r.rolname = %s
"""


def require_existing(conn: Connection, requester: str) -> None:
    """Refuses a request whose role was dropped since."""
    if not conn.execute("SELECT FROM pg_roles WHERE rolname = %s", (requester,)).rowcount:
        raise StateError(f"the role {requester}, which asked, is gone", code="PT384", hint="Ask again as another role.")


def require_owner(conn: Connection, stream: StreamTable, role: str) -> str:
    """The owner of a stream table; refuses if `role` has not its rights."""
    row = conn.execute(
        "SELECT pg_get_userbyid(relowner)::text, pg_has_role(%s::name, relowner, 'USAGE') FROM pg_class WHERE oid = %s",
        (role, stream.pgt_relid),
    ).fetchone()
    if row is None or not row[1]:
        raise ServerError(
            f"the role {role} does not own {stream}",
            code="PT402",
            hint="Only the owner of a stream table may alter, drop or refresh it.",
        )
    return str(row[0])


def require_allowed(conn: Connection, stream: StreamTable, role: str, kind: str, args: Mapping[str, object]) -> str:
    """The owner of a stream table; refuses if `role` may not ask this of it. Members of pgtrickle_admin may steer
    tables of others (`pgtrickle_internal.steers`)."""
    row = conn.execute(
        "SELECT pgtrickle_internal.steers(r.oid, %s, %s::jsonb), pg_get_userbyid(c.relowner)::text"
        " FROM pg_roles AS r CROSS JOIN pg_class AS c WHERE r.rolname = %s AND c.oid = %s",
        (kind, json.dumps(args), role, stream.pgt_relid),
    ).fetchone()
    return str(row[1]) if row is not None and row[0] else require_owner(conn, stream, role)


def is_ours_or_of(conn: Connection, stream: StreamTable, role: str) -> bool:
    """Whether a stream table belongs to `role`, or has not been handed over to anyone."""
    row = conn.execute(
        "SELECT pg_get_userbyid(relowner) IN (current_user, %s) FROM pg_class WHERE oid = %s", (role, stream.pgt_relid)
    ).fetchone()
    return row is not None and bool(row[0])


def hand_over(conn: Connection, stream: StreamTable, owner: str) -> None:
    """Makes `owner` the owner of a stream table, if it is not and we may; else it stays ours, whose rights it has."""
    row = conn.execute(
        "SELECT pg_get_userbyid(relowner) = %s FROM pg_class WHERE oid = %s", (owner, stream.pgt_relid)
    ).fetchone()
    may = conn.execute(_MAY_BECOME, (owner,)).fetchone()
    if row is not None and not row[0] and may is not None and may[0]:
        with conn.transaction(), storage.named(conn, stream.pgt_relid, "ACCESS EXCLUSIVE") as table:
            name = sql.Identifier(table.schema, table.name)
            conn.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(name, sql.Identifier(owner)))
