"""One leader: a row of ours for each login role (`pgt_leases`), held by its epoch. Called by the service.

The leader writes its heartbeat each second, with what each of its loops is at. Another takes over when the row was
given up, when the leader's session has ended, or when its heartbeat is too old by the server's clock. It counts the
epoch up, so that nothing which the former leader has not committed yet will be committed (`fence.py`), and ends the
sessions that it has left: a process that hangs would keep their locks, and the replication slot. No transaction is open
while leading, which would hold back PostgreSQL's vacuum.

Capture is led once in a database, whatever roles services log in as: the lease of purpose 'capture' goes to any of the
leaders, and is kept with the same heartbeat.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo

from pgtrickle import db
from pgtrickle.catalog.writer import WAKE_CHANNEL
from pgtrickle.errors import ServerError
from pgtrickle.fence import Fence, LeaseLost
from pgtrickle.scheduler.takeover import OF_CAPTURE, end_sessions

ASK_AGAIN_S: Final = 1.0
BEAT_S: Final = 1.0
SERVICE: Final = "service"
CAPTURE: Final = "capture"
_COMMIT_WITHIN: Final = "1s"
"""What the former leader is committing is waited for; if it takes longer, its sessions are ended."""
_CLIENT_KEEPALIVES: Final = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_SERVER_KEEPALIVES: Final = (
    "SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),"
    " set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '10s', false),"
    " set_config('synchronous_commit', 'off', false)"
)
_SEEN: Final = """
SELECT l.epoch, l.instance, l.heartbeat_at,
       l.heartbeat_at > clock_timestamp() - %(timeout)s * interval '1 ms' AND EXISTS (
           SELECT FROM pg_stat_activity AS a
           WHERE a.pid = l.backend_pid AND coalesce(a.backend_start = l.backend_start, true))
FROM pgtrickle.pgt_leases AS l WHERE l.role_name = %(role)s AND l.purpose = %(purpose)s
"""
_TAKE: Final = """
UPDATE pgtrickle.pgt_leases AS l
SET epoch = l.epoch + 1, instance = %(instance)s, backend_pid = a.pid, backend_start = a.backend_start,
    taken_at = clock_timestamp(), heartbeat_at = clock_timestamp(), obstacle = NULL
FROM pg_stat_activity AS a
WHERE a.pid = pg_backend_pid() AND l.role_name = %(role)s AND l.purpose = %(purpose)s AND l.epoch = %(epoch)s
  AND l.heartbeat_at IS NOT DISTINCT FROM %(beat)s
RETURNING l.epoch
"""
_BEAT: Final = """
UPDATE pgtrickle.pgt_leases SET heartbeat_at = clock_timestamp()
WHERE (role_name, purpose, epoch) IN (SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[]))
RETURNING purpose
"""
_BEAT_AND_TELL: Final = """
UPDATE pgtrickle.pgt_leases
SET heartbeat_at = clock_timestamp(), loops = CASE purpose WHEN 'service' THEN %s::jsonb ELSE loops END
WHERE (role_name, purpose, epoch) IN (SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[]))
RETURNING purpose
"""
_RELEASE: Final = """
UPDATE pgtrickle.pgt_leases SET instance = NULL, backend_pid = NULL, backend_start = NULL, heartbeat_at = NULL
WHERE (role_name, purpose, epoch) IN (SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[]))
"""
STANDBY: Final = "the server is a standby: the service leads once it is promoted"
ANOTHER: Final = "another service leads"


class CatalogGone(ServerError):
    """The catalog was uninstalled under a service that leads: it does not install it again."""

    code = "PT408"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who wants to lead: a session, the login role it serves, and the bound after which a silent leader is replaced."""

    conn: db.Connection
    role: str
    instance: str
    timeout_ms: int

    def take(self, purpose: str) -> Fence | None:
        """The lease, unless another leads; from one that has ended or hangs it is taken over."""
        role = self.role if purpose == SERVICE else ""
        given = {"role": role, "purpose": purpose, "timeout": self.timeout_ms}
        row = self.conn.execute(_SEEN, given).fetchone()
        if row is None:
            self.conn.execute(
                "INSERT INTO pgtrickle.pgt_leases (role_name, purpose, epoch) VALUES (%s, %s, 0)"
                " ON CONFLICT DO NOTHING",
                (role, purpose),
            )
            row = self.conn.execute(_SEEN, given).fetchone()
            assert row is not None, "no one removes a lease"
        epoch, former, beat, alive = row
        if alive:
            return None
        try:
            taken = self._count_up({**given, "instance": self.instance, "epoch": epoch, "beat": beat})
        except psycopg.errors.LockNotAvailable:  # it hangs in the middle of a commit
            self._end(role, purpose, former)
            return None
        if taken is None:
            return None
        self._end(role, purpose, former)
        return Fence(role, purpose, taken)

    def _count_up(self, given: dict[str, object]) -> int | None:
        """The next epoch; None if another was quicker, or the leader has woken up."""
        with self.conn.transaction():
            self.conn.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('synchronous_commit', 'on', true)",
                (_COMMIT_WITHIN,),
            )
            row = self.conn.execute(_TAKE, given).fetchone()
        return None if row is None else int(str(row[0]))

    def _end(self, role: str, purpose: str, former: object) -> None:
        """End what the former leader has left, and note where we may not. The note changes no key."""
        if former is None or former == self.instance:
            return
        obstacle = end_sessions(self.conn, str(former), OF_CAPTURE if purpose == CAPTURE else None)
        if obstacle is not None:
            self.conn.execute(
                "UPDATE pgtrickle.pgt_leases SET obstacle = %s WHERE role_name = %s AND purpose = %s",
                (obstacle, role, purpose),
            )


