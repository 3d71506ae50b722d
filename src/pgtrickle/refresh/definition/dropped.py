"""Takes up what became of stream tables by plain SQL: the names that they have now, and those that were dropped.

A look, by the service in each round, and by whoever asks for status, verifies or refreshes. What belonged to a stream
table whose table is gone is removed, and those that read it say so. No look waits long for anyone: what is in use is
left to the next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import psycopg

from pgtrickle.apply import staging_tables, state, storage
from pgtrickle.capture import slot, triggers
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.errors import StateError
from pgtrickle.refresh.lock import lock_free

_PATIENCE_S = 1.0
_NEVER = 1 << 30


@dataclass(frozen=True, slots=True)
class Removed:
    """The stream tables that were removed, by name, and what could not be removed yet, each with the reason."""

    tables: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def look(connection: Connection) -> Removed:
    """Puts the catalog right, if this role may; returns what was removed. Not to be called in a transaction."""
    if not _anything_to_do(connection):
        return Removed()
    record.follow_names(connection)
    removed, left = list[str](), list[str]()
    for stream in catalog.dropped(connection):
        try:
            if _remove(connection, stream):
                removed.append(str(stream))
        except psycopg.Error as error:  # one that cannot be removed now holds up no other, nor who looks
            if connection.broken:
                raise
            left.append(f"{stream}: {error.diag.message_primary}")
    unused = catalog.unused_sources(connection)
    if unused and (reason := _stop_capture(connection, unused)) is not None:
        left.append(reason)
    return Removed(tuple(removed), tuple(left))


def _anything_to_do(connection: Connection) -> bool:
    """Whether a name has changed, a table is gone or a source unused; in one statement, since nearly every look finds
    nothing. Only for whoever has the rights of the catalog's owner, under which all of ours was made; and where it was
    made: of a catalog that was restored from a dump, nothing can be told by oid."""
    row = connection.execute(
        "SELECT EXISTS (SELECT FROM pgtrickle.pgt_present AS p JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
        "   WHERE NOT p.is_restored"
        "     AND (NOT p.is_there OR (t.pgt_schema, t.pgt_name) <> (p.pgt_schema, p.pgt_name)))"
        f" OR EXISTS ({catalog.UNUSED_SOURCES})"
        " FROM pg_catalog.pg_namespace AS n"
        " WHERE n.nspname = 'pgtrickle' AND pg_has_role(n.nspowner, 'USAGE') AND pgtrickle_internal.catalog_is_here()"
    ).fetchone()
    return row is not None and bool(row[0])


def _remove(connection: Connection, stream: StreamTable) -> bool:
    """Whether it was removed: one that is being refreshed is left to the next look."""
    with connection.transaction():
        again = catalog.by_id(connection, stream.pgt_id) if lock_free(connection, [stream.pgt_id]) else None
        if again is None or again.owner is not None:
            return False
        told = record.was_told(connection, again.pgt_id, again.pgt_relid)
        for reader in catalog.consumers_of(connection, again.pgt_relid):
            if reader.pgt_id != again.pgt_id:
                _break(connection, reader, again)
        record.unregister(connection, again.pgt_id)
        staging_tables.drop_orphans(connection, again.pgt_id)
        state.drop(connection, again.pgt_id)
        if not told:
            _alert(connection, again)
    return True


def _break(connection: Connection, reader: StreamTable, gone: StreamTable) -> None:
    """One that reads a stream table that was dropped: in error, until it is altered or dropped."""
    error = storage.dropped(f"{gone}, which it reads,")
    record.mark_reinit(connection, reader.pgt_id, error.message)
    record.mark_failed(connection, reader.pgt_id, str(error), max_consecutive_errors=_NEVER, broken=True, counts=False)


def _stop_capture(connection: Connection, sources: tuple[int, ...]) -> str | None:
    """Why not all of it could be stopped now, if so."""
    try:
        triggers.detach_all(connection, sources, give_up_after_s=_PATIENCE_S)
    except StateError as busy:  # someone uses a source: the next look tries again
        return busy.message
    except psycopg.errors.InsufficientPrivilege as denied:  # the look of a role that owns it will do
        return denied.diag.message_primary
    slot.drop_if_unused(connection)
    return None


def _alert(connection: Connection, gone: StreamTable) -> None:
    reason = f"the stream table {gone} was dropped"
    message = {"event": "stream_table_dropped", "table": str(gone), "status": "ERROR", "reason": reason}
    connection.execute("SELECT pg_notify('pg_trickle_alert', %s)", (json.dumps(message),))
