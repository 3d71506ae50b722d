"""Writing the catalog, in the caller's transaction. Called by the API (definitions) and the refresh (progress)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from pgtrickle.catalog import ddl
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import statement
from pgtrickle.errors import StateError
from pgtrickle.model import Table
from pgtrickle.query.analyse.analysis import NO_DEPENDENCIES, Dependencies
from pgtrickle.server_cpu import UNKNOWN

WAKE_CHANNEL: Final = "pg_trickle_wake"
"""NOTIFY on it has the service look at once, and not at its next turn."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a stream table is defined by: everything `register` and `redefine` store about the query."""

    defining_query: str
    normalized_query: str
    search_path: str
    refresh_mode: str
    effective_mode: str
    mode_reason: str | None
    source_fingerprint: str | None
    sources: Sequence[tuple[Table, Sequence[str]]]
    dependencies: Dependencies = NO_DEPENDENCIES
    settings: Mapping[str, str] = field(default_factory=dict)
    operator_tree: str | None = None
    delta_plan: str | None = None
    delta_plans: Mapping[str, str] = field(default_factory=dict)
    """By the oid of the source that alone has changed; `clock`: when only the time has moved."""


def register(
    conn: psycopg.Connection[Any],
    table: Table,
    definition: Definition,
    *,
    schedule: str | None,
    requested_cdc_mode: str | None,
    fill_when_due: bool = False,
    indexes: Sequence[str] = (),
) -> int:
    """Add a stream table stored in `table` and its sources; returns its id. It starts INITIALIZING, not populated;
    `fill_when_due` leaves its filling to the service.

    Its frontier is this moment's snapshot, so that the buffers keep all that its first population may not see.
    """
    try:
        with conn.transaction():
            row = conn.execute(
                "INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, defining_query,"
                " normalized_query, search_path, settings, refresh_mode, effective_mode, mode_reason,"
                " source_fingerprint, operator_tree, delta_plan, delta_plans, schedule, requested_cdc_mode,"
                " fill_when_due, indexes)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING pgt_id",
                (
                    *(table.oid, table.schema, table.name),
                    *_values(definition),
                    *(schedule, requested_cdc_mode, fill_when_due, list(indexes)),
                ),
            ).fetchone()
    except psycopg.errors.UniqueViolation as error:
        raise StateError(
            f"the stream table {table} exists already", code="PT302", hint="Choose another name, or alter or drop it."
        ) from error
    assert row is not None, "INSERT … RETURNING gives a row"
    pgt_id = int(row[0])
    ensure_lock(conn, pgt_id)
    _set_sources(conn, pgt_id, definition)
    ddl.use(conn, pgt_id, definition.dependencies)
    return pgt_id


def ensure_lock(conn: psycopg.Connection[Any], pgt_id: int) -> bool:
    """Make the row by which refreshes lock each other out; returns whether it was missing."""
    return bool(
        conn.execute(
            "INSERT INTO pgtrickle_internal.pgt_refresh_locks (pgt_id) VALUES (%s) ON CONFLICT DO NOTHING", (pgt_id,)
        ).rowcount
    )


def redefine(conn: psycopg.Connection[Any], pgt_id: int, definition: Definition) -> None:
    """Replace the query and the sources; the caller decides about `needs_reinit`. What refreshes of another query took
    tells nothing of this one."""
    conn.execute(
        "DELETE FROM pgtrickle.pgt_refresh_costs AS c USING pgtrickle.pgt_stream_tables AS t"
        " WHERE c.pgt_id = t.pgt_id AND t.pgt_id = %s AND t.normalized_query <> %s",
        (pgt_id, definition.normalized_query),
    )
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET defining_query = %s, normalized_query = %s, search_path = %s,"
        " settings = %s, refresh_mode = %s, effective_mode = %s, mode_reason = %s, source_fingerprint = %s,"
        " operator_tree = %s, delta_plan = %s, delta_plans = %s, updated_at = now()"
        " WHERE pgt_id = %s",
        (*_values(definition), pgt_id),
    )
    _set_sources(conn, pgt_id, definition)
    ddl.use(conn, pgt_id, definition.dependencies)


