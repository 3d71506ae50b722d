"""A change of a source's mode, as the catalog and the world see it. Called by `handover.py` and `triggers.py` within
the transaction that makes the change, under the source's lock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle.capture import buffer
from pgtrickle.capture.modes import LONGEST_PAUSE, CaptureMode, pause_after
from pgtrickle.errors import StateError

_READ_COMMITTED: Final = "read committed"
_MOST_TOLD: Final = 500
"""Characters of a reason in a NOTIFY, whose payload must be shorter than 8000 bytes, of which JSON takes up to 12 for
one character. The catalog has the whole reason."""


def mode_of(conn: psycopg.Connection[Any], source_oid: int) -> CaptureMode | None:
    """The source's mode, or None if it is not captured; locked against other changes until the transaction ends."""
    row = conn.execute(
        "SELECT cdc_mode FROM pgtrickle.pgt_change_tracking WHERE source_relid = %s FOR UPDATE", (source_oid,)
    ).fetchone()
    return None if row is None else CaptureMode(row[0])


def hand_over(conn: psycopg.Connection[Any], source_oid: int, side: str, *, drain: bool = False) -> str:
    """Record that `side` counts for all transactions not visible in this moment's snapshot, which is returned.

    The caller holds SHARE ROW EXCLUSIVE on the source, so no transaction has written to it and is still open: each
    one's changes lie wholly before this moment, or wholly after the caller's commit. `drain`: decoded rows that count
    may still be to come, all of them from before this moment's end of the WAL.
    """
    row = conn.execute("SELECT current_setting('transaction_isolation')").fetchone()
    assert row is not None
    assert row[0] == _READ_COMMITTED, "an older snapshot than the lock would divide transactions wrongly"
    row = conn.execute(
        "INSERT INTO pgtrickle.pgt_handovers (source_relid, at, side, lsn)"
        " VALUES (%s, pg_current_snapshot(), %s, CASE WHEN %s THEN pg_current_wal_insert_lsn() END) RETURNING at::text",
        (source_oid, side, drain),
    ).fetchone()
    assert row is not None, "INSERT … RETURNING gives a row"
    return str(row[0])


def record(
    conn: psycopg.Connection[Any], source_oid: int, new: CaptureMode, reason: str, *, event: str, failed: bool = False
) -> None:
    """Write the new mode wherever it stands, add it to the history, and notify both channels.

    A failure lengthens the pause before WAL is tried again, unless the last one is long ago.
    """
    row = conn.execute(
        "SELECT k.cdc_mode, k.failures, clock_timestamp() - k.mode_since, clock_timestamp(),"
        " pgtrickle_internal.slot_name(),"
        " coalesce((SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname) FROM pg_class AS c"
        "   JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = k.source_relid), k.source_relid::text)"
        " FROM pgtrickle.pgt_change_tracking AS k WHERE k.source_relid = %s FOR UPDATE",
        (source_oid,),
    ).fetchone()
    if row is None:
        raise StateError("the source is no longer captured", code="PT353", hint="No stream table needs it any more.")
    old, failures, lasted, now, slot, table = row
    failures = (1 if old == CaptureMode.WAL and lasted > LONGEST_PAUSE else failures + 1) if failed else failures
    next_try: datetime | None = now + pause_after(failures) if failed else None
    if not failed and new is CaptureMode.TRIGGER:
        failures = 0
    conn.execute(
        "UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = %s, mode_since = clock_timestamp(), failures = %s,"
        " next_try_at = %s, last_error = CASE WHEN %s THEN %s END,"
        " transition_started_at = CASE WHEN %s THEN clock_timestamp() END,"
        " membership = CASE WHEN %s THEN membership END WHERE source_relid = %s",
        (
            new,
            failures,
            next_try,
            failed,
            reason,
            new is CaptureMode.TRANSITIONING,
            new is not CaptureMode.TRIGGER,
            source_oid,
        ),
    )
    follow(conn, [source_oid])
    # The decoder records how far it is when it meets this: then what waits for the handover's position need not guess.
    conn.execute("SELECT pg_logical_emit_message(true, 'pgtrickle', %s)", (f"{table}: {old} to {new}",))
    slot_name = None if old == new == CaptureMode.TRIGGER else slot
    conn.execute(
        "INSERT INTO pgtrickle.pgt_cdc_history (source_relid, source_table, old_mode, new_mode, slot_name, reason)"
        " VALUES (%s, %s, %s, %s, %s, %s)",
        (source_oid, table, old, new, slot_name, reason),
    )
    message = {"source_table": table, "old_mode": old, "new_mode": new, "slot_name": slot_name, "reason": _told(reason)}
    conn.execute(
        "SELECT pg_notify('pg_trickle_cdc_transition', %s), pg_notify('pg_trickle_alert', %s)",
        (json.dumps(message), json.dumps({"event": event, **message})),
    )


