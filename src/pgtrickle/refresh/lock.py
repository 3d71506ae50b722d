"""One refresh, or one change of definition, of a stream table at a time: an advisory lock for each.

A refresh takes it for its session and is skipped when it cannot; whoever changes the definition waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psycopg

from pgtrickle.db import Connection
from pgtrickle.errors import StateError

_CLASS = 0x7067_7472  # "pgtr": first key of every stream table's lock
_PATIENCE = "60s"
_AGAIN_S = 0.02
PATIENCE_S = 0.5
"""Of one who asks for a refresh: the service holds the locks of tables that have nothing to do for a moment."""


@contextmanager
def refresh_lock(connection: Connection, pgt_id: int, patience_s: float = 0.0) -> Iterator[bool]:
    """The stream table's lock for this session; false if another session has it, and keeps it for that long."""
    deadline = time.monotonic() + patience_s
    while not _try_lock(connection, pgt_id):
        if time.monotonic() > deadline:
            yield False
            return
        time.sleep(_AGAIN_S)
    try:
        yield True
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_catalog.pg_advisory_unlock(%s, %s)", (_CLASS, pgt_id))


def _try_lock(connection: Connection, pgt_id: int) -> bool:
    row = connection.execute("SELECT pg_catalog.pg_try_advisory_lock(%s, %s)", (_CLASS, pgt_id)).fetchone()
    assert row is not None
    return bool(row[0])


@contextmanager
def refresh_locks(connection: Connection, pgt_ids: Sequence[int], patience_s: float = 0.0) -> Iterator[bool]:
    """Those of several stream tables; false if another session has one of them, and keeps it for that long."""
    with ExitStack() as held:
        yield all(held.enter_context(refresh_lock(connection, pgt_id, patience_s)) for pgt_id in sorted(pgt_ids))


def lock_free(connection: Connection, pgt_ids: Sequence[int]) -> frozenset[int]:
    """The same locks, of those of the stream tables that no other session has, for the caller's transaction."""
    found = connection.execute(
        "SELECT pgt_id FROM unnest(%s::bigint[]) AS pgt_id WHERE pg_try_advisory_xact_lock(%s, pgt_id::integer)",
        (sorted(pgt_ids), _CLASS),
    )
    return frozenset(int(str(pgt_id)) for (pgt_id,) in found)


def wait_for_refresh(connection: Connection, pgt_id: int, name: str) -> None:
    """The same lock for the caller's transaction, once a refresh under way is done."""
    try:
        with connection.transaction():
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (_PATIENCE,))
            connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s, %s)", (_CLASS, pgt_id))
            connection.execute("SELECT set_config('lock_timeout', '0', true)")
    except psycopg.errors.LockNotAvailable as error:
        raise StateError(
            f"a refresh of {name} is under way", code="PT327", hint="try again when it is done (pgtrickle history)"
        ) from error