def unregister(conn: psycopg.Connection[Any], pgt_id: int) -> None:
    """Forget a stream table with its dependencies and history. Its storage and state are the caller's to drop."""
    ddl.forget(conn, pgt_id)
    _update(conn, "DELETE FROM pgtrickle.pgt_stream_tables WHERE pgt_id = %s", (pgt_id,))


def set_indexes(conn: psycopg.Connection[Any], pgt_id: int, indexes: Sequence[str]) -> None:
    """Change which indexes its owner asks for; making and dropping them is the caller's."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET indexes = %s, updated_at = now() WHERE pgt_id = %s",
        (list(indexes), pgt_id),
    )


def set_schedule(conn: psycopg.Connection[Any], pgt_id: int, schedule: str | None) -> None:
    """Change the schedule; the service looks at once whether the table is due."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET schedule = %s, updated_at = now() WHERE pgt_id = %s",
        (schedule, pgt_id),
    )
    _wake(conn)


def set_status(conn: psycopg.Connection[Any], pgt_id: int, status: str) -> None:
    """Change the status; going back to ACTIVE forgets the errors that led away from it, and the service looks at
    once whether the table is due."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET status = %(status)s, updated_at = now(),"
        " consecutive_errors = CASE WHEN %(status)s = 'ACTIVE' THEN 0 ELSE consecutive_errors END,"
        " last_error = CASE WHEN %(status)s = 'ACTIVE' THEN NULL ELSE last_error END WHERE pgt_id = %(pgt_id)s",
        {"status": status, "pgt_id": pgt_id},
    )
    _wake(conn)


def _wake(conn: psycopg.Connection[Any]) -> None:
    """Have the service look at what is due as soon as this is committed, and not at its next turn."""
    conn.execute("SELECT pg_notify(%s, 'due')", (WAKE_CHANNEL,))


def set_refresh_mode(conn: psycopg.Connection[Any], pgt_id: int, refresh_mode: str) -> None:
    """Ask for a mode that the next refresh can go over to from the one in effect."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET refresh_mode = %s, updated_at = clock_timestamp() WHERE pgt_id = %s",
        (refresh_mode, pgt_id),
    )


def set_mode(conn: psycopg.Connection[Any], pgt_id: int, refresh_mode: str, effective_mode: str) -> None:
    """Another way of maintenance of what stays as it is. Where no changes are captured for it, its sources say so."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET refresh_mode = %s, effective_mode = %s, mode_reason = NULL,"
        " updated_at = clock_timestamp() WHERE pgt_id = %s",
        (refresh_mode, effective_mode, pgt_id),
    )
    conn.execute(
        "UPDATE pgtrickle.pgt_dependencies SET cdc_mode = %s, slot_name = NULL, decoder_confirmed_lsn = NULL,"
        " transition_started_at = NULL WHERE pgt_id = %s",
        ("TRIGGER" if effective_mode == "DIFFERENTIAL" else None, pgt_id),
    )


def set_frontier(conn: psycopg.Connection[Any], pgt_id: int, frontier: str, data_timestamp: datetime) -> None:
    """It has all changes up to that snapshot, of whatever it reads."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET frontier = %s::pg_snapshot, upstream_frontier = NULL,"
        " data_timestamp = %s WHERE pgt_id = %s",
        (frontier, data_timestamp, pgt_id),
    )


def set_cdc_mode(conn: psycopg.Connection[Any], pgt_id: int, requested_cdc_mode: str | None) -> None:
    """Ask for another way of capture; None is what the setting says. The service moves the sources."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET requested_cdc_mode = %s, updated_at = now() WHERE pgt_id = %s",
        (requested_cdc_mode, pgt_id),
    )


def note_decoded(conn: psycopg.Connection[Any]) -> int:
    """Let pgt_dependencies show how far the WAL is decoded; returns the number of rows this was news for."""
    return conn.execute(
        "UPDATE pgtrickle.pgt_dependencies AS d SET decoder_confirmed_lsn = p.lsn"
        " FROM pgtrickle_internal.pgt_decoded AS p WHERE d.cdc_mode <> 'TRIGGER'"
        " AND d.decoder_confirmed_lsn IS DISTINCT FROM p.lsn"
    ).rowcount


def attach(conn: psycopg.Connection[Any], pgt_id: int, table: Table) -> None:
    """A stream table that was restored from a dump is stored in this relation, which it is said by name to be."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET pgt_relid = %s, pgt_schema = %s, pgt_name = %s, restored = false,"
        " last_error = NULL, updated_at = now() WHERE pgt_id = %s",
        (table.oid, table.schema, table.name, pgt_id),
    )


