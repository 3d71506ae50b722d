"""Takes a stream table into IMMEDIATE mode, and out of it again, without computing it again.

    into:    lock the sources against writers  →  refresh  →  functions and triggers  →  no more capture  →  commit
    out of:  lock the sources against writers  →  capture  →  frontier = now  →  no more of ours  →  commit

What is kept in state is the same in both modes, and before and after each commit every change is either in the table or
in a buffer. Called after a refresh (`refresh/loop.py`), and when the mode is altered (`api.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from psycopg import sql

from pgtrickle import db
from pgtrickle.capture import triggers
from pgtrickle.capture.locks import LockRequest, lock_all
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import serving
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.model import Table
from pgtrickle.refresh.immediate import install
from pgtrickle.refresh.lock import wait_for_refresh
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.tick import now


def is_due(stream: StreamTable | None) -> bool:
    """Whether a table is to be in IMMEDIATE mode, could be, and is not."""
    if stream is None or stream.refresh_mode != "IMMEDIATE" or stream.effective_mode != "DIFFERENTIAL":
        return False
    return stream.is_populated and not stream.needs_reinit and stream.status == "ACTIVE"


def into(refresher: Refresher, pgt_id: int, refresh: Callable[[], object]) -> None:
    """Takes the table into IMMEDIATE mode, if it is due. `refresh` brings it up to date in other sessions, and commits
    before anything here does: whatever ends this leaves a table that is maintained as before."""
    with db.connect(refresher.dsn, application_name="pgtrickle switch") as connection, connection.transaction():
        stream = catalog.by_id(connection, pgt_id)
        if stream is None or not is_due(stream):
            return
        prepared = refresher.prepared(stream)
        _lock(connection, prepared.sources)
        refresh()
        wait_for_refresh(connection, pgt_id, str(stream))
        refreshed = catalog.by_id(connection, pgt_id)
        if refreshed is None or not is_due(refreshed) or refresher.prepared(refreshed) is not prepared:
            return  # it was altered meanwhile: the next refresh tries again
        serving.require(connection, refreshed)
        install.create(connection, refreshed, prepared, refresher.settings)
        record.set_mode(connection, pgt_id, refreshed.refresh_mode, "IMMEDIATE")
        triggers.detach_all(connection, [table.oid for table in prepared.sources])
        refresher.hold_fence(connection)


def out_of(connection: Connection, stream: StreamTable, refresh_mode: str, settings: Settings) -> None:
    """In the caller's transaction: from now on the sources are captured for the table."""
    wait_for_refresh(connection, stream.pgt_id, str(stream))
    wanted = {
        Table(each.source_relid, each.source_schema, each.source_name): each.columns_used
        for each in catalog.dependencies(connection, stream.pgt_id)
    }
    _lock(connection, wanted)
    triggers.attach_all(connection, wanted, trigger_mode=settings.cdc_trigger_mode)  # first: it has missed nothing yet
    record.set_mode(connection, stream.pgt_id, refresh_mode, "DIFFERENTIAL")
    install.remove(connection, stream.pgt_id)
    moment = now(connection)
    record.set_frontier(connection, stream.pgt_id, moment.snapshot, moment.at)


def _lock(connection: Connection, sources: Collection[Table]) -> None:
    """SHARE ROW EXCLUSIVE: who writes is waited for, and waits; readers, and a refresh, do not."""
    tables = sorted(sources, key=lambda table: table.oid)
    lock_all(
        connection,
        [LockRequest(sql.Identifier(table.schema, table.name), "SHARE ROW EXCLUSIVE") for table in tables],
    )
