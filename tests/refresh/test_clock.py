"""The clock in a query is that of the refresh, and moves as the test says: after each refresh the table equals its
query at that time, as PostgreSQL answers it when the clock is written out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.refresh.result import RefreshResult
from tests.refresh.oracle import differing

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Told:
    """A stream table whose clock is moved by hand."""

    connection: db.Connection
    trickle: Trickle
    at: datetime = START

    def __post_init__(self) -> None:
        self.trickle._refresher.clock = lambda: self.at
        self.trickle._refresher.without_spark = True

    def create(self, name: str, query: str, mode: str = "DIFFERENTIAL") -> None:
        self.trickle.create_stream_table(name, query, refresh_mode=mode)
        self.holds(name, query)

    def refresh(self, name: str, query: str, *changes: str, **later: float) -> RefreshResult:
        """Changes, the clock, a refresh, and that all is right."""
        for change in changes:
            self.connection.execute(db.statement(change))
        self.at += timedelta(**later)
        result = self.trickle.refresh_stream_table(name)
        self.holds(name, query)
        return result

    def holds(self, name: str, query: str) -> None:
        with self.connection.transaction():
            self.connection.execute("SELECT set_config('TimeZone', %s, true)", (self.zone(name),))
            assert differing(self.connection, name, self.at_its_time(query)) == []
        (found,) = self.trickle.verify(name)
        assert found.equal, found

    def zone(self, name: str) -> str:
        (stream,) = self.trickle.status(name)
        return str(stream.settings["TimeZone"]) if hasattr(stream, "settings") else "UTC"

    def at_its_time(self, query: str) -> str:
        time = f"timestamptz '{self.at.isoformat()}'"
        for call, value in (
            ("now()", time),
            ("CURRENT_DATE", f"(({time})::date)"),
            ("CURRENT_TIMESTAMP", time),
            ("LOCALTIMESTAMP", f"(({time})::timestamp)"),
            ("CURRENT_TIME", f"(({time})::timetz)"),
            ("LOCALTIME", f"(({time})::time)"),
        ):
            query = query.replace(call, f"({value})")
        return query


@pytest.fixture
def told(database18: str) -> Iterator[Told]:
    with db.open_session(database18) as connection, Trickle(database18) as trickle:
        connection.execute("CREATE TABLE e (id int PRIMARY KEY, ts timestamptz, k int, d date, t timestamp)")
        connection.execute("CREATE INDEX ON e (ts)")
        connection.execute(
            "INSERT INTO e SELECT g, x, g % 4, x::date, x FROM generate_series(-60, 200) AS g,"
            " LATERAL (SELECT '2026-01-01 12:00+00'::timestamptz - g * interval '10 min' AS x) AS y"
        )
        connection.execute("INSERT INTO e VALUES (1000, NULL, 1, NULL, NULL), (1001, now(), NULL, NULL, now())")
        connection.execute("INSERT INTO e SELECT id + 2000, ts, k, d, t FROM e WHERE id % 10 = 0 AND id < 1000")
        connection.execute("CREATE TABLE k (k int, name text, keep interval, since timestamptz)")
        connection.execute(
            "INSERT INTO k VALUES (0, 'a', '1 hour', '2026-01-01'), (1, 'b', '5 hours', '2026-01-02'),"
            " (1, 'c', '1 day', '2025-12-31'), (2, NULL, NULL, '2026-01-01 12:30+00'), (NULL, 'n', '1 day', NULL)"
        )
        yield Told(connection, trickle)


QUERIES = {
    "sliding": "SELECT id, ts FROM e WHERE ts > now() - interval '5 hours' AND ts <= now()",
    "after": "SELECT id FROM e WHERE ts + interval '5 hours' > now()",
    "difference": "SELECT id FROM e WHERE now() - ts < interval '5 hours'",
    "either": "SELECT id FROM e WHERE k = 2 OR ts > now() - interval '5 hours'",
    "negated": "SELECT id FROM e WHERE NOT (ts > now() - interval '5 hours' AND k < 3)",
    "today": "SELECT id, d FROM e WHERE d = CURRENT_DATE OR d > CURRENT_DATE + 2",
    "local": "SELECT id FROM e WHERE t > LOCALTIMESTAMP - interval '3 hours'",
    "truncated": "SELECT id FROM e WHERE ts >= date_trunc('hour', now()) - interval '2 hours'",
    "selected": "SELECT id, now() AS n, CURRENT_DATE - d AS days, age(now(), ts) AS age FROM e WHERE id < 50",
    "labelled": "SELECT id, CASE WHEN ts > now() - interval '1 hour' THEN 'new' ELSE 'old' END AS label FROM e",
    "grouped": "SELECT k, count(*) AS n, max(ts) AS m FROM e WHERE ts > now() - interval '5 hours' GROUP BY k",
    "having": "SELECT k, max(ts) AS m, count(*) AS n FROM e WHERE id > 0 GROUP BY k"
    " HAVING max(ts) < now() - interval '30 min'",
    "counted": "SELECT k, count(*) FILTER (WHERE ts > now() - interval '1 hour') AS n, sum(id) AS s FROM e GROUP BY k",
    "listed": "SELECT k, string_agg(id::text, ',' ORDER BY id) FILTER (WHERE ts > now()) AS l FROM e GROUP BY k",
    "joined": "SELECT e.id, k.name FROM e JOIN k ON k.k = e.k AND e.ts > now() - k.keep",
    "left": "SELECT e.id, k.name FROM e LEFT JOIN k ON k.k = e.k AND k.since > now() AND e.ts < now()",
    "left_both": "SELECT e.id, k.name FROM e LEFT JOIN k ON k.k = e.k AND e.ts > now() - k.keep",
    "full": "SELECT e.id, k.name FROM e FULL JOIN k ON k.k = e.k AND e.ts > now() - interval '2 hours'",
    "exists": "SELECT name FROM k WHERE EXISTS (SELECT FROM e WHERE e.k = k.k AND e.ts > now() - k.keep)",
    "not_in": "SELECT id FROM e WHERE k NOT IN (SELECT k FROM k WHERE since < now() AND k IS NOT NULL)",
    "scalar": "SELECT name, (SELECT count(*) FROM e WHERE e.k = k.k AND e.ts > now() - interval '2 hours') AS n FROM k",
    "first": "SELECT id, ts FROM e WHERE ts < now() ORDER BY ts DESC, id LIMIT 5",
    "distinct": "SELECT DISTINCT k, ts > now() AS later FROM e",
    "distinct_on": "SELECT DISTINCT ON (k) k, id FROM e WHERE ts < now() ORDER BY k, ts DESC, id",
    "union": "SELECT id FROM e WHERE ts > now() UNION ALL SELECT k FROM k WHERE since > now()",
    "except": "SELECT k FROM e WHERE ts > now() EXCEPT ALL SELECT k FROM k",
    "twice": "WITH w AS (SELECT k, count(*) AS n FROM e WHERE ts > now() - interval '1 hour' GROUP BY k)"
    " SELECT a.k, a.n, b.n AS other FROM w AS a JOIN w AS b ON b.n >= a.n WHERE b.k < extract(minute FROM now())",
    "over_groups": "SELECT g.k, e.id FROM (SELECT k, max(ts) AS m FROM e GROUP BY k) AS g JOIN e ON e.k = g.k"
    " WHERE g.m > now() + interval '9 hours' AND e.ts < now()",
    "series": "SELECT s.hour, count(e.id) AS n FROM generate_series(date_trunc('hour', now()) - interval '3 hours',"
    " date_trunc('hour', now()), interval '1 hour') AS s(hour) LEFT JOIN e ON e.ts >= s.hour"
    " AND e.ts < s.hour + interval '1 hour' GROUP BY s.hour",
    "values": "SELECT v.at, e.id FROM (VALUES (now()), (now() + interval '1 hour')) AS v(at) JOIN e ON e.ts = v.at",
    "kept_apart": "SELECT id FROM e WHERE ts > now() - interval '1 hour' AND 1 < extract(day FROM now()) AND k > 0",
    "gated": "SELECT id FROM e WHERE ts > CASE WHEN extract(hour FROM now()) < 14 THEN now() END",
    "times": "SELECT id, CURRENT_TIME AS a, LOCALTIME AS b FROM e WHERE ts::time < LOCALTIME AND id < 20",
}
CHANGES = (
    "UPDATE e SET ts = ts + interval '25 min' WHERE id % 7 = 0",
    "DELETE FROM e WHERE id % 11 = 3",
    "INSERT INTO e SELECT id + 5000, ts + interval '5 min', k + 1, d, t FROM e WHERE id % 5 = 1 AND id < 1000",
    "UPDATE k SET keep = '2 hours' WHERE name = 'c'",
)


@pytest.mark.parametrize("name", QUERIES)
def test_a_clock_that_moves(told: Told, name: str) -> None:
    query = QUERIES[name]
    told.create("st", query)
    told.refresh("st", query, minutes=25)
    told.refresh("st", query, CHANGES[0], CHANGES[1], minutes=35)
    told.refresh("st", query)
    told.refresh("st", query, CHANGES[2])
    told.refresh("st", query, hours=-3)
    told.refresh("st", query, CHANGES[3], "DELETE FROM e WHERE id = 1", days=1, hours=1)
    told.refresh("st", query, microseconds=1)
