"""The refresh side of the service: in each round the stream tables that are due are refreshed, upstream first.

One after the other, through one `Refresher`, which records what became of each. A failed one is tried again when it is
next due, or suspended after too many failures; the others go on.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from typing import TYPE_CHECKING

from pgtrickle import db
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.errors import Error
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.run import Refresher
from pgtrickle.scheduler import dag
from pgtrickle.scheduler.dag import Dag
from pgtrickle.scheduler.due import is_due
from pgtrickle.scheduler.events import say, trouble

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Refreshes:
    """Refreshes of one database. Its rounds are for one thread; the rest may be asked for by another."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._settings = Settings()
        self._refresher = Refresher(dsn, self._settings, self._session)
        self._dag: Dag | None = None
        self._tried: dict[int, datetime] = {}
        self._stop = threading.Event()
        self.backend_pids: tuple[int, ...] = ()

    def round(self, settings: Settings) -> bool:
        """Refresh what is due, each once."""
        self._settings = self._refresher.settings = settings
        connections = self._refresher.connections()
        self.backend_pids = tuple(connection.info.backend_pid for connection in connections)
        self._dag = dag.read(connections.aside, self._dag)
        streams = {stream.pgt_id: stream for stream in catalog.list_tables(connections.aside)}
        now = _now(connections.aside)
        least = settings.min_schedule_seconds
        due = [
            pgt_id
            for pgt_id, stream in streams.items()
            if pgt_id in self._dag.tables
            and _runs(stream)
            and is_due(stream.schedule, self._last(stream), now, min_seconds=least)
        ]
        for pgt_id in self._dag.order(self._dag.needed(due)):
            if self._stop.is_set():
                break
            if pgt_id in streams and _runs(streams[pgt_id]):
                self._refresh(streams[pgt_id], now)
        return False

    def stop(self) -> None:
        """Begin no further refresh."""
        self._stop.set()

    def close(self) -> None:
        self._refresher.close()

    def _last(self, stream: StreamTable) -> datetime | None:
        """Since when the table has not been tried: it is as old as its data, or as the last failure."""
        known = [moment for moment in (stream.data_timestamp, self._tried.get(stream.pgt_id)) if moment is not None]
        return max(known, default=None)

    def _refresh(self, stream: StreamTable, now: datetime) -> None:
        try:
            result = self._refresher.refresh(stream.pgt_id, initiated_by="SCHEDULER")
        except Error as error:
            self._tried[stream.pgt_id] = now
            say("refresh_failed", logging.WARNING, table=str(stream), error=error)
        except Exception as error:  # noqa: BLE001 - the other tables are none the worse for it; the log has it all
            self._tried[stream.pgt_id] = now
            trouble("refresh_failed", error, table=str(stream))
        else:
            self._tried.pop(stream.pgt_id, None)
            if result.action is not Action.NO_DATA:
                say(
                    "refreshed",
                    table=str(stream),
                    action=str(result.action),
                    reason=result.reason,
                    rows_inserted=result.rows_inserted,
                    rows_deleted=result.rows_deleted,
                    duration_ms=round(result.duration_ms),
                    phases={name: round(ms) for name, ms in result.phases.items()},
                )

    def _session(self) -> SparkSession:
        from pgtrickle.spark import session  # here: with nothing to do, Spark is not loaded

        return session.session(self._settings.spark_master)


def _runs(stream: StreamTable) -> bool:
    """Whether the service refreshes it. Who creates a table also fills it, or says that it is to stay empty."""
    return stream.is_populated and stream.status != "SUSPENDED"


def _now(conn: db.Connection) -> datetime:
    now = db.scalar(conn, "SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now
