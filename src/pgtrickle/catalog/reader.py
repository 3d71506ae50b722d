"""Reading the catalog: frozen records, one function a question. Called by the refresh, the API and the scheduler."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from pgtrickle.catalog.names import parse_name
from pgtrickle.catalog.origin import not_here
from pgtrickle.db import caller, schemas_of
from pgtrickle.errors import StateError
from pgtrickle.record import Record


@dataclass(frozen=True, slots=True)
class StreamTable(Record):
    """A row of pgt_stream_tables; fields are named as its columns, `frontier` is the snapshot's text.

    Name, schema and owner are those that its table has now (pgt_present); `owner` is None if that was dropped.
    """

    pgt_id: int
    pgt_relid: int
    pgt_schema: str
    pgt_name: str
    defining_query: str
    normalized_query: str
    schedule: str | None
    refresh_mode: str
    effective_mode: str
    mode_reason: str | None
    status: str
    requested_cdc_mode: str | None
    is_populated: bool
    needs_reinit: bool
    reinit_reason: str | None
    frontier: str
    upstream_frontier: str | None
    data_timestamp: datetime | None
    last_refresh_at: datetime | None
    last_full_ms: float | None
    consecutive_errors: int
    last_error: str | None
    source_fingerprint: str | None
    search_path: str
    created_at: datetime
    updated_at: datetime
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    indexes: tuple[str, ...] = ()
    """Those that its owner asked for: made once it has its rows, and again where a full refresh finds one missing."""
    owner: str | None = None
    fill_when_due: bool = False
    is_restored: bool = False
    """From a dump, and not repaired since: it is attached to no table of this database."""
    next_run: datetime | None = None
    """When it is due; a time that has passed means that it is overdue. None: it has no schedule of its own, is
    suspended, or was never filled, or no service has worked out yet when its cron schedule fires."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "indexes", tuple(self.indexes))  # the driver gives a list

    def __str__(self) -> str:
        return f"{self.pgt_schema}.{self.pgt_name}"

    @property
    def is_immediate(self) -> bool:
        """Whether it is kept by the triggers of IMMEDIATE mode, in the writers' own transactions."""
        return self.effective_mode == "IMMEDIATE"

    @property
    def is_to_be_filled(self) -> bool:
        """Whether it was made without rows, for the service to fill it; not one whose maker fills it, or died at it."""
        return self.fill_when_due and not self.is_populated and self.owner is not None

    def since(self, is_upstream: bool) -> str:
        """The snapshot up to which it has the changes of a source, which is a stream table or not."""
        return self.upstream_frontier or self.frontier if is_upstream else self.frontier


@dataclass(frozen=True, slots=True)
class Dependency:
    """A row of pgt_dependencies: one source of one stream table."""

    pgt_id: int
    source_relid: int
    source_schema: str
    source_name: str
    columns_used: tuple[str, ...]
    cdc_mode: str | None
    """None: nothing is captured for it, as it is computed in full."""
    slot_name: str | None
    decoder_confirmed_lsn: str | None
    transition_started_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns_used", tuple(self.columns_used))  # the driver gives a list


@dataclass(frozen=True, slots=True)
class HistoryRow(Record):
    """A row of pgt_refresh_history; `phases` are milliseconds by name."""

    refresh_id: int
    pgt_id: int
    started_at: datetime
    finished_at: datetime | None
    action: str | None
    status: str
    initiated_by: str
    reason: str | None
    rows_inserted: int
    rows_deleted: int
    changes_read: int
    snapshot: str | None
    data_timestamp: datetime | None
    duration_ms: float | None
    phases: dict[str, float]
    error_code: str | None
    error: str | None
    freshness_deadline: datetime | None = None
    way: str | None = None
    """By changes or in full, on Spark or by PostgreSQL alone."""
    expected: dict[str, float] | None = None
    """Of each way that AUTO could take, the milliseconds that were expected."""
    took_ms: float | None = None
    """To hold against what was expected: without waiting, deciding and starting Spark."""
    hint: str | None = None
    server_cpu_ms: float | None = None
    """Of CPU that PostgreSQL spent on it, without parallel workers; None where nobody tells."""