def move_dependencies(conn: psycopg.Connection[Any], old: int, new: int) -> None:
    """What was read in one relation is now read in another."""
    conn.execute("UPDATE pgtrickle.pgt_dependencies SET source_relid = %s WHERE source_relid = %s", (new, old))
    conn.execute(
        "UPDATE pgtrickle.pgt_used_objects SET objid = %s WHERE objid = %s"
        " AND classid = 'pg_catalog.pg_class'::pg_catalog.regclass",
        (new, old),
    )


def was_told(conn: psycopg.Connection[Any], pgt_id: int, relid: int) -> bool:
    """Whether an event trigger has told that the stream table was dropped."""
    return bool(
        conn.execute(
            "SELECT FROM pgtrickle.pgt_source_ddl WHERE pgt_id = %s AND objid = %s AND gone", (pgt_id, relid)
        ).rowcount
    )


def follow_names(conn: psycopg.Connection[Any]) -> None:
    """Remember the names that stream tables have now, for when one is dropped. Those that someone is at wait."""
    conn.execute(
        "WITH renamed AS (SELECT t.pgt_id, p.pgt_schema, p.pgt_name FROM pgtrickle.pgt_stream_tables AS t"
        "   JOIN pgtrickle.pgt_present AS p USING (pgt_id)"
        "   WHERE (t.pgt_schema, t.pgt_name) <> (p.pgt_schema, p.pgt_name) FOR NO KEY UPDATE OF t SKIP LOCKED)"
        " UPDATE pgtrickle.pgt_stream_tables AS t SET pgt_schema = r.pgt_schema, pgt_name = r.pgt_name"
        " FROM renamed AS r WHERE r.pgt_id = t.pgt_id"
    )


