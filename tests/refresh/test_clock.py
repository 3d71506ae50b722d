"""The clock in a query is that of the refresh, and moves as the test says: after each refresh the table equals its
query at that time, as PostgreSQL answers it when the clock is written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.refresh import tick as ticks
from pgtrickle.refresh.group.group_refresh import GroupMember
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.units import refresh_group, refresh_table
from tests.clock import at_time
from tests.refresh.clock_queries import MORE, QUERIES
from tests.refresh.oracle import differing

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Told:
    """Stream tables whose clock is moved by hand."""

    connection: db.Connection
    trickle: Trickle
    at: datetime = START
    queries: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trickle._refresher.clock = lambda: self.at
        self.trickle._refresher.without_spark = True

    def create(self, name: str, query: str, mode: str = "DIFFERENTIAL") -> None:
        self.queries[name] = query
        self.trickle.create_stream_table(name, query, refresh_mode=mode)

    def window(self, *changes: str, **later: float) -> dict[str, RefreshResult]:
        """Changes, the clock, a refresh of all, and that all is right."""
        for change in changes:
            self.connection.execute(db.statement(change))
        self.at += timedelta(**later)
        results = {name: self.trickle.refresh_stream_table(name) for name in self.queries}
        for name, query in self.queries.items():
            assert differing(self.connection, name, at_time(query, self.at)) == [], name
        return results

    def verified(self) -> None:
        """That verification says so, too, of the user's own text."""
        assert [found for found in self.trickle.verify() if not found.equal] == []


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


CHANGES = (
    "UPDATE e SET ts = ts + interval '25 min' WHERE id % 7 = 0",
    "DELETE FROM e WHERE id % 11 = 3",
    "INSERT INTO e SELECT id + 5000, ts + interval '5 min', k + 1, d, t FROM e WHERE id % 5 = 1 AND id < 1000",
    "UPDATE k SET keep = '2 hours' WHERE name = 'c'",
)


def test_a_clock_that_moves(told: Told) -> None:
    """On, with changes and without; not at all; back; and by a day at once."""
    for name, query in QUERIES.items():
        told.create(f"s_{name}", query)
    told.window(minutes=25)
    told.window(CHANGES[0], CHANGES[1], minutes=35)
    assert {result.action for result in told.window().values()} == {"NO_DATA"}
    told.window(CHANGES[2], hours=-3)
    told.window(CHANGES[3], "DELETE FROM e WHERE id = 1", days=1, hours=1)
    told.verified()
    told.connection.execute("UPDATE e SET ts = ts + interval '1 day', k = 1")  # verified as of before
    told.at += timedelta(hours=1)
    told.verified()


def test_a_clock_in_every_place(told: Told) -> None:
    for name, query in MORE.items():
        told.create(f"s_{name}", query)
    told.window(CHANGES[0], CHANGES[1], minutes=35)
    told.window(CHANGES[2], CHANGES[3], hours=-3)
    told.window(days=1)


def test_what_the_history_says(told: Told) -> None:
    told.create("bounded", QUERIES["sliding"])
    told.create("anywhere", QUERIES["difference"])
    told.create("daily", "SELECT id FROM e WHERE d = CURRENT_DATE")
    found = told.window(microseconds=1)
    assert found["bounded"].action == found["anywhere"].action == found["daily"].action == "NO_DATA"
    assert found["bounded"].reason == "the clock moved, and no row with it"
    assert found["daily"].reason == "no changes since the last refresh"
    found = told.window(CHANGES[0], minutes=20)
    assert found["bounded"].reason.endswith(" changes; the clock moved")
    assert found["anywhere"].reason.endswith(" changes; the clock moved, and may change any row")
    (stream,) = told.trickle.status("daily")
    assert stream.data_timestamp == told.at
    explained = told.trickle.explain("bounded"), told.trickle.explain("anywhere")
    assert "range public.e: what the clock passed" in explained[0]
    assert "scan public.e: the clock may change any row" in explained[1]


def test_in_full(told: Told) -> None:
    """Whole queries, with views that read the clock by themselves or through each other."""
    told.connection.execute(
        "CREATE VIEW recent AS SELECT id, ts, age(ts) AS age FROM e WHERE ts > now() - interval '1 hour'"
    )
    told.connection.execute("CREATE VIEW fresh AS SELECT id, age FROM recent WHERE ts < CURRENT_TIMESTAMP")
    view = "SELECT id, age(CURRENT_DATE, ts) AS age FROM e WHERE ts > now() - interval '1 hour'"
    told.create("ranked", "SELECT id, rank() OVER (ORDER BY now() - ts, id) AS r, 'now()' AS l FROM e", "AUTO")
    told.create("asked", "SELECT id, CURRENT_DATE - d AS days FROM e WHERE ts < LOCALTIMESTAMP", "FULL")
    for mode in ("FULL", "DIFFERENTIAL"):
        told.trickle.create_stream_table(f"seen_{mode}", "SELECT id, age FROM fresh", refresh_mode=mode)
        told.queries[f"seen_{mode}"] = f"SELECT id, age FROM ({view} AND ts < now()) AS fresh"
    told.create("ranked_view", f"SELECT id, rank() OVER (ORDER BY age) AS r FROM ({view}) AS recent", "AUTO")
    told.window(minutes=30)
    told.window("UPDATE e SET ts = ts + interval '10 min' WHERE k = 1", hours=-1)
    told.verified()


