"""What goes on in a database: its stream tables, what they read, the service. For `pgtrickle top` and the dashboard.

Read from the catalog in a few statements, so it is the same whoever asks, and cheap enough to be asked every second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from pgtrickle.catalog import health, reader
from pgtrickle.catalog.health import Check, SlotHealth
from pgtrickle.catalog.reader import CdcStatus
from pgtrickle.record import Record

_TABLES = """
SELECT t.pgt_id, t.pgt_relid::bigint, p.pgt_schema, p.pgt_name,
       p.pgt_schema || '.' || p.pgt_name AS name, format('%I.%I', p.pgt_schema, p.pgt_name) AS quoted,
       p.owner, p.status, t.refresh_mode, t.effective_mode, t.mode_reason, t.schedule,
       extract(epoch FROM t.schedule_period)::float8 AS period_s, t.is_populated, t.needs_reinit, t.reinit_reason,
       t.data_timestamp,
       CASE WHEN t.effective_mode = 'IMMEDIATE' AND NOT t.needs_reinit AND t.data_timestamp IS NOT NULL THEN 0
            WHEN t.data_timestamp IS NOT NULL
            THEN greatest(extract(epoch FROM clock_timestamp() - t.data_timestamp), 0)::float8 END AS staleness_s,
       n.next_run, t.consecutive_errors, p.last_error,
       f.code AS error_code, f.hint AS error_hint,
       l.action AS last_action, l.status AS last_status, l.reason AS last_reason, l.finished_at AS last_at,
       l.duration_ms AS last_ms, l.rows_inserted, l.rows_deleted, l.changes_read,
       r.started_at AS running_since,
       pgtrickle_internal.rows_staged(CASE WHEN r.started_at IS NOT NULL THEN t.pgt_id END) AS running_rows,
       CASE WHEN k.reltuples >= 0 THEN k.reltuples::bigint END AS rows, pg_total_relation_size(k.oid) AS bytes
FROM pgtrickle.pgt_stream_tables AS t
JOIN pgtrickle.pgt_present AS p USING (pgt_id)
JOIN pgtrickle.pgt_next_runs AS n USING (pgt_id)
LEFT JOIN pg_class AS k ON p.is_there AND k.oid = t.pgt_relid
LEFT JOIN LATERAL (SELECT h.* FROM pgtrickle.pgt_refresh_history AS h
                   WHERE h.pgt_id = t.pgt_id AND h.status <> 'RUNNING' ORDER BY h.refresh_id DESC LIMIT 1) AS l ON true
LEFT JOIN LATERAL (SELECT h.error_code AS code, h.hint FROM pgtrickle.pgt_refresh_history AS h
                   WHERE h.pgt_id = t.pgt_id AND h.status = 'FAILED' AND strpos(p.last_error, h.error) > 0
                   ORDER BY h.refresh_id DESC LIMIT 1) AS f ON true
LEFT JOIN LATERAL (SELECT h.started_at FROM pgtrickle.pgt_refresh_history AS h
                   WHERE h.pgt_id = t.pgt_id AND h.status = 'RUNNING' ORDER BY h.refresh_id DESC LIMIT 1) AS r ON true
ORDER BY p.pgt_schema, p.pgt_name
"""
_EDGES = """
SELECT d.pgt_id, d.source_relid::bigint AS source_relid,
       coalesce(n.nspname || '.' || c.relname, d.source_schema || '.' || d.source_name) AS source,
       coalesce(pgtrickle_internal.source_type(d.source_relid), 'GONE') AS source_type, d.columns_used, d.cdc_mode
FROM pgtrickle.pgt_dependencies AS d
LEFT JOIN pgtrickle.pgt_compared AS m ON m.copy_relid = d.source_relid
LEFT JOIN pg_class AS c ON c.oid = coalesce(m.source_relid, d.source_relid)
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY d.pgt_id, d.source_relid
"""
_WAITING = """
SELECT o.source_relid::bigint, pg_stat_get_live_tuples(o.buffer_relid)
FROM pgtrickle.pgt_capture_objects AS o WHERE o.buffer_relid IS NOT NULL
"""
_LEADERS = """
SELECT l.role_name, l.connected AND l.beats AS alive, extract(epoch FROM l.heartbeat_age)::float8 AS heartbeat_s
FROM pgtrickle.pgt_leaders AS l WHERE l.purpose = 'service' AND l.instance IS NOT NULL ORDER BY 1
"""
_RECENT = """
SELECT h.refresh_id, h.pgt_id, p.pgt_schema || '.' || p.pgt_name AS name, h.started_at, h.finished_at,
       h.action, h.status, h.initiated_by, h.reason, h.rows_inserted, h.rows_deleted, h.changes_read, h.duration_ms,
       h.error_code, h.error, h.hint
