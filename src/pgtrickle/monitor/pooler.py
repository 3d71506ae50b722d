"""Whether a pooler stands between us and the server, and whether it takes sessions apart. For `readiness.py`.

A pooler gives clients a key of its own for cancelling, and so another process id than that of the server's process.
Whether it gives a session to somebody else after each transaction is tried: a second session looks where it is.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from pgtrickle import db
from pgtrickle.errors import Error
from pgtrickle.monitor.finding import Finding

_PROCESS = "SELECT pg_catalog.pg_backend_pid()"
_DIRECTLY = "have --dsn or PGTRICKLE_DSN name the host and port of the server itself, not those of the pooler"
_TRIES = 3


def pooler(conn: psycopg.Connection[Any]) -> Finding:
    """Direct connections are OK, those that keep sessions a warning; what takes sessions apart takes away temporary
    tables, leases and snapshots."""
    if conn.info.backend_pid == _process(conn):
        return Finding("pooler", "OK", "none: connected to the server itself")
    if _shares_sessions(conn):
        detail = (
            "a pooler gives our session to others after each transaction: neither the service nor a refresh can work"
        )
        return Finding("pooler", "ERROR", detail, _DIRECTLY)
    detail = "a pooler is in between; it seems to keep sessions, but limits them, and takes no replication connections"
    return Finding("pooler", "WARN", detail, _DIRECTLY)


def _shares_sessions(conn: psycopg.Connection[Any]) -> bool:
    """Whether two sessions of ours meet in one process of the server, or ours is in another from one time to the
    next."""
    before = _process(conn)
    try:
        with db.connect(make_conninfo(conn.info.dsn, password=conn.info.password)) as other:
            for _ in range(_TRIES):
                if _process(other) == before:
                    return True
                with other.transaction():  # which keeps its process from us
                    if _process(other) == before or _process(conn) != before:
                        return True
    except (Error, psycopg.Error):
        return True  # it has no second session for us, or does not let us keep one
    return False


def _process(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(_PROCESS, prepare=False).fetchone()
    assert row is not None
    return int(row[0])
