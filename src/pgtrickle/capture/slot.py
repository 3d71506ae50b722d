"""The one replication slot and the one publication of a database. Called by `handover.py`, the decoder, the service.

The publication comes before the slot: pgoutput looks it up as of each change it decodes, and up to PostgreSQL 17 fails
where it did not exist. Once made, a slot gives every transaction that commits after its consistent point, as a whole:
those running when its making began have ended before that point is reached, which is what making it waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from pgtrickle import slots
from pgtrickle.capture.modes import SlotState
from pgtrickle.errors import ServerError, StateError

PLUGIN: Final = "pgoutput"
GIVE_UP_AFTER_S: Final = 20.0
_LOCK: Final = (
    "LOCK TABLE pgtrickle_internal.pgt_slot_lock IN EXCLUSIVE MODE"  # one maker or dropper of the slot at a time
)


@dataclass(frozen=True, slots=True)
class Slot:
    """The slot as it is; `lag_bytes` is the WAL written since the position that the decoder confirmed, `retained_bytes`
    that since the oldest transaction still open then, which the server must keep."""

    name: str
    state: SlotState
    active_pid: int | None = None
    wal_status: str | None = None
    invalidation_reason: str | None = None
    restart_lsn: str | None = None
    confirmed_lsn: str | None = None
    retained_bytes: int = 0
    lag_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """The WAL that the slot holds back: a long open transaction makes it grow however quick the decoder is."""
        return max(self.lag_bytes, self.retained_bytes)


def name(conn: psycopg.Connection[Any]) -> str:
    """What this database's slot and publication are called."""
    row = conn.execute("SELECT pgtrickle_internal.slot_name()").fetchone()
    assert row is not None
    return str(row[0])


def inspect(conn: psycopg.Connection[Any]) -> Slot:
    """The slot, whether it is there or not."""
    row = conn.execute(
        "SELECT alive, active_pid, wal_status, invalidation_reason, restart_lsn::text, confirmed_flush_lsn::text,"
        " coalesce(retained_bytes, 0), coalesce(lag_bytes, 0) FROM pgtrickle_internal.pgt_slot"
    ).fetchone()
    if row is None:
        return Slot(name(conn), SlotState.ABSENT)
    return Slot(name(conn), SlotState.ALIVE if row[0] else SlotState.LOST, *row[1:])


def ensure(conn: psycopg.Connection[Any], *, give_up_after_s: float = GIVE_UP_AFTER_S) -> Slot:
    """Make the publication and the slot where they are missing; several transactions, so `conn` must be in none.

    Waits until every transaction running now has ended, as PostgreSQL does before a slot is usable; StateError PT355
    when that takes too long, and no slot is left behind. A lost slot is replaced, once no source counts on it.
    """
    assert conn.info.transaction_status == TransactionStatus.IDLE, "a slot is not made inside a transaction"
    with conn.transaction():
        conn.execute(_LOCK)
        slot = inspect(conn)
        published = _publication_is_there(conn)
        if slot.state is SlotState.ALIVE and published:
            return slot
        _require_unused(conn)
        if slot.state is not SlotState.ABSENT:
            _drop_slot(conn, slot)  # lost, or older than the publication that is to be made
        if not published:
            _create_publication(conn, slot.name)
    _create_slot(conn, slot.name, give_up_after_s)
    made = inspect(conn)
    conn.execute(
        "INSERT INTO pgtrickle.pgt_decoder (slot_name, publication, confirmed_lsn, status)"
        " VALUES (%s, %s, %s, 'STOPPED')"
        " ON CONFLICT (slot_name) DO UPDATE SET confirmed_lsn = excluded.confirmed_lsn, commit_lsn = NULL,"
        " status = 'STOPPED', error = NULL, updated_at = now()",
        (made.name, made.name, made.confirmed_lsn),
    )
    return inspect(conn)  # again: what the decoder of an earlier slot told is forgotten only now


def hold(conn: psycopg.Connection[Any]) -> Slot:
    """The slot, which stays until the caller's transaction ends: `drop_if_unused` leaves it alone meanwhile."""
    conn.execute("LOCK TABLE pgtrickle_internal.pgt_slot_lock IN SHARE MODE")
    return inspect(conn)