def postpone(conn: psycopg.Connection[Any], source_oid: int, reason: str) -> None:
    """A transition could not even start: the next try comes after a pause, as if it had been abandoned."""
    row = conn.execute(
        "UPDATE pgtrickle.pgt_change_tracking SET failures = failures + 1, last_error = %s WHERE source_relid = %s"
        " RETURNING failures, clock_timestamp(), source_relid::regclass::text",
        (reason, source_oid),
    ).fetchone()
    if row is None:
        return
    failures, now, table = row
    conn.execute(
        "UPDATE pgtrickle.pgt_change_tracking SET next_try_at = %s WHERE source_relid = %s",
        (now + pause_after(failures), source_oid),
    )
    message = {"event": "cdc_transition_failed", "source_table": table, "reason": _told(reason)}
    conn.execute("SELECT pg_notify('pg_trickle_alert', %s)", (json.dumps(message),))


def follow(conn: psycopg.Connection[Any], source_oids: list[int]) -> None:
    """Let pgt_dependencies show the mode that its sources have."""
    conn.execute(
        "UPDATE pgtrickle.pgt_dependencies AS d SET cdc_mode = k.cdc_mode,"
        " slot_name = CASE WHEN k.cdc_mode <> 'TRIGGER' THEN pgtrickle_internal.slot_name() END,"
        " decoder_confirmed_lsn = CASE WHEN k.cdc_mode <> 'TRIGGER' THEN d.decoder_confirmed_lsn END,"
        " transition_started_at = k.transition_started_at"
        " FROM pgtrickle.pgt_change_tracking AS k WHERE k.source_relid = d.source_relid"
        " AND k.source_relid = ANY(%s::oid[]) AND d.cdc_mode IS NOT NULL"
        " AND (d.cdc_mode, d.transition_started_at) IS DISTINCT FROM (k.cdc_mode, k.transition_started_at)",
        (source_oids,),
    )


def to_triggers(
    conn: psycopg.Connection[Any], source_oid: int, reason: str, *, failed: bool = False, lossy: bool = False
) -> str:
    """The WAL side ends here: the triggers, which the caller has just armed, count from now on. Returns the snapshot.

    `lossy`: what the WAL side had still to give will not come. A T row makes every dependent compute anew, whatever
    snapshot it is at; that the reason shows, they are marked as well.
    """
    at = hand_over(conn, source_oid, "T", drain=not lossy)
    unpublish(conn, source_oid)
    if lossy:
        lose(conn, source_oid, reason)
    record(
        conn,
        source_oid,
        CaptureMode.TRIGGER,
        reason,
        event="cdc_fallback" if failed else "cdc_transition_complete",
        failed=failed,
    )
    return at


def lose(conn: psycopg.Connection[Any], source_oid: int, reason: str) -> None:
    """Decoded rows that count are lost: no one waits for them, and the dependents compute anew."""
    await_no_more(conn, source_oid)
    buffer.mark(conn, source_oid)
    marked = conn.execute(
        "UPDATE pgtrickle.pgt_stream_tables AS t SET needs_reinit = true, reinit_reason = %s, updated_at = now()"
        " FROM pgtrickle.pgt_dependencies AS d WHERE d.pgt_id = t.pgt_id AND d.source_relid = %s"
        " AND t.effective_mode = 'DIFFERENTIAL' RETURNING pg_catalog.format('%%I.%%I', t.pgt_schema, t.pgt_name)",
        (f"changes of a source were lost: {reason}", source_oid),
    ).fetchall()
    for (table,) in marked:
        message = {"event": "reinitialize_needed", "table": table, "reason": _told(reason)}
        conn.execute("SELECT pg_notify('pg_trickle_alert', %s)", (json.dumps(message),))


def await_no_more(conn: psycopg.Connection[Any], source_oid: int) -> None:
    """Decoded rows of the source that have not come yet are not waited for."""
    conn.execute(
        "UPDATE pgtrickle.pgt_handovers SET lsn = NULL WHERE source_relid = %s AND lsn IS NOT NULL", (source_oid,)
    )