@dataclass(frozen=True, slots=True)
class Tracking:
    """A row of pgt_change_tracking: how one source is captured."""

    source_relid: int
    buffer_name: str
    columns: tuple[str, ...]
    trigger_names: tuple[str, ...]
    trigger_count: int
    trigger_level: str
    created_at: datetime
    cdc_mode: str
    mode_since: datetime
    requested: str | None
    transition_started_at: datetime | None
    note: str | None
    last_error: str | None
    next_try_at: datetime | None
    failures: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "trigger_names", tuple(self.trigger_names))


@dataclass(frozen=True, slots=True)
class CdcStatus(Record):
    """A row of pgt_cdc_status: how one source is captured, why, and whether it could be from the WAL."""

    source_table: str
    cdc_mode: str
    slot_name: str | None
    slot_lag_bytes: int | None
    trigger_active: bool
    eligible: bool
    reason: str | None
    hint: str | None
    source_relid: int
    requested: str | None
    mode_since: datetime
    transition_started_at: datetime | None
    next_try_at: datetime | None
    failures: int
    draining: bool
    published: bool
    confirmed_lsn: str | None
    decoder_status: str
    decoder_error: str | None
    tracked_by_pgt_ids: tuple[int, ...]
    last_consumed_lsn: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tracked_by_pgt_ids", tuple(self.tracked_by_pgt_ids))


@dataclass(frozen=True, slots=True)
class ImmediateSource(Record):
    """A source whose writers keep stream tables in IMMEDIATE mode: nothing is captured for these."""

    source_table: str
    stream_tables: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stream_tables", tuple(self.stream_tables))


@dataclass(frozen=True, slots=True)
class CdcChange(Record):
    """A row of pgt_cdc_history: one change of a source's mode."""

    id: int
    at: datetime
    source_relid: int
    source_table: str
    old_mode: str
    new_mode: str
    slot_name: str | None
    reason: str


_AS_TEXT = {"frontier", "upstream_frontier", "snapshot", "decoder_confirmed_lsn", "confirmed_lsn", "last_consumed_lsn"}
_PRESENT = {"pgt_schema", "pgt_name", "owner", "status", "last_error", "is_restored"}
"""What of a stream table is not read as it is stored, but as its table is now."""


def _columns(
    record: type[Dependency] | type[HistoryRow] | type[Tracking] | type[CdcStatus] | type[CdcChange],
) -> sql.Composed:
    """The record's fields as a select list; types the driver has no loader for are read as text."""
    return sql.SQL(", ").join(_column(name) for name in record.__dataclass_fields__)


def _column(name: str) -> sql.Composed:
    return sql.SQL("t.{0}::text AS {0}" if name in _AS_TEXT else "t.{0}").format(sql.Identifier(name))


def _stream_table_columns() -> sql.Composed:
    elsewhere = {**dict.fromkeys(_PRESENT, "p"), "next_run": "n"}
    columns = [
        sql.Identifier(elsewhere[name], name) if name in elsewhere else _column(name)
        for name in StreamTable.__dataclass_fields__
    ]
    return sql.SQL(", ").join(columns)


_STREAM_TABLES = sql.SQL(
    "SELECT {} FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)"
    " JOIN pgtrickle.pgt_next_runs AS n USING (pgt_id) "
).format(_stream_table_columns())


def get(conn: psycopg.Connection[Any], schema: str, name: str) -> StreamTable | None:
    """The stream table whose table has that name now."""
    return _one(conn, sql.SQL("WHERE p.is_there AND p.pgt_schema = %s AND p.pgt_name = %s"), (schema, name))


def by_id(conn: psycopg.Connection[Any], pgt_id: int) -> StreamTable | None:
    return _one(conn, sql.SQL("WHERE pgt_id = %s"), (pgt_id,))


