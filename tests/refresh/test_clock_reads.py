"""What a clock that moves reads of a table: what it passed, by an index, and not the table. Counted by PostgreSQL
itself, once the sessions that read have ended."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from pgtrickle import db
from pgtrickle.api import Trickle
from tests.clock import at_time
from tests.refresh.oracle import differing

ROWS = 20_000
PASSED = 40  # at either bound: a row comes every second, and the clock moves by 40
BOUND = 20 * PASSED  # for each row that is passed at either bound: a few ranges, each read then and now
QUERIES = {
    "sliding": "SELECT id, ts FROM e WHERE ts > now() - interval '1 hour' AND ts <= now()",
    "in_seconds": "SELECT id FROM e WHERE s > extract(epoch FROM now()) - 3600",
    "either": "SELECT id FROM e WHERE id < 0 OR ts BETWEEN now() - interval '1 hour' AND now()",
    "labelled": "SELECT id, CASE WHEN ts > now() - interval '1 hour' THEN 'new' ELSE 'old' END AS label FROM e",
    "counted": "SELECT k, count(*) FILTER (WHERE ts > now() - interval '1 hour') AS n, count(*) AS m FROM e GROUP BY k",
    "joined": "SELECT e.id, k.name FROM e JOIN k ON k.k = e.k WHERE ts > now() - interval '1 hour'",
    "semi_joined": "SELECT k FROM k WHERE EXISTS (SELECT FROM e WHERE e.k = k.k AND e.ts > now() - interval '1 hour')",
}


def test_what_the_clock_passed_is_read(database18: str) -> None:
    at = datetime(2026, 1, 1, 4, tzinfo=UTC)
    with db.open_session(database18) as connection:
        connection.execute("CREATE TABLE e (id int PRIMARY KEY, k int, ts timestamptz, s numeric)")
        rows = f"SELECT g, g % 2000, x, extract(epoch FROM x) FROM generate_series(1, {ROWS}) AS g, LATERAL"
        rows += " (SELECT '2026-01-01 00:00+00'::timestamptz + g * interval '1 s' AS x) AS y"
        connection.execute(db.statement(f"INSERT INTO e {rows}"))
        connection.execute("CREATE INDEX ON e (ts); CREATE INDEX ON e (s); CREATE INDEX ON e (k, ts)")
        connection.execute("CREATE TABLE k (k int PRIMARY KEY, name text)")
        connection.execute("INSERT INTO k SELECT g, 'n' || g FROM generate_series(1, 2000) AS g")
        with Trickle(database18) as trickle:
            trickle._refresher.without_spark = True
            trickle._refresher.clock = lambda: at
            for name, query in QUERIES.items():
                trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        connection.execute("VACUUM ANALYZE")
        for name, query in QUERIES.items():
            at += timedelta(seconds=PASSED)
            before = _read(connection)
            with Trickle(database18) as trickle:
                trickle._refresher.without_spark = True
                trickle._refresher.clock = lambda now=at: now
                trickle.refresh_stream_table(name)
            read = _read(connection) - before
            assert differing(connection, name, at_time(query, at)) == [], name
            assert PASSED <= read <= BOUND, (name, read)


def _read(connection: db.Connection) -> int:
    """Rows of the table read by now, once no session is left that has some to tell."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while db.scalar(connection, others):
        time.sleep(0.05)
    connection.execute("SELECT pg_stat_force_next_flush()")
    read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE relname = 'e'"
    return int(str(db.scalar(connection, read)))