def publish(conn: psycopg.Connection[Any], source_oid: int) -> None:
    """Add the source to the publication, and remember by which rows of the catalog it is (see pgt_published).

    The caller holds SHARE ROW EXCLUSIVE on the source. PostgreSQL asks for less, but then a transaction that has
    already written to it would be decoded with the old list of tables, and older servers would keep that list for
    later transactions too.
    """
    if _membership(conn, source_oid) is None:
        conn.execute(
            sql.SQL("ALTER PUBLICATION {} ADD TABLE ONLY {}").format(*_publication_and_table(conn, source_oid))
        )
    conn.execute(
        "UPDATE pgtrickle.pgt_change_tracking SET membership = %s, publication_xmin = (SELECT xmin FROM pg_publication"
        " WHERE pubname = pgtrickle_internal.slot_name()), transition_lsn = pg_current_wal_insert_lsn(),"
        " refused_lsn = NULL WHERE source_relid = %s",
        (_membership(conn, source_oid), source_oid),
    )


def unpublish(conn: psycopg.Connection[Any], source_oid: int) -> None:
    """Take the source out of the publication, if it is in. What was committed before is still decoded as published."""
    if _membership(conn, source_oid) is not None:
        conn.execute(
            sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}").format(*_publication_and_table(conn, source_oid))
        )


def is_published(conn: psycopg.Connection[Any], source_oid: int) -> bool:
    """Whether the source has been in the publication ever since `publish`, and all its changes were told."""
    found = conn.execute("SELECT FROM pgtrickle_internal.pgt_published WHERE source_relid = %s", (source_oid,))
    return bool(found.rowcount)


def set_identity(conn: psycopg.Connection[Any], source_oid: int, tables: Sequence[int]) -> None:
    """Make the replica identity of `tables` FULL, remembering what it was. They are locked ACCESS EXCLUSIVE."""
    for oid in tables:
        row = conn.execute(
            "SELECT n.nspname, c.relname, c.relreplident, (SELECT i.relname FROM pg_index AS x"
            " JOIN pg_class AS i ON i.oid = x.indexrelid WHERE x.indrelid = c.oid AND x.indisreplident)"
            " FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s",
            (oid,),
        ).fetchone()
        assert row is not None, "the caller has locked it"
        schema, table, identity, index = row
        before = {"d": sql.SQL("DEFAULT"), "n": sql.SQL("NOTHING")}.get(identity) or (
            sql.SQL("USING INDEX {}").format(sql.Identifier(index)) if index is not None else sql.SQL("DEFAULT")
        )
        conn.execute(sql.SQL("ALTER TABLE ONLY {} REPLICA IDENTITY FULL").format(sql.Identifier(schema, table)))
        conn.execute(
            "UPDATE pgtrickle.pgt_change_tracking"
            " SET identity_before = identity_before || jsonb_build_object(%s::text, %s::text) WHERE source_relid = %s",
            (oid, before.as_string(conn), source_oid),
        )


def restore_identity(conn: psycopg.Connection[Any], source_oid: int) -> None:
    """Put back the replica identities that we replaced, where no one has changed them since. Locks ACCESS EXCLUSIVE."""
    for schema, table, before in conn.execute(
        "SELECT n.nspname, c.relname, b.value FROM pgtrickle.pgt_change_tracking AS k"
        " CROSS JOIN jsonb_each_text(k.identity_before) AS b JOIN pg_class AS c ON c.oid = b.key::oid"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE k.source_relid = %s AND c.relreplident = 'f' ORDER BY c.oid",
        (source_oid,),
    ).fetchall():
        try:
            with conn.transaction():
                conn.execute(
                    sql.SQL("ALTER TABLE ONLY {} REPLICA IDENTITY {}").format(
                        sql.Identifier(schema, table), sql.SQL(before)
                    )
                )
        except psycopg.errors.UndefinedObject:
            pass  # the index it was is gone: FULL stays
    conn.execute(
        "UPDATE pgtrickle.pgt_change_tracking SET identity_before = '{}' WHERE source_relid = %s", (source_oid,)
    )


def _told(reason: str) -> str:
    return reason if len(reason) <= _MOST_TOLD else f"{reason[:_MOST_TOLD]}…"


def _membership(conn: psycopg.Connection[Any], source_oid: int) -> int | None:
    row = conn.execute(
        "SELECT r.oid FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid"
        " WHERE p.pubname = pgtrickle_internal.slot_name() AND r.prrelid = %s",
        (source_oid,),
    ).fetchone()
    return None if row is None else int(row[0])


def _publication_and_table(conn: psycopg.Connection[Any], source_oid: int) -> tuple[sql.Identifier, sql.Identifier]:
    row = conn.execute(
        "SELECT pgtrickle_internal.slot_name(), n.nspname, c.relname FROM pg_class AS c"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (source_oid,),
    ).fetchone()
    assert row is not None, "the caller has locked it"
    return sql.Identifier(row[0]), sql.Identifier(row[1], row[2])
