"""One refresh, or one change of definition, of a stream table at a time: a row of ours for each (`pgt_refresh_locks`).

A refresh holds it in a transaction of a session of its own, since it commits in the others, and is skipped when it
cannot; whoever changes the definition waits for it, in the transaction that does. Only roles with the catalog's rights
can lock these rows. The lock goes with its session, so a refresh that was killed leaves none behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import psycopg

from pgtrickle.db import Connection
from pgtrickle.errors import StateError

_PATIENCE = "60s"
PATIENCE_S = 0.5
"""Of one who asks for a refresh: the service holds the locks of tables that have nothing to do for a moment."""
_LOCK = "SELECT pgt_id FROM pgtrickle_internal.pgt_refresh_locks WHERE pgt_id = ANY(%s) ORDER BY pgt_id FOR UPDATE"


@contextmanager
def refresh_locks(connection: Connection, pgt_ids: Sequence[int], patience_s: float = 0.0) -> Iterator[bool]:
    """Those of several stream tables; false if another session has one of them, and keeps it for that long. They are
    held by a transaction that is open until the end: the connection is for nothing else meanwhile."""
    connection.execute("BEGIN")
    try:
        yield _lock_all(connection, pgt_ids, patience_s)
    finally:
        if not connection.closed:
            with suppress(psycopg.OperationalError):  # the session has ended, and the locks with it
                connection.execute("ROLLBACK")


def _lock_all(connection: Connection, pgt_ids: Sequence[int], patience_s: float) -> bool:
    """Whether all are ours now. A stream table without a row was dropped: there is nothing to wait for."""
    try:
        with connection.transaction():
            connection.execute(
                "SELECT set_config('lock_timeout', %s, true)", (f"{max(round(patience_s * 1000), 1)}ms",)
            )
            connection.execute(f"{_LOCK}{'' if patience_s else ' NOWAIT'}", (list(pgt_ids),))
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def lock_free(connection: Connection, pgt_ids: Sequence[int]) -> frozenset[int]:
    """The same locks, of those of the stream tables that no other session has, for the caller's transaction; a stream
    table that was dropped is free."""
    found = connection.execute(f"{_LOCK} SKIP LOCKED", (list(pgt_ids),)).fetchall()
    known = connection.execute(
        "SELECT pgt_id FROM pgtrickle_internal.pgt_refresh_locks WHERE pgt_id = ANY(%s)", (list(pgt_ids),)
    ).fetchall()
    held_by_others = {pgt_id for (pgt_id,) in known} - {pgt_id for (pgt_id,) in found}
    return frozenset(pgt_ids) - frozenset(int(str(pgt_id)) for pgt_id in held_by_others)


def wait_for_refresh(connection: Connection, pgt_id: int, name: str) -> None:
    """The same lock for the caller's transaction, once a refresh under way is done."""
    try:
        with connection.transaction():
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (_PATIENCE,))
            connection.execute(_LOCK, ([pgt_id],))
            connection.execute("SELECT set_config('lock_timeout', '0', true)")
    except psycopg.errors.LockNotAvailable as error:
        raise under_way(name) from error


def under_way(name: str) -> StateError:
    """The error for who cannot do with another refresh meanwhile."""
    hint = "try again when it is done (pgtrickle history)"
    return StateError(f"a refresh of {name} is under way", code="PT327", hint=hint)