def drop_if_unused(conn: psycopg.Connection[Any]) -> bool:
    """Drop slot and publication if no source counts on them; returns whether they are gone.

    To be called outside of a transaction, after the one by which the last source left: a slot does not come back with
    a rollback. A decoder that is still connected is disconnected.
    """
    with conn.transaction():
        if not _is_free(conn) or is_used(conn):
            return False
        slot = inspect(conn)
        if slot.state is not SlotState.ABSENT:
            _drop_slot(conn, slot)
        conn.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(slot.name)))
        conn.execute("DELETE FROM pgtrickle.pgt_decoder WHERE slot_name = %s", (slot.name,))
        conn.execute("UPDATE pgtrickle.pgt_handovers SET lsn = NULL WHERE lsn IS NOT NULL")  # all were passed
        return True


def _is_free(conn: psycopg.Connection[Any]) -> bool:
    """Whether no one makes, drops or holds the slot; no one will until the caller's transaction ends."""
    try:
        with conn.transaction():
            conn.execute(f"{_LOCK} NOWAIT")
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def is_used(conn: psycopg.Connection[Any]) -> bool:
    """Whether rows that count are, or may still be, to come from the slot."""
    return bool(
        conn.execute(
            "SELECT FROM pgtrickle.pgt_change_tracking WHERE cdc_mode <> 'TRIGGER'"
            " OR source_relid IN (SELECT source_relid FROM pgtrickle_internal.pgt_draining) LIMIT 1"
        ).rowcount
    )


def _require_unused(conn: psycopg.Connection[Any]) -> None:
    if is_used(conn):
        raise StateError(
            "the replication slot or the publication is lost, and sources still count on it",
            code="PT356",
            hint="They go back to triggers first; then it is made again.",
        )


def _publication_is_there(conn: psycopg.Connection[Any]) -> bool:
    """Whether the publication exists and publishes what it should."""
    row = conn.execute(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot FROM pg_publication"
        " WHERE pubname = pgtrickle_internal.slot_name()"
    ).fetchone()
    return row is not None and bool(row[0])


def _create_publication(conn: psycopg.Connection[Any], publication: str) -> None:
    """Without tables yet. Partitions are published as their root. A stored generated column must be published (which
    it can be from 18 on): with REPLICA IDENTITY FULL, PostgreSQL would otherwise refuse the table's updates."""
    options = ["publish = 'insert, update, delete, truncate'", "publish_via_partition_root = true"]
    if conn.info.server_version >= 180000:
        options.append("publish_generated_columns = stored")
    identifier = sql.Identifier(publication)
    conn.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(identifier))
    conn.execute(sql.SQL("CREATE PUBLICATION {} WITH ({})").format(identifier, sql.SQL(", ".join(options))))


def _create_slot(conn: psycopg.Connection[Any], slot: str, give_up_after_s: float) -> None:
    try:
        with conn.transaction():
            conn.execute(_LOCK)
            if inspect(conn).state is SlotState.ALIVE:
                return  # made by another session meanwhile
            conn.execute("SELECT set_config('statement_timeout', %s, true)", (f"{round(give_up_after_s * 1000)}ms",))
            conn.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (slot, PLUGIN))
    except psycopg.errors.QueryCanceled as error:
        raise StateError(
            f"the replication slot could not be made within {give_up_after_s:g} s",
            code="PT355",
            hint="A transaction has been open all the time: PostgreSQL waits for it. End it, or wait.",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ServerError(
            f"this role may not make a replication slot: {error.diag.message_primary}",
            code="PT402",
            hint="ALTER ROLE … REPLICATION.",
        ) from error
    except (psycopg.errors.ConfigurationLimitExceeded, psycopg.errors.ObjectNotInPrerequisiteState) as error:
        raise StateError(
            f"the replication slot could not be made: {error.diag.message_primary}",
            code="PT357",
            hint=error.diag.message_hint,
        ) from error


def _drop_slot(conn: psycopg.Connection[Any], slot: Slot) -> None:
    try:
        slots.drop(conn, slot.name)
    except psycopg.errors.ObjectInUse as error:
        raise ServerError(
            f"the replication slot {slot.name} cannot be dropped: {error.diag.message_primary}",
            code="PT404",
            hint="Stop whoever reads it, then try again.",
        ) from error
