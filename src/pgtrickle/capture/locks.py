"""Brief locks on tables that others are writing to. Called by `triggers.py` before it changes anything.

A lock request that waits makes everyone after it wait too. So each try is short, takes all locks or none, and lets the
writers through in between: for longer after each try, so that a long transaction costs the others little.

Autovacuum makes way for whoever waits, but only after deadlock_timeout. So where nothing else is in the way for long,
one try waits as long as that.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle.errors import StateError

LOCK_TIMEOUT_MS: Final = 250
GIVE_UP_AFTER_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.5
_LONGEST_TRY_MS: Final = 3000
_ONLY_AUTOVACUUM: Final = """
    WITH RECURSIVE tables AS (
        SELECT to_regclass(name)::oid AS oid FROM unnest(%(tables)s::text[]) AS name
        UNION SELECT i.inhrelid FROM pg_inherits AS i JOIN tables AS t ON t.oid = i.inhparent
    )
    SELECT bool_or(a.backend_type = 'autovacuum worker') AND bool_and(
               a.backend_type = 'autovacuum worker'
               OR a.xact_start > clock_timestamp() - %(recent)s::bigint * interval '1 millisecond'),
           (SELECT setting::bigint FROM pg_settings WHERE name = 'deadlock_timeout')
    FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'relation' AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
      AND l.relation IN (SELECT t.oid FROM tables AS t) AND (l.mode <> 'AccessShareLock' OR %(readers)s)"""
"""Whether autovacuum is at the tables, and whoever else is has only just come; and deadlock_timeout. A role that may
not see others' sessions sees no autovacuum."""


@dataclass(frozen=True, slots=True)
class LockRequest:
    """One table to lock. `wait` false asks for it only if it is free at once: for a table that long readers use."""

    table: sql.Identifier
    mode: str
    wait: bool = True


def lock_all(
    conn: psycopg.Connection[Any], requests: Sequence[LockRequest], *, give_up_after_s: float = GIVE_UP_AFTER_S
) -> None:
    """Take all the locks in the caller's transaction, or raise StateError PT326 when that fails for too long."""
    deadline = time.monotonic() + give_up_after_s
    patience_ms, was_patient = LOCK_TIMEOUT_MS, False
    for pause in _pauses():
        try:
            with conn.transaction():
                _try_all(conn, requests, patience_ms)
                return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if time.monotonic() > deadline:
                names = ", ".join(request.table.as_string(conn) for request in requests)
                raise StateError(
                    f"could not lock {names} within {give_up_after_s:g} s",
                    code="PT326",
                    hint="A long transaction or a vacuum uses it (pg_locks tells which): try again when it has ended.",
                ) from error
        patience_ms = LOCK_TIMEOUT_MS if was_patient else _patience_ms(conn, requests)
        if patience_ms > LOCK_TIMEOUT_MS:
            was_patient = True
            continue
        time.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))


def _patience_ms(conn: psycopg.Connection[Any], requests: Sequence[LockRequest]) -> int:
    """How long the next try may wait for a lock."""
    tables = [request.table.as_string(conn) for request in requests]
    readers = any(request.mode == "ACCESS EXCLUSIVE" for request in requests)  # whether they too are in the way
    given = {"tables": tables, "recent": LOCK_TIMEOUT_MS, "readers": readers}
    conn.execute("SELECT pg_stat_clear_snapshot()")  # a transaction sees the sessions as when it first looked
    row = conn.execute(_ONLY_AUTOVACUUM, given).fetchone()
    assert row is not None
    only_autovacuum, deadlock_timeout_ms = row
    long_ms = int(deadlock_timeout_ms) + LOCK_TIMEOUT_MS
    return long_ms if only_autovacuum and long_ms <= _LONGEST_TRY_MS else LOCK_TIMEOUT_MS


def _pauses() -> Iterator[float]:
    """How long to let the others through after each try; not always the same, lest two of us keep meeting."""
    for tries in itertools.count():
        longest = min(_FIRST_PAUSE_S * 2 ** min(tries, 10), _LONGEST_PAUSE_S)
        yield random.uniform(longest / 2, longest)  # noqa: S311 - spreads tries, hides nothing


def _try_all(conn: psycopg.Connection[Any], requests: Sequence[LockRequest], patience_ms: int) -> None:
    before = conn.execute("SELECT current_setting('lock_timeout')").fetchone()
    conn.execute("SELECT set_config('lock_timeout', %s, true)", (f"{patience_ms}ms",))
    for request in requests:
        nowait = sql.SQL("" if request.wait or patience_ms > LOCK_TIMEOUT_MS else " NOWAIT")
        conn.execute(sql.SQL("LOCK TABLE {} IN {} MODE{}").format(request.table, sql.SQL(request.mode), nowait))
    conn.execute("SELECT set_config('lock_timeout', %s, true)", before)
