"""Metrics for Prometheus, served by `endpoint.py`.

They are read from the catalog when they are asked for, so they are right after a restart too, and the same whichever of
two services answers. Counters are those of the refresh history and of what was pruned from it, so they only grow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate

import psycopg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pgtrickle import db
from pgtrickle.catalog import health
from pgtrickle.catalog import reader as catalog
from pgtrickle.errors import Error

_PATIENCE_S = 3
"""How long a server may take to let us in: a scrape waits for all databases."""
_TABLES = """
SELECT format('%I.%I', pgt_schema, pgt_name), status,
       CASE effective_mode WHEN 'IMMEDIATE' THEN 0 ELSE extract(epoch FROM staleness)::float8 END,
       consecutive_errors::float8,
       total_refreshes::float8, failed_refreshes::float8, full_refreshes::float8, differential_refreshes::float8,
       rows_inserted::float8, rows_deleted::float8, changes_read::float8, last_duration_ms / 1000,
       effective_mode
FROM pgtrickle.pg_stat_stream_tables ORDER BY 1
"""
_GAUGES = (
    ("staleness_seconds", "Age of the snapshot that the table shows", 2),
    ("consecutive_errors", "Failures in a row", 3),
    ("last_refresh_seconds", "Time that the last refresh took", 11),
)
_COUNTERS = (
    ("refreshes", "Refreshes in the history", 4),
    ("failed_refreshes", "Refreshes that failed", 5),
    ("full_refreshes", "Refreshes from scratch", 6),
    ("differential_refreshes", "Refreshes from changes", 7),
    ("rows_inserted", "Rows inserted by refreshes", 8),
    ("rows_deleted", "Rows deleted by refreshes", 9),
    ("changes_read", "Changes of sources read by refreshes", 10),
)
_DURATIONS = """
SELECT format('%I.%I', t.pgt_schema, t.pgt_name), sum(c.seconds)::float8,
       ARRAY(SELECT coalesce(sum(k.refreshes), 0)::float8 FROM generate_series(0, cardinality(b.bounds)) AS place
             LEFT JOIN pgtrickle.pgt_refresh_counts AS k
                  ON k.pgt_id = t.pgt_id AND k.bucket = place AND k.status = 'COMPLETED'
             GROUP BY place ORDER BY place), b.bounds
FROM pgtrickle.pgt_stream_tables AS t CROSS JOIN (SELECT pgtrickle_internal.duration_bounds()) AS b(bounds)
JOIN pgtrickle.pgt_refresh_counts AS c ON c.pgt_id = t.pgt_id AND c.status = 'COMPLETED'
GROUP BY t.pgt_id, t.pgt_schema, t.pgt_name, b.bounds ORDER BY 1
"""
_LEADERS = """
SELECT l.role_name, (l.connected AND l.beats)::int::float8, extract(epoch FROM l.heartbeat_age)::float8
FROM pgtrickle.pgt_leaders AS l WHERE l.purpose = 'service' AND l.instance IS NOT NULL ORDER BY 1
"""
_LOOPS = """
SELECT role_name, loop, extract(epoch FROM last_wake)::float8, coalesce(busy_s, 0)::float8
FROM pgtrickle.pgt_service_loops ORDER BY 1, 2
"""
_WAITING = """
SELECT count(*)::float8, coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
FROM pgtrickle.pgt_requests WHERE state = 'PENDING'
"""
_REQUESTS = "SELECT state, count(*)::float8 FROM pgtrickle.pgt_requests GROUP BY state"
_STATES = ("PENDING", "RUNNING", "DONE", "FAILED")
_STATUSES = ("INITIALIZING", "ACTIVE", "SUSPENDED", "ERROR")
_TABLE_MODES = ("FULL", "DIFFERENTIAL", "IMMEDIATE")
_MODES = ("TRIGGER", "TRANSITIONING", "WAL")


class CatalogMetrics(Collector):
    """All that is known of a database's stream tables, asked for at each scrape, over one connection."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._conn: db.Connection | None = None
        self._lock = threading.Lock()

    def describe(self) -> list[Metric]:
        """Nothing beforehand: being registered must not ask the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What the catalog says; of one that cannot be asked, only that."""
        up = GaugeMetricFamily("pgtrickle_up", "Whether the database could be asked")
        found: list[Metric] = []
        with self._lock, suppress(Error, psycopg.Error):  # `pgtrickle_up` tells it
            found = list(_read(self._connection()))
        up.add_metric([], float(bool(found)))
        yield from (up, *found)

    def problem(self) -> str | None:
        """Why the catalog cannot be asked, if it cannot."""
        with self._lock:
            try:
                self._connection().execute("SELECT FROM pgtrickle.pgt_stream_tables LIMIT 0")
            except (Error, psycopg.Error) as error:
                return " ".join(str(error).split())
        return None

    def _connection(self) -> db.Connection:
        if self._conn is not None and not self._conn.closed:
            try:
                self._conn.execute("SELECT 1")
            except psycopg.OperationalError:
                self._conn.close()  # the server was restarted: a new one is opened
        if self._conn is None or self._conn.closed:
            self._conn = db.connect(self._dsn, application_name="pgtrickle metrics", connect_timeout=_PATIENCE_S)
        return self._conn