def by_relation(conn: psycopg.Connection[Any], relid: int) -> StreamTable | None:
    """The stream table whose storage is `relid`: tells whether a source is itself a stream table."""
    return _one(conn, sql.SQL("WHERE p.is_there AND pgt_relid = %s"), (relid,))


_NAMED = """
SELECT c.oid, n.nspname, c.relname FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = %(name)s
  AND (n.nspname = %(schema)s OR %(schema)s::name IS NULL AND n.nspname = ANY (%(schemas)s::name[]))
ORDER BY array_position(%(schemas)s::name[], n.nspname) LIMIT 1
"""


def resolve(conn: psycopg.Connection[Any], text: str) -> StreamTable:
    """The stream table a user means by `text`: the relation that has the name now, without a schema the first one along
    the search path. StateError if there is none, or it is no stream table."""
    name = parse_name(text)
    schemas = schemas_of(conn, caller(conn).search_path)
    relation = conn.execute(_NAMED, {"schema": name.schema, "name": name.name, "schemas": schemas}).fetchone()
    hint = "`pgtrickle status` lists them all."
    found = None if relation is None else by_relation(conn, int(relation[0]))
    if found is None and (known := by_recorded_name(conn, text)) is not None and known.is_restored:
        raise not_here(f"the stream table {known}")
    if relation is None:
        raise StateError(f"there is no stream table {name}", code="PT301", hint=hint)
    if found is None:
        raise StateError(f"{relation[1]}.{relation[2]} is not a stream table", code="PT301", hint=hint)
    return found


def by_recorded_name(conn: psycopg.Connection[Any], text: str) -> StreamTable | None:
    """The stream table of that name, whether it has a table or not; without a schema the first along the path."""
    name = parse_name(text)
    schemas = [name.schema] if name.schema is not None else schemas_of(conn, caller(conn).search_path)
    where = sql.SQL(
        "WHERE p.pgt_name = %(name)s AND p.pgt_schema = ANY(%(schemas)s::text[])"
        " ORDER BY array_position(%(schemas)s::text[], p.pgt_schema), t.pgt_id DESC"
    )
    return _one(conn, where, {"name": name.name, "schemas": schemas})


def list_tables(conn: psycopg.Connection[Any]) -> tuple[StreamTable, ...]:
    """All stream tables, by name."""
    return _many(conn, sql.SQL("ORDER BY p.pgt_schema, p.pgt_name"), ())


def dropped(conn: psycopg.Connection[Any]) -> tuple[StreamTable, ...]:
    """Those whose table is gone, oldest first."""
    return _many(conn, sql.SQL("WHERE NOT p.is_there AND NOT p.is_restored ORDER BY t.pgt_id"), ())


def unfilled(conn: psycopg.Connection[Any], relids: Collection[int]) -> dict[int, str]:
    """Those of these relations, by oid, that are stream tables which were never filled: their names by id."""
    rows = conn.execute(
        "SELECT t.pgt_id, pg_catalog.format('%%I.%%I', p.pgt_schema, p.pgt_name) FROM pgtrickle.pgt_stream_tables AS t"
        " JOIN pgtrickle.pgt_present AS p USING (pgt_id)"
        " WHERE NOT t.is_populated AND t.pgt_relid = ANY (%s::oid[]) ORDER BY 2",
        (sorted(relids),),
    )
    return {int(pgt_id): str(name) for pgt_id, name in rows}


UNUSED_SOURCES: Final = (
    "SELECT k.source_relid FROM pgtrickle.pgt_change_tracking AS k WHERE NOT EXISTS ("
    " SELECT FROM pgtrickle.pgt_dependencies AS d JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
    " WHERE d.source_relid = k.source_relid AND t.effective_mode = 'DIFFERENTIAL') AND NOT EXISTS ("
    " SELECT FROM pgtrickle.pgt_followers AS f JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
    " WHERE t.pgt_relid = k.source_relid AND f.expired_at IS NULL) ORDER BY k.source_relid"
)