def test_zones_and_hours_that_do_not_exist(database18: str) -> None:
    """Under the time zone of who defined the table, over both changes of the clocks."""
    query = (
        "SELECT id FROM e WHERE t > LOCALTIMESTAMP - interval '1 hour' AND d >= CURRENT_DATE"
        " UNION ALL SELECT -id FROM e WHERE ts > LOCALTIMESTAMP UNION ALL SELECT id + 1000 FROM e WHERE t < now()"
    )
    for zone, start in (
        ("Europe/Berlin", "2026-03-28T22:40"),
        ("Europe/Berlin", "2026-10-24T22:40"),
        ("Asia/Kolkata", "2026-03-28T17:40"),
    ):
        with db.open_session(f"{database18} options=-cTimeZone={zone}") as connection:
            connection.execute("DROP TABLE IF EXISTS e")
            connection.execute(
                "CREATE TABLE e AS SELECT g AS id, x AS ts, x::timestamp AS t, x::date AS d"
                " FROM generate_series(1, 40) AS g, LATERAL (SELECT %s::timestamptz + g * interval '12 min' AS x) AS y",
                (f"{start}+00",),
            )
            with Trickle(f"{database18} options=-cTimeZone={zone}") as trickle:
                told = Told(connection, trickle, datetime.fromisoformat(f"{start}+00:00"))
                told.create("st", query)
                for _ in range(8):
                    told.window(minutes=35)
                told.window(minutes=-200)
                told.verified()
                trickle.drop_stream_table("st")


def test_tables_of_one_tick(told: Told) -> None:
    """A diamond, refreshed at a tick table by table and as an atomic group: all of them are of the tick's time, while
    writers go on."""
    recent = "SELECT id, k, ts FROM e WHERE ts > now() - interval '2 hours'"
    counted = "SELECT k, count(*) AS n FROM {recent} AS r WHERE ts < now() GROUP BY k"
    latest = "SELECT k, max(ts) AS m FROM {recent} AS r WHERE ts > now() - interval '1 hour' GROUP BY k"
    both = (
        "SELECT c.k, c.n, l.m, l.m < now() AS past, CURRENT_DATE AS day FROM {counted} AS c"
        " LEFT JOIN {latest} AS l ON l.k = c.k JOIN e ON e.k = c.k AND e.ts > now() - interval '10 min'"
    )
    for name, query in (("recent", recent), ("counted", counted), ("latest", latest), ("both_of", both)):
        told.create(name, _over({each: each for each in told.queries}, query))
        told.queries[name] = _over({each: f"({found})" for each, found in told.queries.items()}, query)
    ids = [stream.pgt_id for name in told.queries for stream in told.trickle.status(name)]
    refresher = told.trickle._refresher
    for place, minutes in enumerate((20, 50, 0, -90, 1500)):
        told.connection.execute(db.statement(CHANGES[place % 3]))
        told.at += timedelta(minutes=minutes)
        with ticks.connect(refresher.dsn) as connection, ticks.held(connection) as at:
            expected = {name: _rows(told, at_time(query, told.at)) for name, query in told.queries.items()}
            told.connection.execute("UPDATE e SET ts = ts + interval '15 min', k = k % 2 WHERE id % 3 = 0")
            if place % 2:
                refresh_group(refresher, dict.fromkeys(ids, GroupMember("SCHEDULER")), at)
            else:
                for pgt_id in ids:
                    refresh_table(refresher, pgt_id, tick=at)
            assert {stream.frontier for stream in told.trickle.status()} == {at.moment.snapshot}
            for name in told.queries:
                assert _rows(told, f"SELECT * FROM {name}") == expected[name], (name, place)
        told.verified()


def _over(tables: Mapping[str, str], query: str) -> str:
    for name, table in tables.items():
        query = query.replace("{" + name + "}", table)
    return query


def _rows(told: Told, query: str) -> Counter[tuple[object, ...]]:
    return Counter(told.connection.execute(db.statement(query)).fetchall())


def test_an_index_whose_order_is_not_that_of_the_comparison(database18: str) -> None:
    """In spring 02:30 does not exist: it is taken for 03:30, which is after 03:10. An index on timestamps without a
    zone has it before, and what is compared with now() cannot be found by it in that hour."""
    dsn = f"{database18} options='-cTimeZone=Europe/Berlin -cenable_seqscan=off'"
    with db.open_session(dsn) as connection:
        connection.execute(
            "CREATE TABLE e AS SELECT g AS id, '2026-03-29 00:30'::timestamp + g * interval '1 min' AS t"
            " FROM generate_series(1, 240) AS g"
        )
        connection.execute("CREATE INDEX ON e (t)")
        connection.execute("ANALYZE e")
        connection.execute("SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off")
        with Trickle(dsn) as trickle:
            told = Told(connection, trickle, datetime(2026, 3, 29, 0, 40, tzinfo=UTC))
            told.create("st", "SELECT id FROM e WHERE t <= now()")
            for _ in range(14):
                told.window(minutes=7)
