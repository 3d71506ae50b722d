"""Acting for a role that made a request: may we, may it, what do names mean to it, who owns what. For `requests.py`.

PostgreSQL is asked as that role wherever it can be (`SET LOCAL ROLE`, in a transaction that is rolled back).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import sql

from pgtrickle.apply import storage
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.errors import ServerError, StateError
from pgtrickle.model import quote
from pgtrickle.query.analyze import analyze

_MAY_ACT_AS = """
SELECT current_user::text, r.oid IS NOT NULL,
       pg_has_role(r.oid, 'USAGE') AND pg_has_role(
           r.oid, CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END),
       pg_has_role(r.oid, current_user, 'USAGE')
FROM (SELECT) AS one LEFT JOIN pg_roles AS r ON r.rolname = %s
"""


def acting_role(conn: Connection, requester: str) -> str:
    """The role to act as: the requester; or ourselves for one that has all our rights but that we may not act as."""
    row = conn.execute(_MAY_ACT_AS, (requester,)).fetchone()
    assert row is not None
    me, exists, may_act, has_ours = row
    if not exists:
        raise StateError(f"the role {requester}, which asked, is gone", code="PT384", hint="Ask again as another role.")
    if not may_act and not has_ours:
        raise ServerError(
            f"the service runs as {me}, which may not act as {requester}",
            code="PT402",
            hint=f"GRANT {quote(requester)} TO {quote(str(me))}, with INHERIT and SET.",
        )
    return requester if may_act else str(me)


@contextmanager
def names_of(conn: Connection, role: str, search_path: str, query: str | None) -> Iterator[None]:
    """Lets names mean on `conn` what they mean to `role` under its search path; first analyses `query` as that role.

    The path is written out, as `"$user"` would mean us, and has only schemas that the role may use.
    """
    with conn.transaction(force_rollback=True):
        conn.execute("SELECT set_config('role', %s, true), set_config('search_path', %s, true)", (role, search_path))
        row = conn.execute(
            "SELECT array_to_string(ARRAY(SELECT quote_ident(s) FROM unnest(current_schemas(false))"
            " WITH ORDINALITY AS u(s, place) ORDER BY place), ', ')"
        ).fetchone()
        assert row is not None
        path = str(row[0])
        if query is not None:
            analyze(conn, query)
    before = conn.execute("SELECT current_setting('search_path'), set_config('search_path', %s, false)", (path,))
    ours = before.fetchone()
    assert ours is not None
    try:
        yield
    finally:
        if not conn.closed:
            conn.execute("SELECT set_config('search_path', %s, false)", (ours[0],))


def require_right_to_create(conn: Connection, schema: str, role: str) -> None:
    """Refuses if `role` may not create tables in the schema; one that does not exist is left to `create`."""
    row = conn.execute(
        "SELECT has_schema_privilege(%s::name, oid, 'CREATE') FROM pg_namespace WHERE nspname = %s", (role, schema)
    ).fetchone()
    if row is not None and not row[0]:
        raise ServerError(
            f"the role {role} may not create tables in schema {schema}",
            code="PT402",
            hint=f"GRANT CREATE ON SCHEMA {quote(schema)} TO {quote(role)}.",
        )


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


def is_ours_or_of(conn: Connection, stream: StreamTable, role: str) -> bool:
    """Whether a stream table belongs to `role`, or has not been handed over to anyone."""
    row = conn.execute(
        "SELECT pg_get_userbyid(relowner) IN (current_user, %s) FROM pg_class WHERE oid = %s", (role, stream.pgt_relid)
    ).fetchone()
    return row is not None and bool(row[0])


def hand_over(conn: Connection, stream: StreamTable, owner: str) -> None:
    """Makes `owner` the owner of a stream table, if it is not."""
    row = conn.execute(
        "SELECT pg_get_userbyid(relowner) = %s FROM pg_class WHERE oid = %s", (owner, stream.pgt_relid)
    ).fetchone()
    if row is not None and not row[0]:
        with conn.transaction(), storage.named(conn, stream.pgt_relid, "ACCESS EXCLUSIVE") as table:
            name = sql.Identifier(table.schema, table.name)
            conn.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(name, sql.Identifier(owner)))