FROM pgtrickle.pgt_refresh_history AS h JOIN pgtrickle.pgt_present AS p USING (pgt_id)
WHERE h.action IS DISTINCT FROM 'NO_DATA' ORDER BY h.refresh_id DESC LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class TableNow(Record):
    """A stream table as it is at this moment. `name` is for people, `quoted` for SQL; `error_hint` says what to do."""

    pgt_id: int
    pgt_relid: int
    pgt_schema: str
    pgt_name: str
    name: str
    quoted: str
    owner: str | None
    status: str
    refresh_mode: str
    effective_mode: str
    mode_reason: str | None
    schedule: str | None
    period_s: float | None
    is_populated: bool
    needs_reinit: bool
    reinit_reason: str | None
    data_timestamp: datetime | None
    staleness_s: float | None
    next_run: datetime | None
    consecutive_errors: int
    last_error: str | None
    error_code: str | None
    error_hint: str | None
    last_action: str | None
    last_status: str | None
    last_reason: str | None
    last_at: datetime | None
    last_ms: float | None
    rows_inserted: int | None
    rows_deleted: int | None
    changes_read: int | None
    running_since: datetime | None
    running_rows: int | None
    rows: int | None
    bytes: int | None

    @property
    def state(self) -> str:
        """In one word how it is: what a colour or a sign stands for."""
        if self.status in {"ERROR", "SUSPENDED"} and self.last_error is not None:
            return "failed"
        if self.status == "SUSPENDED":
            return "suspended"
        if self.running_since is not None:
            return "refreshing"
        if self.last_error is not None:
            return "failing"
        if not self.is_populated:
            return "empty"
        return "stale" if self.is_overdue else "fresh"

    @property
    def is_overdue(self) -> bool:
        """Whether its data is older than twice its schedule, as `health_check` has it. Not where writers keep it."""
        known = self.period_s is not None and self.staleness_s is not None
        return known and self.effective_mode != "IMMEDIATE" and self.staleness_s > 2 * self.period_s + 10  # type: ignore[operator]


@dataclass(frozen=True, slots=True)
class Edge(Record):
    """That a stream table reads a relation. `cdc_mode` None: its changes are not captured for it."""

    pgt_id: int
    source_relid: int
    source: str
    source_type: str
    columns_used: Sequence[str]
    cdc_mode: str | None


@dataclass(frozen=True, slots=True)
class Leader(Record):
    """A service that leads, for the tables of a role."""

    role_name: str
    alive: bool
    heartbeat_s: float | None


@dataclass(frozen=True, slots=True)
class Past(Record):
    """A refresh that did something, or failed."""

    refresh_id: int
    pgt_id: int
    name: str
    started_at: datetime
    finished_at: datetime | None
    action: str | None
    status: str
    initiated_by: str
    reason: str | None
    rows_inserted: int
    rows_deleted: int
    changes_read: int
    duration_ms: float | None
    error_code: str | None
    error: str | None
    hint: str | None


@dataclass(frozen=True, slots=True)
class Overview(Record):
    """All of it. `waiting` are the changes in each source's buffer, by oid, as far as PostgreSQL has counted them."""

    at: datetime
    database: str
    login: str
    server_version: str
    tables: Sequence[TableNow]
    edges: Sequence[Edge]
    captured: Sequence[CdcStatus]
    waiting: dict[int, int]
    slot: SlotHealth | None
    leaders: Sequence[Leader]
    recent: Sequence[Past]
    checks: Sequence[Check]


def read(conn: psycopg.Connection[Any], recent: int = 40) -> Overview:
    """Everything as it is now, with the last refreshes that did something."""
    row = conn.execute(
        "SELECT clock_timestamp(), current_database()::text, session_user::text, current_setting('server_version')"
    ).fetchone()
    assert row is not None
    return Overview(
        at=row[0],
        database=row[1],
        login=row[2],
        server_version=row[3],
        tables=tables(conn),
        edges=edges(conn),
        captured=reader.cdc_status(conn),
        waiting=waiting(conn),
        slot=health.slot_health(conn),
        leaders=leaders(conn),
        recent=_records(conn, Past, _RECENT, recent),
        checks=health.health(conn),
    )


def tables(conn: psycopg.Connection[Any]) -> Sequence[TableNow]:
    """The stream tables alone, by name."""
    return _records(conn, TableNow, _TABLES)


def edges(conn: psycopg.Connection[Any]) -> Sequence[Edge]:
    """Who reads what."""
    return _records(conn, Edge, _EDGES)


def waiting(conn: psycopg.Connection[Any]) -> dict[int, int]:
    """The changes in each source's buffer, as far as PostgreSQL has counted them."""
    return {int(oid): int(rows or 0) for oid, rows in conn.execute(_WAITING)}


def leaders(conn: psycopg.Connection[Any]) -> Sequence[Leader]:
    """The services that lead."""
    return _records(conn, Leader, _LEADERS)


def _records(conn: psycopg.Connection[Any], kind: type[Any], query: str, *values: object) -> Sequence[Any]:
    with conn.cursor(row_factory=class_row(kind)) as cursor:
        return tuple(cursor.execute(query.encode(), values or None))
