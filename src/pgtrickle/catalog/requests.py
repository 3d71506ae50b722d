"""Requests as the one who asks sees them: made, looked at, and whether a running service would take one.

For the command line, which hands its work over. `scheduler/request_executor.py` carries requests out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection, caller
from pgtrickle.errors import (
    EnvironmentProblem,
    Error,
    QueryError,
    ServerError,
    StateError,
    Unsupported,
    UsageError,
)

_KINDS: Final = (UsageError, QueryError, Unsupported, StateError, ServerError, EnvironmentProblem)

_TAKEN: Final = """
SELECT session_user = current_user AND pgtrickle_internal.is_taken(l.oid, c.relowner)
       AND (c.oid IS NULL OR pg_has_role(c.relowner, 'USAGE') AND NOT EXISTS (
                SELECT FROM pgtrickle_internal.takers(l.oid, c.relowner) AS t
                WHERE NOT pgtrickle_internal.computes(t, c.oid))),
       NOT EXISTS (SELECT FROM pgtrickle_internal.takers(l.oid, c.relowner) AS t WHERE t <> l.oid)
FROM pg_catalog.pg_roles AS l LEFT JOIN pg_catalog.pg_class AS c ON c.oid = %s::pg_catalog.oid
WHERE l.rolname = session_user
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is. `ahead` are requests before it, `waits` says why no service takes it, if none does;
    `rows_expected` is what the table has by now, if it has any."""

    state: str
    ahead: int
    waits: str | None
    is_served: bool
    refreshing: bool
    rows_so_far: int | None
    rows_expected: int | None


def would_be_taken(conn: Connection, stream: StreamTable | None = None, *, defining: bool) -> bool:
    """Whether a running service would carry out what this login asks for: a new stream table, or something to one.

    What defines a table is only for a service of the same login: one of another has other rights, and its tables
    another owner. One that this login may not ask for, and a session that acts as another role, are left to what the
    program itself says."""
    row = conn.execute(_TAKEN, (None if stream is None else stream.pgt_relid,)).fetchone()
    return row is not None and bool(row[0]) and (bool(row[1]) or not defining)


def make(conn: Connection, kind: str, args: Mapping[str, object]) -> int:
    """Makes a request; returns its id. The path and the settings by which its query is read are the login's own, as for
    one who asks in SQL."""
    who = caller(conn)
    own = {**who.settings, "search_path": who.search_path}
    with conn.transaction():
        conn.execute(
            "SELECT set_config(s.name, s.value, true) FROM unnest(%s::text[], %s::text[]) AS s(name, value)",
            (list(own), list(own.values())),
        )
        row = conn.execute("SELECT pgtrickle_internal.add_request(%s, %s)", (kind, Jsonb(dict(args)))).fetchone()
    assert row is not None
    return int(str(row[0]))


def full_name(conn: Connection, stream: StreamTable) -> str:
    """The name as requests have it."""
    row = conn.execute("SELECT pgtrickle_internal.full_name_of(%s)", (stream.pgt_id,)).fetchone()
    assert row is not None
    return str(row[0])


def progress(conn: psycopg.Connection[Any], request_id: int) -> Progress:
    row = conn.execute(
        "SELECT state, ahead, waits, is_served, refreshing, rows_so_far, rows_expected"
        " FROM pgtrickle_internal.request_progress(%s)",
        (request_id,),
    ).fetchone()
    assert row is not None
    if row[0] is None:
        raise StateError(
            f"request {request_id} is gone",
            code="PT452",
            hint="Someone removed it from pgtrickle.pgt_requests; ask again.",
        )
    return Progress(*row)


def result(conn: psycopg.Connection[Any], request_id: int) -> Mapping[str, object]:
    """What a request that is done has answered; raises its error, as it was raised where it was carried out."""
    row = conn.execute(
        "SELECT result, error_kind, error_code, error, error_at, hint FROM pgtrickle.pgt_requests WHERE id = %s",
        (request_id,),
    ).fetchone()
    assert row is not None
    answer, kind, code, error, at, hint = row
    if error is not None:
        message = error.removesuffix(f" ({at})") if at else error
        known = next((each for each in _KINDS if each.__name__ == kind), StateError)
        raise known(message, code=code, hint=hint, at=at)
    return answer or {}


def kind_of(error: Error) -> str:
    """What the catalog calls an error of ours: the kind that decides how the command line ends."""
    return next((kind for kind in _KINDS if isinstance(error, kind)), StateError).__name__