def unused_sources(conn: psycopg.Connection[Any]) -> tuple[int, ...]:
    """The sources that are captured, and that no stream table needs to be."""
    return tuple(int(row[0]) for row in conn.execute(UNUSED_SOURCES).fetchall())


def consumers_of(conn: psycopg.Connection[Any], source_oid: int) -> tuple[StreamTable, ...]:
    """The stream tables that read the source, oldest first."""
    where = sql.SQL("JOIN pgtrickle.pgt_dependencies AS d USING (pgt_id) WHERE d.source_relid = %s ORDER BY t.pgt_id")
    return _many(conn, where, (source_oid,))


def frontiers_of(conn: psycopg.Connection[Any], sources: Collection[int]) -> dict[int, list[str]]:
    """Up to which snapshots those that are maintained by the changes of each of the sources have these, and those that
    follow it from outside; a source that has no such reader is left out."""
    rows = conn.execute(
        "SELECT r.source_relid, array_agg(DISTINCT r.frontier) FROM ("
        "SELECT d.source_relid::bigint, (CASE WHEN EXISTS (SELECT FROM pgtrickle.pgt_present AS p"
        "   JOIN pgtrickle.pgt_stream_tables AS u USING (pgt_id) WHERE p.is_there AND u.pgt_relid = d.source_relid)"
        "  THEN coalesce(t.upstream_frontier, t.frontier) ELSE t.frontier END)::text AS frontier"
        " FROM pgtrickle.pgt_dependencies AS d JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
        " WHERE d.source_relid = ANY (%(sources)s::oid[]) AND t.effective_mode = 'DIFFERENTIAL'"
        " UNION ALL SELECT t.pgt_relid::bigint, f.has_applied::text"
        " FROM pgtrickle.pgt_followers AS f JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
        " WHERE t.pgt_relid = ANY (%(sources)s::oid[]) AND f.expired_at IS NULL) AS r GROUP BY r.source_relid",
        {"sources": list(sources)},
    ).fetchall()
    return {int(oid): frontiers for oid, frontiers in rows}


def is_stacked(conn: psycopg.Connection[Any], pgt_id: int) -> bool:
    """Whether it reads a stream table, or is read by one."""
    row = conn.execute(
        "SELECT EXISTS (SELECT FROM pgtrickle.pgt_dependencies AS d JOIN pgtrickle.pgt_stream_tables AS t"
        " ON t.pgt_relid = d.source_relid WHERE %s IN (d.pgt_id, t.pgt_id))",
        (pgt_id,),
    ).fetchone()
    return row is not None and bool(row[0])


def circle(conn: psycopg.Connection[Any], pgt_id: int) -> tuple[int, ...]:
    """The stream tables that read each other in a circle with this one, itself included, by id; none if it is in no
    circle."""
    rows = conn.execute(
        "WITH RECURSIVE reads AS (SELECT d.pgt_id, t.pgt_id AS source FROM pgtrickle.pgt_dependencies AS d"
        "   JOIN pgtrickle.pgt_stream_tables AS t ON t.pgt_relid = d.source_relid),"
        " above(id) AS (SELECT source FROM reads WHERE pgt_id = %(id)s"
        "   UNION SELECT r.source FROM reads AS r JOIN above AS a ON a.id = r.pgt_id),"
        " below(id) AS (SELECT pgt_id FROM reads WHERE source = %(id)s"
        "   UNION SELECT r.pgt_id FROM reads AS r JOIN below AS b ON b.id = r.source)"
        " SELECT id FROM above JOIN below USING (id) ORDER BY id",
        {"id": pgt_id},
    ).fetchall()
    return tuple(int(row[0]) for row in rows)


def dependencies(conn: psycopg.Connection[Any], pgt_id: int) -> tuple[Dependency, ...]:
    """The sources of a stream table, by oid: the order in which they are locked."""
    query = sql.SQL("SELECT {} FROM pgtrickle.pgt_dependencies AS t WHERE pgt_id = %s ORDER BY source_relid")
    with conn.cursor(row_factory=class_row(Dependency)) as cursor:
        return tuple(cursor.execute(query.format(_columns(Dependency)), (pgt_id,)))