def _read(conn: db.Connection) -> Iterator[Metric]:
    rows = conn.execute(db.statement(_TABLES)).fetchall()
    for name, help, place in _GAUGES:
        gauge = GaugeMetricFamily(f"pgtrickle_{name}", help, labels=["table"])
        for row in rows:
            if row[place] is not None:
                gauge.add_metric([str(row[0])], float(str(row[place])))
        yield gauge
    for name, help, place in _COUNTERS:
        counter = CounterMetricFamily(f"pgtrickle_{name}", help, labels=["table"])
        for row in rows:
            counter.add_metric([str(row[0])], float(str(row[place])))
        yield counter
    yield _durations(conn)
    yield _requests(conn)
    yield from _waiting(conn)
    yield from _services(conn)
    yield _states("pgtrickle_table_status", "Status of a stream table", "table", "status", _STATUSES, rows)
    modes = [(row[0], row[12]) for row in rows]
    yield _states("pgtrickle_table_mode", "How a stream table is maintained", "table", "mode", _TABLE_MODES, modes)
    captured = [(each.source_table, each.cdc_mode) for each in catalog.cdc_status(conn)]
    yield _states("pgtrickle_source_mode", "How a source is captured", "source", "mode", _MODES, captured)
    yield from _slot(conn)


def _durations(conn: db.Connection) -> Metric:
    family = HistogramMetricFamily("pgtrickle_refresh_duration_seconds", "Time that refreshes took", labels=["table"])
    for table, seconds, counts, bounds in conn.execute(db.statement(_DURATIONS)).fetchall():
        assert isinstance(counts, list)
        assert isinstance(bounds, list)
        names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
        buckets = list(zip(names, accumulate(counts), strict=True))
        family.add_metric([str(table)], buckets=buckets, sum_value=float(str(seconds)))
    return family


def _requests(conn: db.Connection) -> Metric:
    family = GaugeMetricFamily("pgtrickle_requests", "Requests made by SQL, by their state", labels=["state"])
    found = {str(state): float(str(count)) for state, count in conn.execute(db.statement(_REQUESTS)).fetchall()}
    for state in _STATES:
        family.add_metric([state], found.get(state, 0.0))
    return family


def _waiting(conn: db.Connection) -> Iterator[Metric]:
    ((count, seconds),) = conn.execute(db.statement(_WAITING)).fetchall()
    yield GaugeMetricFamily("pgtrickle_requests_waiting", "Requests that no service has taken yet", float(str(count)))
    yield GaugeMetricFamily(
        "pgtrickle_oldest_request_seconds", "Time that the oldest of them waits", float(str(seconds))
    )


def _services(conn: db.Connection) -> Iterator[Metric]:
    """Who leads, and the loops of each service: their last wake is a time, to be compared with that of the scrape."""
    leads = GaugeMetricFamily("pgtrickle_leader", "Whether the service of a role leads, and lives", labels=["role"])
    beats = GaugeMetricFamily("pgtrickle_heartbeat_age_seconds", "Time since its last heartbeat", labels=["role"])
    for role, alive, age in conn.execute(db.statement(_LEADERS)).fetchall():
        leads.add_metric([str(role)], float(str(alive)))
        beats.add_metric([str(role)], float(str(age)))
    labels = ["role", "loop"]
    woken = GaugeMetricFamily(
        "pgtrickle_loop_last_wake_timestamp_seconds",
        "When a loop of the service last woke, by the server",
        labels=labels,
    )
    busy = GaugeMetricFamily("pgtrickle_loop_busy_seconds", "Time that it has been at what it is at", labels=labels)
    for role, loop, at, seconds in conn.execute(db.statement(_LOOPS)).fetchall():
        woken.add_metric([str(role), str(loop)], float(str(at)))
        busy.add_metric([str(role), str(loop)], float(str(seconds)))
    yield from (leads, beats, woken, busy)


def _states(
    name: str, help: str, what: str, state: str, states: tuple[str, ...], rows: Sequence[tuple[object, ...]]
) -> Metric:
    """One series for each state a thing can be in, which is 1 for the one that it is in."""
    family = GaugeMetricFamily(name, help, labels=[what, state])
    for row in rows:
        for each in states:
            family.add_metric([str(row[0]), each], float(row[1] == each))
    return family


def _slot(conn: db.Connection) -> Iterator[Metric]:
    found = health.slot_health(conn)
    lag = GaugeMetricFamily("pgtrickle_slot_lag_bytes", "WAL written since the position that was decoded")
    retained = GaugeMetricFamily("pgtrickle_slot_retained_bytes", "WAL that the slot holds back")
    decoding = GaugeMetricFamily("pgtrickle_decoder_up", "Whether the decoder reads the slot")
    if found is not None:
        lag.add_metric([], float(found.lag_bytes or 0))
        retained.add_metric([], float(found.retained_wal_bytes or 0))
        decoding.add_metric([], float(found.active))
    yield from (lag, retained, decoding)