def mark_reinit(conn: psycopg.Connection[Any], pgt_id: int, reason: str) -> None:
    """The next refresh must compute the table anew, and say why."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET needs_reinit = true, reinit_reason = %s, updated_at = now()"
        " WHERE pgt_id = %s",
        (reason, pgt_id),
    )


def unmark_reinit(conn: psycopg.Connection[Any], pgt_id: int) -> None:
    """What the table was marked for turned out to change nothing that it has."""
    _update(
        conn,
        "UPDATE pgtrickle.pgt_stream_tables SET needs_reinit = false, reinit_reason = NULL, updated_at = now()"
        " WHERE pgt_id = %s",
        (pgt_id,),
    )


def mark_outdated(conn: psycopg.Connection[Any], pgt_id: int, reason: str) -> None:
    """The same, and the next refresh also defines the table anew: what it is built on is not what was known of it."""
    mark_reinit(conn, pgt_id, reason)
    _update(conn, "UPDATE pgtrickle.pgt_stream_tables SET source_fingerprint = NULL WHERE pgt_id = %s", (pgt_id,))


def set_fingerprint(conn: psycopg.Connection[Any], pgt_id: int, fingerprint: str) -> None:
    """What its sources are like now, where DDL has changed nothing that counts; later, if someone holds the row."""
    conn.execute(
        "UPDATE pgtrickle.pgt_stream_tables AS t SET source_fingerprint = %s FROM (SELECT pgt_id FROM"
        " pgtrickle.pgt_stream_tables WHERE pgt_id = %s FOR NO KEY UPDATE SKIP LOCKED) AS free"
        " WHERE t.pgt_id = free.pgt_id",
        (fingerprint, pgt_id),
    )


def mark_refreshed(
    conn: psycopg.Connection[Any],
    pgt_id: int,
    *,
    frontier: str,
    upstream_frontier: str | None = None,
    data_timestamp: datetime,
    full_ms: float | None = None,
    since: str | None = None,
) -> None:
    """The table now equals its query at `frontier`, and what it reads of stream tables at `upstream_frontier`, if that
    is later. `full_ms` is given when it was computed from scratch, which also settles a reinitialisation that was
    asked for. `since`: the frontier that the refresh began with. It is another if the session with the refresh's lock
    has ended and another refresh came in between, whose changes must not be applied twice."""
    done = conn.execute(
        "UPDATE pgtrickle.pgt_stream_tables SET frontier = %(frontier)s::pg_snapshot,"
        " upstream_frontier = %(upstream)s::pg_snapshot, data_timestamp = %(at)s,"
        " last_refresh_at = clock_timestamp(), consecutive_errors = 0, last_error = NULL,"
        " status = CASE WHEN status = 'SUSPENDED' THEN status ELSE 'ACTIVE' END,"
        " is_populated = is_populated OR %(full)s::double precision IS NOT NULL,"
        " last_full_ms = coalesce(%(full)s, last_full_ms),"
        " needs_reinit = needs_reinit AND %(full)s::double precision IS NULL,"
        " reinit_reason = CASE WHEN %(full)s::double precision IS NULL THEN reinit_reason END"
        " WHERE pgt_id = %(pgt_id)s AND frontier::text = coalesce(%(since)s, frontier::text)",
        {"frontier": frontier, "upstream": upstream_frontier, "at": data_timestamp, "full": full_ms, "pgt_id": pgt_id}
        | {"since": since},
    )
    if not done.rowcount:
        raise StateError(
            "the stream table was refreshed by another session, or dropped, while this refresh had lost its lock",
            code="PT430",
            hint="Nothing to do: the next refresh goes on from there.",
        )


def mark_failed(
    conn: psycopg.Connection[Any],
    pgt_id: int,
    error: str,
    *,
    max_consecutive_errors: int,
    broken: bool = False,
    counts: bool = True,
) -> str:
    """Note a failure; returns the status, which is SUSPENDED once there were too many in a row that count.

    `broken`: the query no longer holds on its sources. That is ERROR, and each refresh says so again, until the query
    is altered or the sources are as it needs them.
    """
    row = conn.execute(
        "UPDATE pgtrickle.pgt_stream_tables SET consecutive_errors = consecutive_errors + %(one)s,"
        " last_error = %(error)s, updated_at = now(),"
        " status = CASE WHEN %(broken)s AND status <> 'SUSPENDED' THEN 'ERROR'"
        "               WHEN consecutive_errors + %(one)s >= %(most)s THEN 'SUSPENDED'"
        "               WHEN is_populated THEN status ELSE 'ERROR' END"
        " WHERE pgt_id = %(pgt_id)s RETURNING status",
        {"error": error, "most": max_consecutive_errors, "broken": broken, "one": int(counts), "pgt_id": pgt_id},
    ).fetchone()
    if row is None:
        raise _gone(pgt_id)
    return str(row[0])


def mark_unreadable(conn: psycopg.Connection[Any], pgt_id: int, error: str) -> None:
    """The row itself makes no sense to the service (its schedule, say): ERROR, until someone corrects it. No refresh
    has failed, so nothing is counted. A row that someone holds is left to the next round: all others would wait."""
    conn.execute(
        "UPDATE pgtrickle.pgt_stream_tables SET last_error = %s,"
        " status = CASE WHEN status = 'SUSPENDED' THEN status ELSE 'ERROR' END"
        " WHERE pgt_id = (SELECT pgt_id FROM pgtrickle.pgt_stream_tables WHERE pgt_id = %s FOR UPDATE SKIP LOCKED)",
        (error, pgt_id),
    )


def note_cron_runs(conn: psycopg.Connection[Any], runs: Mapping[int, tuple[str, datetime]]) -> None:
    """When tables with a cron schedule run next, by id, each with the schedule that says so. Those dropped meanwhile
    are passed over."""
    conn.execute(
        "INSERT INTO pgtrickle_internal.pgt_cron_runs AS c (pgt_id, schedule, next_run)"
        " SELECT k.* FROM unnest(%s::bigint[], %s::text[], %s::timestamptz[]) AS k(pgt_id, schedule, next_run)"
        " JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
        " ON CONFLICT (pgt_id) DO UPDATE SET schedule = excluded.schedule, next_run = excluded.next_run",
        (list(runs), [schedule for schedule, _ in runs.values()], [at for _, at in runs.values()]),
    )


class Started(NamedTuple):
    """A refresh on record, and the milliseconds of CPU that the server told by then, if it was asked."""

    refresh_id: int
    server_cpu_ms: float | None


def start_refresh(
    conn: psycopg.Connection[Any], pgt_id: int, *, initiated_by: str, server_cpu: str = UNKNOWN
) -> Started:
    """Open a history row as RUNNING. `server_cpu`: SQL by which the server tells its time (`pgtrickle.server_cpu`)."""
    row = conn.execute(
        sql.SQL(
            "INSERT INTO pgtrickle.pgt_refresh_history (pgt_id, status, initiated_by, freshness_deadline)"
            " VALUES (%(id)s, 'RUNNING', %(by)s, (SELECT t.data_timestamp + t.schedule_period"
            "   FROM pgtrickle.pgt_stream_tables AS t WHERE t.pgt_id = %(id)s)) RETURNING refresh_id, {}"
        ).format(statement(server_cpu)),
        {"id": pgt_id, "by": initiated_by},
    ).fetchone()
    assert row is not None, "INSERT … RETURNING gives a row"
    return Started(*row)


def finish_refresh(
    conn: psycopg.Connection[Any],
    refresh_id: int,
    *,
    status: str,
    action: str | None,
    reason: str | None,
    rows_inserted: int = 0,
    rows_deleted: int = 0,
    changes_read: int = 0,
    snapshot: str | None = None,
    data_timestamp: datetime | None = None,
    phases: Mapping[str, float] | None = None,
    error_code: str | None = None,
    error: str | None = None,
    way: str | None = None,
    expected: Mapping[str, float] | None = None,
    took_ms: float | None = None,
    hint: str | None = None,
    server_cpu: str = UNKNOWN,
) -> float:
    """Close a history row; returns the duration in milliseconds, measured by the server's clock. `server_cpu`: SQL of
    the milliseconds of its CPU."""
    row = conn.execute(
        sql.SQL(
            "UPDATE pgtrickle.pgt_refresh_history SET status = %s, action = %s, reason = %s, rows_inserted = %s,"
            " rows_deleted = %s, changes_read = %s, snapshot = %s::pg_snapshot, data_timestamp = %s, phases = %s,"
            " error_code = %s, error = %s, way = %s, expected = %s, took_ms = %s, hint = %s, server_cpu_ms = {},"
            " finished_at = clock_timestamp(),"
            " duration_ms = extract(epoch FROM clock_timestamp() - started_at) * 1000"
            " WHERE refresh_id = %s RETURNING duration_ms"
        ).format(statement(server_cpu)),
        (
            status,
            action,
            reason,
            rows_inserted,
            rows_deleted,
            changes_read,
            snapshot,
            data_timestamp,
            Jsonb(dict(phases or {})),
            error_code,
            error,
            way,
            Jsonb(dict(expected)) if expected else None,
            took_ms,
            hint,
            refresh_id,
        ),
    ).fetchone()
    if row is None:
        raise StateError(
            f"there is no refresh {refresh_id}", code="PT304", hint="The stream table was dropped meanwhile."
        )
    return float(row[0])


def note_costs(
    conn: psycopg.Connection[Any], pgt_id: int, ways: Mapping[str, Mapping[str, list[float]]], since_try_ms: float
) -> None:
    """What its last refreshes took, for the next choice of a way."""
    conn.execute(
        "INSERT INTO pgtrickle.pgt_refresh_costs VALUES (%s, %s, %s)"
        " ON CONFLICT (pgt_id) DO UPDATE SET ways = excluded.ways, since_try_ms = excluded.since_try_ms",
        (pgt_id, Jsonb(dict(ways)), since_try_ms),
    )


# What follows the UPDATE `moved`, whose tables had nothing to do: the history says so. The service looks again and
# again, so its last row, if that says the same, is moved on: it began when that was found first, and ended when last.
_SAY_NOTHING = """, last AS (
    SELECT m.pgt_id, h.refresh_id, t.data_timestamp + t.schedule_period AS freshness_deadline
    FROM moved AS m JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)  -- as it was before it was moved
    LEFT JOIN LATERAL (SELECT * FROM pgtrickle.pgt_refresh_history AS h WHERE h.pgt_id = m.pgt_id
                       ORDER BY h.refresh_id DESC LIMIT 1) AS h
         ON h.action = 'NO_DATA' AND h.status = 'COMPLETED' AND h.initiated_by = 'SCHEDULER' AND %(by)s = 'SCHEDULER'
), again AS (
    UPDATE pgtrickle.pgt_refresh_history AS h SET finished_at = clock_timestamp(), reason = %(reason)s,
        snapshot = %(frontier)s::pg_snapshot, data_timestamp = %(at)s, duration_ms = %(ms)s,
        freshness_deadline = last.freshness_deadline
    FROM last WHERE h.refresh_id = last.refresh_id
), first AS (
    INSERT INTO pgtrickle.pgt_refresh_history (pgt_id, started_at, finished_at, action, status, initiated_by, reason,
        snapshot, data_timestamp, duration_ms, freshness_deadline)
    SELECT pgt_id, clock_timestamp() - %(ms)s * interval '1 ms', clock_timestamp(), 'NO_DATA', 'COMPLETED',
           %(by)s, %(reason)s, %(frontier)s::pg_snapshot, %(at)s, %(ms)s, freshness_deadline
    FROM last WHERE refresh_id IS NULL
)
SELECT pgt_id FROM moved"""


def record_no_data(
    conn: psycopg.Connection[Any],
    pgt_id: int,
    *,
    initiated_by: str,
    reason: str,
    frontier: str,
    upstream_frontier: str | None = None,
    data_timestamp: datetime,
    duration_ms: float,
) -> None:
    """A refresh that had nothing to do: the frontier moves and the history says so, in one statement.

    Not waited for on disk: lost in a crash, the next refresh finds nothing to do again.
    """
    conn.execute("SET LOCAL synchronous_commit = off")
    conn.execute(
        "WITH moved AS (UPDATE pgtrickle.pgt_stream_tables SET frontier = %(frontier)s::pg_snapshot,"
        " upstream_frontier = %(upstream)s::pg_snapshot, data_timestamp = %(at)s,"
        " last_refresh_at = clock_timestamp(), consecutive_errors = 0,"
        " status = CASE WHEN status = 'SUSPENDED' THEN status ELSE 'ACTIVE' END,"
        " last_error = NULL WHERE pgt_id = %(pgt_id)s RETURNING pgt_id)" + _SAY_NOTHING,
        {"frontier": frontier, "at": data_timestamp, "pgt_id": pgt_id, "by": initiated_by, "reason": reason}
        | {"ms": duration_ms, "upstream": upstream_frontier},
    )


def record_no_data_of_many(
    conn: psycopg.Connection[Any],
    streams: Sequence[StreamTable],
    *,
    reason: str,
    frontier: str,
    data_timestamp: datetime,
    duration_ms: float,
) -> frozenset[int]:
    """The same for tables that the service found with nothing to do; returns those that still are as they were read.

    The caller's transaction holds their refresh locks; its session should not wait for the disk.
    """
    rows = conn.execute(
        "WITH moved AS (UPDATE pgtrickle.pgt_stream_tables AS t SET frontier = %(frontier)s::pg_snapshot,"
        " upstream_frontier = NULL, data_timestamp = %(at)s, last_refresh_at = clock_timestamp()"
        " FROM unnest(%(ids)s::bigint[], %(frontiers)s::text[], %(updated)s::timestamptz[]) AS k(id, frontier, updated)"
        " WHERE t.pgt_id = k.id AND t.frontier::text = k.frontier AND t.updated_at = k.updated"
        " AND t.status = 'ACTIVE' AND NOT t.needs_reinit RETURNING t.pgt_id)" + _SAY_NOTHING,
        {
            "frontier": frontier,
            "at": data_timestamp,
            "by": "SCHEDULER",
            "reason": reason,
            "ms": duration_ms,
            "ids": [stream.pgt_id for stream in streams],
            "frontiers": [stream.frontier for stream in streams],
            "updated": [stream.updated_at for stream in streams],
        },
    ).fetchall()
    return frozenset(int(row[0]) for row in rows)


def close_abandoned(conn: psycopg.Connection[Any], pgt_id: int) -> int:
    """Mark RUNNING rows as FAILED; returns how many. For the holder of the table's refresh lock, which knows
    that whoever opened them is gone."""
    return conn.execute(
        "UPDATE pgtrickle.pgt_refresh_history SET status = 'FAILED', finished_at = clock_timestamp(),"
        " error = 'the process ended before the refresh did' WHERE pgt_id = %s AND status = 'RUNNING'",
        (pgt_id,),
    ).rowcount


def _values(definition: Definition) -> tuple[str | Jsonb | None, ...]:
    """The definition's columns of pgt_stream_tables, in the order in which the statements above name them."""
    return (
        definition.defining_query,
        definition.normalized_query,
        definition.search_path,
        Jsonb(dict(definition.settings)),
        definition.refresh_mode,
        definition.effective_mode,
        definition.mode_reason,
        definition.source_fingerprint,
        definition.operator_tree,
        definition.delta_plan,
        Jsonb(dict(definition.delta_plans)),
    )


