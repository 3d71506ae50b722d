"""The clock in every session that evaluates a part of a query: Spark's tasks, on the short path and beyond it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.physical.table_facts import SMALL_CHANGES
from tests.clock import at_time
from tests.refresh.oracle import differing

EVENTS = 5 * SMALL_CHANGES // 2
QUERIES = {
    "sliding": "SELECT id, ts FROM e WHERE ts > now() - interval '6 hours' AND ts <= now()",
    "joined": "SELECT e.id, k.name FROM e JOIN k ON k.k = e.k AND e.ts > now() - interval '6 hours'"
    " WHERE k.since < now()",
    "grouped": "SELECT k, count(*) AS n, count(*) FILTER (WHERE ts > now()) AS later FROM e"
    " WHERE ts > now() - interval '6 hours' GROUP BY k HAVING max(ts) > now() - interval '1 hour'",
    "left_joined": "SELECT k.k, k.name, count(e.id) AS n FROM k LEFT JOIN e ON e.k = k.k"
    " AND e.ts > now() - k.keep AND k.since < now() GROUP BY k.k, k.name",
}


def test_small_and_large_steps_of_the_clock(database18: str, spark: SparkSession) -> None:
    at = datetime(2026, 1, 1, 6, tzinfo=UTC)
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        trickle._refresher.clock = lambda: at
        connection.execute("CREATE TABLE e (id int PRIMARY KEY, k int, ts timestamptz)")
        connection.execute("CREATE TABLE k (k int PRIMARY KEY, name text, keep interval, since timestamptz)")
        rows = "SELECT g, g % 50, '2026-01-01 00:00+00'::timestamptz + g * interval '1 s'"
        connection.execute(db.statement(f"INSERT INTO e {rows} FROM generate_series(1, {EVENTS}) AS g"))
        connection.execute("CREATE INDEX ON e (ts)")
        connection.execute(
            "INSERT INTO k SELECT g, 'n' || g, g * interval '10 min', '2026-01-01 00:00+00'::timestamptz"
            " + g * interval '12 min' FROM generate_series(0, 45) AS g"
        )
        connection.execute("ANALYZE")
        for name, query in QUERIES.items():
            trickle.create_stream_table(name, query)
        for later, change in (
            (timedelta(minutes=5), "UPDATE e SET k = k + 1 WHERE id % 1000 = 0"),
            (timedelta(seconds=EVENTS // 2), "DELETE FROM e WHERE id % 1000 = 1"),
        ):
            at += later
            connection.execute(db.statement(change))
            for name, query in QUERIES.items():
                result = trickle.refresh_stream_table(name)
                assert result.action == "DIFFERENTIAL", result
                assert differing(connection, name, at_time(query, at)) == [], name
