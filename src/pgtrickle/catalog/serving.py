"""Whose stream tables this session computes: those of its login role, and of roles that have all of its rights anyway.

The rule is the SQL function `serves` (migration 0013). It is asked wherever a stream table's query is read or computed:
PostgreSQL runs functions, triggers and policies with the rights of the session, and analysing a query alone evaluates
calls of IMMUTABLE functions. It is asked again under the lock with which a refresh writes, so that the table cannot go
to another owner in between. What counts is the login (`session_user`): any function may RESET ROLE.
"""

from __future__ import annotations

from typing import Any

import psycopg

from pgtrickle.catalog.reader import StreamTable
from pgtrickle.errors import ServerError, StateError

_OWNER = """
SELECT session_user::text, current_user::text,
       pg_catalog.pg_get_userbyid(c.relowner)::text, pgtrickle_internal.serves(l.oid, c.relowner)
FROM pg_catalog.pg_roles AS l LEFT JOIN pg_catalog.pg_class AS c ON c.oid = %s::pg_catalog.oid
WHERE l.rolname = session_user
"""

_SERVED = """
SELECT t.pgt_id, pgtrickle_internal.computes(l.oid, c.oid),
       c.relowner <> l.oid AND c.relowner IN (SELECT s.role_oid FROM pgtrickle_internal.serving_roles() AS s)
FROM pgtrickle.pgt_stream_tables AS t
JOIN pg_catalog.pg_class AS c ON c.oid = t.pgt_relid JOIN pg_catalog.pg_roles AS l ON l.rolname = session_user
"""

_CATALOG_OWNER = """
SELECT pg_catalog.pg_get_userbyid(n.nspowner)::text, m.rolsuper AND NOT o.rolsuper
FROM pg_catalog.pg_namespace AS n JOIN pg_catalog.pg_roles AS o ON o.oid = n.nspowner
JOIN pg_catalog.pg_roles AS m ON m.rolname = current_user WHERE n.nspname = 'pgtrickle'
"""


class NotServed(ServerError):
    """A stream table of somebody for whom this session does not compute; nothing was tried."""

    code = "PT416"


def require_login(conn: psycopg.Connection[Any]) -> None:
    """Refuses a session that acts as another role than it logged in as: user code could go back to the login."""
    row = conn.execute("SELECT session_user::text, current_user::text").fetchone()
    assert row is not None
    _require_itself(*row)


def _require_itself(login: str, acting: str) -> None:
    if login != acting:
        raise ServerError(
            f"this session logged in as {login} but acts as {acting}",
            code="PT417",
            hint=f"Log in as {acting}; look for `role` in the connection's options, and ALTER ROLE {login} RESET role.",
        )


def require(conn: psycopg.Connection[Any], stream: StreamTable) -> None:
    """Refuses a stream table whose owner this session does not serve."""
    row = conn.execute(_OWNER, (stream.pgt_relid,)).fetchone()
    assert row is not None
    login, acting, owner, serves = row
    _require_itself(login, acting)
    if owner is None:
        raise StateError(
            f"the table of the stream table {stream} is gone",
            code="PT418",
            hint="Drop the stream table, and create it again.",
        )
    if not serves:
        raise NotServed(
            f"{stream} belongs to {owner}, and this session logged in as {login}",
            hint=f"Do it with the login of {owner}, or run a service with that login: its code never runs as {login}.",
        )


def served(conn: psycopg.Connection[Any]) -> frozenset[int]:
    """The stream tables that a service with this login refreshes: those it may, whose owner has none of its own."""
    return frozenset(int(pgt_id) for pgt_id, may, left in conn.execute(_SERVED) if may and not left)


def computable(conn: psycopg.Connection[Any]) -> frozenset[int]:
    """The stream tables that this session may compute, whoever else does."""
    return frozenset(int(pgt_id) for pgt_id, may, _ in conn.execute(_SERVED) if may)


def others(conn: psycopg.Connection[Any]) -> frozenset[int]:
    """The stream tables that it does not, as somebody else's service does, or none."""
    return frozenset(int(pgt_id) for pgt_id, may, left in conn.execute(_SERVED) if left or not may)


def require_trusted_catalog(conn: psycopg.Connection[Any]) -> None:
    """Refuses a superuser on a catalog of somebody else's: its functions would run with all rights there are."""
    row = conn.execute(_CATALOG_OWNER).fetchone()
    if row is not None and row[1]:
        raise ServerError(
            f"the catalog belongs to {row[0]}, whose code would run with the rights of a superuser",
            code="PT419",
            hint=f"Connect as {row[0]}, or as a role that is a member of it.",
        )