def _set_sources(conn: psycopg.Connection[Any], pgt_id: int, definition: Definition) -> None:
    """Make the dependencies exactly its sources, leaving the capture mode of those that stay; none where it is computed
    in full."""
    sources, mode = definition.sources, None if definition.effective_mode == "FULL" else "TRIGGER"
    conn.execute(
        "DELETE FROM pgtrickle.pgt_dependencies WHERE pgt_id = %s AND source_relid <> ALL(%s::oid[])",
        (pgt_id, [source.oid for source, _ in sources]),
    )
    for source, columns in sources:
        conn.execute(
            "INSERT INTO pgtrickle.pgt_dependencies AS d"
            " (pgt_id, source_relid, source_schema, source_name, columns_used, cdc_mode)"
            " VALUES (%(id)s, %(oid)s, %(schema)s, %(name)s, %(columns)s::text[], %(mode)s)"
            " ON CONFLICT (pgt_id, source_relid) DO UPDATE"
            " SET source_schema = excluded.source_schema, source_name = excluded.source_name,"
            " columns_used = excluded.columns_used,"
            " cdc_mode = CASE WHEN excluded.cdc_mode IS NOT NULL THEN coalesce(d.cdc_mode, excluded.cdc_mode) END,"
            " slot_name = CASE WHEN excluded.cdc_mode IS NOT NULL THEN d.slot_name END,"
            " decoder_confirmed_lsn = CASE WHEN excluded.cdc_mode IS NOT NULL THEN d.decoder_confirmed_lsn END,"
            " transition_started_at = CASE WHEN excluded.cdc_mode IS NOT NULL THEN d.transition_started_at END",
            {"id": pgt_id, "oid": source.oid, "schema": source.schema, "name": source.name, "mode": mode}
            | {"columns": list(columns)},
        )


def _update(conn: psycopg.Connection[Any], statement: str, values: Sequence[object] | Mapping[str, object]) -> None:
    """Run a statement that must hit the one stream table it names last."""
    pgt_id = values["pgt_id"] if isinstance(values, Mapping) else values[-1]
    if conn.execute(statement, values).rowcount != 1:
        raise _gone(pgt_id)


def _gone(pgt_id: object) -> StateError:
    return StateError(f"there is no stream table with id {pgt_id}", code="PT301", hint="It was dropped meanwhile.")