def history(conn: psycopg.Connection[Any], pgt_id: int, max_rows: int = 20) -> tuple[HistoryRow, ...]:
    """The last refreshes, newest first."""
    query = sql.SQL(
        "SELECT {} FROM pgtrickle.pgt_refresh_history AS t WHERE pgt_id = %s ORDER BY refresh_id DESC LIMIT %s"
    )
    with conn.cursor(row_factory=class_row(HistoryRow)) as cursor:
        return tuple(cursor.execute(query.format(_columns(HistoryRow)), (pgt_id, max_rows)))


def refresh_costs(conn: psycopg.Connection[Any], pgt_id: int) -> tuple[dict[str, dict[str, list[float]]], float]:
    """What its last refreshes took, by way, and the time since another way was tried (`refresh/learned.py`)."""
    row = conn.execute("SELECT ways, since_try_ms FROM pgtrickle.pgt_refresh_costs WHERE pgt_id = %s", (pgt_id,))
    found = row.fetchone()
    return ({}, 0.0) if found is None else (found[0], found[1])


def tracking(conn: psycopg.Connection[Any], source_oid: int) -> Tracking | None:
    """How the source is captured, or None if it is not."""
    query = sql.SQL("SELECT {} FROM pgtrickle.pgt_change_tracking AS t WHERE source_relid = %s")
    with conn.cursor(row_factory=class_row(Tracking)) as cursor:
        return cursor.execute(query.format(_columns(Tracking)), (source_oid,)).fetchone()


def cdc_status(conn: psycopg.Connection[Any]) -> tuple[CdcStatus, ...]:
    """All captured sources, by name."""
    query = sql.SQL("SELECT {} FROM pgtrickle.pgt_cdc_status AS t ORDER BY source_table")
    with conn.cursor(row_factory=class_row(CdcStatus)) as cursor:
        return tuple(cursor.execute(query.format(_columns(CdcStatus))))


def immediate_sources(conn: psycopg.Connection[Any]) -> tuple[ImmediateSource, ...]:
    """All that tables in IMMEDIATE mode read, by name."""
    query = sql.SQL(
        "SELECT format('%I.%I', source_schema, source_name) AS source_table,"
        " array_agg(format('%I.%I', pgt_schema, pgt_name) ORDER BY pgt_schema, pgt_name) AS stream_tables"
        " FROM pgtrickle.pgt_stream_table_sources WHERE cdc_mode = 'IMMEDIATE' GROUP BY source_relid, 1 ORDER BY 1"
    )
    with conn.cursor(row_factory=class_row(ImmediateSource)) as cursor:
        return tuple(cursor.execute(query))


def cdc_history(
    conn: psycopg.Connection[Any], source_oid: int | None = None, max_rows: int = 20
) -> tuple[CdcChange, ...]:
    """The last changes of mode of one source or of all, newest first."""
    query = sql.SQL(
        "SELECT {} FROM pgtrickle.pgt_cdc_history AS t WHERE %s::oid IS NULL OR source_relid = %s::oid"
        " ORDER BY id DESC LIMIT %s"
    )
    with conn.cursor(row_factory=class_row(CdcChange)) as cursor:
        return tuple(cursor.execute(query.format(_columns(CdcChange)), (source_oid, source_oid, max_rows)))


def _one(
    conn: psycopg.Connection[Any], rest: sql.SQL, values: Sequence[object] | Mapping[str, object]
) -> StreamTable | None:
    found = _many(conn, rest, values)
    return found[0] if found else None


def _many(
    conn: psycopg.Connection[Any], rest: sql.SQL, values: Sequence[object] | Mapping[str, object]
) -> tuple[StreamTable, ...]:
    with conn.cursor(row_factory=class_row(StreamTable)) as cursor:
        return tuple(cursor.execute(_STREAM_TABLES + rest, values))
