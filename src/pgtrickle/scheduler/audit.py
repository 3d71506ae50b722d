"""The audit of the service: now and then a sample of one stream table is compared with its query (`audit_interval`).

    one row in `audit_sample`, by the hash of its text     the next audit of the table takes the next part
    they differ                                            all rows are compared: an alert, and it is computed anew

What a refresh cannot notice at a bearable price is found here: a table or its state changed by hand, changes removed
from a buffer, a fault of ours. It evaluates the whole query, once, within `audit_timeout`. Rows that only look
different (1.0, 1.00) are told of and left: PostgreSQL itself may show either. Off by default.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import NoReturn

import psycopg

from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import serving
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.errors import Error
from pgtrickle.refresh.idle import may_be_idle
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.verification.verify import Verification, sampled
from pgtrickle.scheduler.capture_loop import ALERT_CHANNEL
from pgtrickle.scheduler.events import say
from pgtrickle.scheduler.heartbeat import Activity, Busy

CODE = "PT352"


class Audit:
    """Audits of one database, one table at a time, each in its turn. Rounds are for one thread."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._refresher: Refresher | None = None
        self._next = 0.0
        self._last_id = 0
        self._turns: dict[int, int] = {}
        self._stopping = threading.Event()
        self._at: Busy | None = None
        self._paused = False

    @property
    def activity(self) -> Activity:
        return Activity(self._at, self._paused)

    @property
    def backend_pids(self) -> tuple[int, ...]:
        return () if self._refresher is None else self._refresher.backend_pids

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        if self._refresher is not None:
            self._refresher.close()

    def round(self, settings: Settings) -> bool:
        """One audit, if its time has come."""
        self._paused = not settings.enabled
        if self._paused or settings.audit_interval == 0 or time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + settings.audit_interval
        if self._refresher is None:
            self._refresher = Refresher(self._dsn, settings, _no_spark)
        stream = self._in_turn(self._refresher.connections().aside)
        if stream is not None and not self._stopping.is_set():
            self._at = Busy(f"comparing {stream} with its query", time.monotonic(), self.backend_pids)
            try:
                self._audit(self._refresher, stream, settings)
            finally:
                self._at = None
        return False

    def _in_turn(self, conn: Connection) -> StreamTable | None:
        """The stream table after the last one, of those of ours that should equal their queries at their snapshot."""
        ours = serving.served(conn)
        tables = (each for each in catalog.list_tables(conn) if each.pgt_id in ours and may_be_idle(each))
        ready = sorted(tables, key=lambda each: each.pgt_id)
        later = [each for each in ready if each.pgt_id > self._last_id]
        if not ready:
            return None
        found = (later or ready)[0]
        self._last_id = found.pgt_id
        return found

    def _audit(self, refresher: Refresher, stream: StreamTable, settings: Settings) -> None:
        turn = self._turns.get(stream.pgt_id, 0)
        self._turns[stream.pgt_id] = turn + 1
        share = (settings.audit_sample, turn % settings.audit_sample)
        connections = refresher.connections()
        try:
            found = sampled(connections, stream, share, settings.audit_timeout)
        except psycopg.errors.QueryCanceled:
            say("audit_too_long", logging.WARNING, table=str(stream), timeout_s=settings.audit_timeout)
            return
        except (Error, psycopg.Error) as error:
            if connections.reader.broken or connections.aside.broken:
                raise
            say("audit_impossible", logging.WARNING, table=str(stream), error=error)
            return
        if found is None:
            say("audit_put_off", table=str(stream))
        elif found.missing or found.extra:
            self._tell(connections.aside, stream, found, settings)
        else:
            say("audited", table=str(stream), share=f"{share[1] + 1}/{share[0]}", different_looks=found.different_looks)

    def _tell(self, conn: Connection, stream: StreamTable, found: Verification, settings: Settings) -> None:
        """The table shows it, history has it, whoever listens is told; the next refresh computes it anew."""
        reason = f"an audit found {found.missing} rows missing and {found.extra} too many"
        with conn.transaction():
            refresh_id = record.start_refresh(conn, stream.pgt_id, initiated_by="SCHEDULER").refresh_id
            record.finish_refresh(
                conn, refresh_id, status="FAILED", action=None, reason=None, error_code=CODE, error=reason
            )
            most = settings.max_consecutive_errors
            record.mark_failed(conn, stream.pgt_id, f"{CODE}: {reason}", max_consecutive_errors=most, counts=False)
            record.mark_reinit(conn, stream.pgt_id, reason)
            message = {
                "event": "audit_failed",
                "table": str(stream),
                "missing": found.missing,
                "extra": found.extra,
                "different_looks": found.different_looks,
            }
            conn.execute("SELECT pg_notify(%s, %s)", (ALERT_CHANNEL, json.dumps(message)))
        say("audit_failed", logging.ERROR, table=str(stream), missing=found.missing, extra=found.extra)


def _no_spark() -> NoReturn:
    raise AssertionError("an audit computes nothing with Spark")
