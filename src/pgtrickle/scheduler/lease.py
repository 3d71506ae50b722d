"""One leader a database and login: whoever holds an advisory lock, while its session lives. Called by the service.

The lock goes with the session, so a leader that was killed is followed by the next at once, and one whose machine has
vanished as soon as TCP tells. Waiting is done by asking again and again: a session that waits in PostgreSQL would hold
back its vacuum. That two lead for a moment, before the first has noticed its loss, does no harm: refreshes, handovers
and decoders each have a lock of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from pgtrickle import db
from pgtrickle.catalog.writer import WAKE_CHANNEL
from pgtrickle.errors import ServerError

ASK_AGAIN_S: Final = 1.0
BEAT_S: Final = 1.0
_KEY: Final = (
    "pg_catalog.hashtextextended('pgtrickle service ' || session_user, 0)"  # also in pgtrickle.serving_roles()
)
_CLIENT_KEEPALIVES: Final = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_SERVER_KEEPALIVES: Final = (
    "SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),"
    " set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '10s', false)"
)


class LeaseLost(ServerError):
    """The session with the lock has ended: another service may lead now."""

    code = "PT406"


class Lease:
    """The right to lead, and the ear for those who wake us. For one thread."""

    def __init__(self, conn: db.Connection) -> None:
        self._conn = conn
        self._beat = time.monotonic()

    def watch(self, seconds: float) -> bool:
        """Wait, at most so long; true if someone woke us. LeaseLost as soon as the session is found to have ended."""
        try:
            woken = bool(list(self._conn.notifies(timeout=seconds, stop_after=1)))
            if time.monotonic() - self._beat >= BEAT_S:
                self._conn.execute("SELECT 1")  # a connection on which nothing is sent may be dead for long
                self._beat = time.monotonic()
            return woken
        except psycopg.Error as error:
            raise LeaseLost(
                f"the connection that holds the lease was lost: {' '.join(str(error).split())}",
                hint="Nothing to do: the service takes it again, or another one leads.",
            ) from error

    def release(self) -> None:
        """Let the next one lead."""
        self._conn.close()


def acquire(dsn: str, stop: threading.Event, waiting: Callable[[str], None]) -> Lease | None:
    """The lease, once no other service has it and the server is no standby; None if told to stop before.

    `waiting` is told for what, each time that changes.
    """
    conn = _connect(dsn)
    try:
        told = None
        while (obstacle := _try(conn)) is not None:
            if obstacle != told:
                waiting(obstacle)
                told = obstacle
            if stop.wait(ASK_AGAIN_S):
                conn.close()
                return None
        conn.execute(db.statement(f"LISTEN {WAKE_CHANNEL}"))
    except BaseException:
        conn.close()
        raise
    return Lease(conn)


def _connect(dsn: str) -> db.Connection:
    """A session that notices when the other side is gone, and is noticed when we are."""
    conn = db.connect(make_conninfo(dsn, **_CLIENT_KEEPALIVES), application_name="pgtrickle lease", own_path=True)
    try:
        conn.execute(db.statement(_SERVER_KEEPALIVES))
    except BaseException:
        conn.close()
        raise
    return conn


def _try(conn: db.Connection) -> str | None:
    """Take the lock; what stands in the way, if something does."""
    row = conn.execute("SELECT pg_is_in_recovery()").fetchone()
    assert row is not None
    if row[0]:
        return "the server is a standby: the service leads once it is promoted"
    if not db.scalar(conn, f"SELECT pg_try_advisory_lock({_KEY})"):
        return "another service leads"
    return None
