"""Brief locks on tables that others are writing to. Called by `triggers.py` before it changes anything.

A lock request that waits makes everyone after it wait too. So each try is short, takes all locks or none, and lets the
writers through in between: for longer after each try, so that a long transaction costs the others little.
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
    for pause in _pauses():
        try:
            with conn.transaction():
                _try_all(conn, requests)
                return
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            if time.monotonic() > deadline:
                names = ", ".join(request.table.as_string(conn) for request in requests)
                raise StateError(
                    f"could not lock {names} within {give_up_after_s:g} s",
                    code="PT326",
                    hint="A long transaction is writing to it: try again when it has ended.",
                ) from error
        time.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))


def _pauses() -> Iterator[float]:
    """How long to let the others through after each try; not always the same, lest two of us keep meeting."""
    for tries in itertools.count():
        longest = min(_FIRST_PAUSE_S * 2 ** min(tries, 10), _LONGEST_PAUSE_S)
        yield random.uniform(longest / 2, longest)  # noqa: S311 - spreads tries, hides nothing


def _try_all(conn: psycopg.Connection[Any], requests: Sequence[LockRequest]) -> None:
    before = conn.execute("SELECT current_setting('lock_timeout')").fetchone()
    conn.execute("SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_TIMEOUT_MS}ms",))
    for request in requests:
        nowait = sql.SQL("" if request.wait else " NOWAIT")
        conn.execute(sql.SQL("LOCK TABLE {} IN {} MODE{}").format(request.table, sql.SQL(request.mode), nowait))
    conn.execute("SELECT set_config('lock_timeout', %s, true)", before)