class Lease:
    """The right to lead, and the ear for those who wake us. For one thread; `capture` may be asked for by others."""

    def __init__(self, candidate: Candidate, fence: Fence) -> None:
        self.fence = fence
        self.capture: Fence | None = None
        """That to steer capture, while we have it."""
        self.loops: Callable[[], str] | None = None
        """What to tell of our loops with each heartbeat (`heartbeat.report`), once the catalog is one that has them."""
        self._candidate = candidate
        self._conn = candidate.conn
        self._beaten = time.monotonic()

    def watch(self, seconds: float) -> bool:
        """Wait, at most so long; true if someone woke us. LeaseLost as soon as another leads, or may."""
        try:
            woken = bool(list(self._conn.notifies(timeout=seconds, stop_after=1)))
            if time.monotonic() - self._beaten >= BEAT_S:
                self.beat()
            return woken
        except psycopg.errors.UndefinedTable as error:
            raise CatalogGone(
                "the catalog of this database was removed", hint="Start the service: it installs it again."
            ) from error
        except psycopg.Error as error:
            raise LeaseLost(
                f"the connection that holds the lease was lost: {' '.join(str(error).split())}",
                hint="Nothing to do: the service takes it again, or another one leads.",
            ) from error

    def beat(self) -> None:
        """Say that we live. Capture is taken over where no one leads it."""
        told = (_BEAT, self._held()) if self.loops is None else (_BEAT_AND_TELL, (self.loops(), *self._held()))
        kept = {str(purpose) for (purpose,) in self._conn.execute(*told)}
        if SERVICE not in kept:
            raise LeaseLost(
                "another service has taken over: this one was silent for too long",
                hint="Nothing to do: this service waits until it may lead again.",
            )
        self._beaten = time.monotonic()
        if self.capture is not None and CAPTURE not in kept:
            self.capture = None
        if self.capture is None:
            self.capture = self._candidate.take(CAPTURE)

    def release(self) -> None:
        """Let the next one lead at once."""
        try:
            if not self._conn.closed:
                self._conn.execute(_RELEASE, self._held())
        except psycopg.Error:
            pass  # the session has ended, or the catalog is gone: whoever looks for a leader sees that
        finally:
            self._conn.close()

    def _held(self) -> tuple[list[str], list[str], list[int]]:
        held = [self.fence] if self.capture is None else [self.fence, self.capture]
        return [each.role_name for each in held], [each.purpose for each in held], [each.epoch for each in held]


def acquire(
    dsn: str, instance: str, timeout_ms: int, stop: threading.Event, waiting: Callable[[str], None]
) -> Lease | None:
    """The lease of the login role, once no other service has it; None if told to stop before. The catalog is there.

    `waiting` is told for what, each time that changes.
    """
    conn = _connect(dsn)
    try:
        candidate = Candidate(conn, str(db.scalar(conn, "SELECT session_user")), instance, timeout_ms)
        told = None
        while True:
            fence = None
            obstacle = STANDBY if is_standby(conn) else ANOTHER
            if obstacle is not STANDBY:
                fence = candidate.take(SERVICE)
            if fence is not None:
                break
            if obstacle != told:
                waiting(obstacle)
                told = obstacle
            if stop.wait(ASK_AGAIN_S):
                conn.close()
                return None
        held = Lease(candidate, fence)
        held.beat()
        conn.execute(db.statement(f"LISTEN {WAKE_CHANNEL}"))
    except BaseException:
        conn.close()
        raise
    return held


def is_standby(conn: db.Connection) -> bool:
    return bool(db.scalar(conn, "SELECT pg_is_in_recovery()"))


def _connect(dsn: str) -> db.Connection:
    """A session that notices when the other side is gone, and is noticed when we are."""
    conn = db.connect(make_conninfo(dsn, **_CLIENT_KEEPALIVES), application_name="pgtrickle lease")
    try:
        conn.execute(db.statement(_SERVER_KEEPALIVES))
    except BaseException:
        conn.close()
        raise
    return conn
