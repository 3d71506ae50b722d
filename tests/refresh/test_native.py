"""Large work that Spark evaluates by itself: values that its types do not hold, errors, and keys of every type."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.config import Settings
from pgtrickle.errors import Error
from pgtrickle.physical.flow import Computed, HashMatch
from pgtrickle.physical.flow_text import physical_text
from pgtrickle.physical.table_facts import TableFacts, TableFactsMap
from pgtrickle.refresh.definition.define import rehearse
from pgtrickle.refresh.plan import plan_full
from tests.refresh.oracle import differing
from tests.steps.native import force

TOTALS = (
    "SELECT p.kind, sum(i.n * p.price) AS total, avg(p.price) AS mean, min(i.day) AS since, max(p.price) AS dearest, "
    "count(*) AS n FROM items i JOIN products p ON p.id = i.product WHERE i.day < '2030-01-01' GROUP BY p.kind"
)
LINES = "SELECT p.kind, i.n * i.n AS square, p.price * 2 AS twice FROM items i JOIN products p ON p.id = i.product"
ASKED = "evaluated by PostgreSQL, not by Spark"

BySpark = list[Computed | HashMatch]


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> BySpark:
    return force(monkeypatch)


def create(connection: db.Connection) -> None:
    connection.execute("CREATE TABLE products (id int PRIMARY KEY, kind text, price numeric(8,2))")
    connection.execute("CREATE TABLE items (id int PRIMARY KEY, product int, n int, day date)")
    connection.execute("INSERT INTO products SELECT g, 'k' || g % 3, g / 4.0 FROM generate_series(1, 20) AS g")
    connection.execute(
        "INSERT INTO items SELECT g, nullif(g % 21, 5), g % 7, '2026-01-01'::date + g FROM generate_series(1, 200) AS g"
    )


def test_values_outside_of_sparks_types(database18: str, spark: SparkSession, by_spark: BySpark) -> None:
    windows = {
        "UPDATE items SET n = n + 1 WHERE id % 3 = 0": False,
        "UPDATE products SET price = 'NaN' WHERE id = 3": True,
        "INSERT INTO items VALUES (-1, 2, NULL, '-infinity'), (-2, 2, 5, NULL)": True,
        "UPDATE products SET price = 1 WHERE id = 3": True,  # the NaN that left is one of the window's values
        "DELETE FROM items WHERE id < 50": True,
        "UPDATE items SET n = 3 WHERE id > 150": False,
    }
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        create(connection)
        trickle.create_stream_table("totals", TOTALS, refresh_mode="DIFFERENTIAL")
        assert differing(connection, "totals", TOTALS) == []
        for statement, asked in windows.items():
            connection.execute(db.statement(statement))
            by_spark.clear()
            trickle.refresh_stream_table("totals")
            assert differing(connection, "totals", TOTALS) == []
            assert by_spark
            assert (ASKED in str(trickle.history("totals", 1)[0].reason)) is asked, statement


def test_errors_are_postgresqls(database18: str, spark: SparkSession, by_spark: BySpark) -> None:
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        create(connection)
        trickle.create_stream_table("lines", LINES, refresh_mode="DIFFERENTIAL")
        connection.execute("UPDATE items SET n = 46341 WHERE id = 7")
        with pytest.raises(Error, match="integer out of range"):
            trickle.refresh_stream_table("lines")
        connection.execute("UPDATE items SET n = 46340 WHERE id = 7")
        trickle.refresh_stream_table("lines", full=True)  # a large window computes what came and went, too
        assert differing(connection, "lines", LINES) == []
        assert by_spark


OFFERS = (
    "SELECT i.id, o.price, EXISTS (SELECT FROM offers x WHERE x.product = i.product AND x.since <= i.day) AS offered "
    "FROM items i LEFT JOIN offers o ON o.product = i.product AND o.since < i.day"
)


def test_matches_that_spark_stops_at(database18: str, spark: SparkSession, by_spark: BySpark) -> None:
    """Of a left join and a mark: PostgreSQL is asked for them while there is a value outside of Spark's types."""
    windows = {
        "UPDATE offers SET since = since + 1 WHERE product < 5": False,
        "INSERT INTO offers VALUES (2, 1.5, '-infinity'), (2, 1.5, '-infinity'), (NULL, 1, '2020-01-01')": True,
        "UPDATE items SET day = day - 3": True,
        "DELETE FROM offers WHERE since = '-infinity'": True,
        "UPDATE items SET product = product + 1 WHERE id % 5 = 0": False,
    }
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        create(connection)
        connection.execute("CREATE TABLE offers (product int, price numeric(8,2), since date)")
        connection.execute(
            "INSERT INTO offers SELECT g % 15, g, '2026-01-01'::date + g * 7 FROM generate_series(1, 30) AS g"
        )
        trickle.create_stream_table("offered", OFFERS, refresh_mode="DIFFERENTIAL")
        assert any(isinstance(flow, HashMatch) for flow in by_spark)
        for statement, asked in windows.items():
            connection.execute(db.statement(statement))
            for full in (False, True):
                by_spark.clear()
                trickle.refresh_stream_table("offered", full=full)
                assert differing(connection, "offered", OFFERS) == []
                assert any(isinstance(flow, HashMatch) for flow in by_spark)
                told = ASKED in str(trickle.history("offered", 1)[0].reason)
                assert told is (asked and not (full and statement.startswith("DELETE"))), (statement, full)


def test_where_matches_run(database18: str) -> None:
    """Tasks share the left side of a join of tables. Where they cannot, it is one query's, or that of many tasks."""
    groups = "SELECT l.id, g.n FROM l LEFT JOIN (SELECT k, count(*) AS n FROM r GROUP BY k) g ON g.k = l.k"
    by_range = groups.replace("g.k = l.k", "g.k < l.k")
    with db.open_session(database18) as connection, Trickle(database18):
        connection.execute("CREATE TABLE l (id int PRIMARY KEY, k int)")
        connection.execute("CREATE TABLE r (id int PRIMARY KEY, k int)")

        def planned(query: str, tasks: int, *, spare: bool = False) -> str:
            prepared, _ = rehearse(connection, query, Settings())
            tables = {table.oid: TableFacts(2e6) for table in prepared.sources}
            return physical_text(plan_full(prepared, TableFactsMap(tables, tasks=tasks), spare=spare))

        assert "a join evaluated by PostgreSQL (about" in planned(
            "SELECT l.id, r.id AS r FROM l LEFT JOIN r USING (k)", 64
        )
        assert "a join evaluated by PostgreSQL in one query (about" in planned(groups, 2)
        assert "left join on Spark" in planned(groups, 64)
        assert "left join on Spark" in planned(groups, 2, spare=True)
        assert "in one query (no key that Spark compares as PostgreSQL does)" in planned(by_range, 64)


KEYS = {
    "uuid": "(lpad(to_hex({g}), 32, '0'))::uuid",
    "date": "CASE {g} WHEN 1 THEN 'infinity' WHEN 2 THEN '0044-03-15 BC' ELSE '2026-01-01'::date + {g} END",
    "timestamptz": "CASE {g} WHEN 1 THEN '-infinity' ELSE '2026-10-25 0:00Z'::timestamptz + {g} * '20 m'::interval END",
    "timestamp(3)": "'2026-01-01'::timestamp + {g} * '1 ms'::interval",
    "numeric(8,3)": "CASE {g} WHEN 1 THEN 'NaN' ELSE {g} / 8.0 END",
    "char(4)": "'a' || {g}",
    "bytea": "decode(lpad(to_hex({g}), 4, '0'), 'hex')",
    "mood": "(ARRAY['sad', 'ok', 'happy'])[1 + {g} % 3]::mood",
    "inet": "'10.0.0.0'::inet + {g}",
    "text": "repeat(' ', {g} % 3) || {g}",
    "boolean": "{g} % 2 = 0",
    "bigint": "{g} * 4294967296",
    "float8": "{g} / 8.0::float8",
    "interval": "{g} * '1 hour'::interval",
}


def test_keys_of_every_type(database18: str, spark: SparkSession, by_spark: BySpark) -> None:
    """Joined by, grouped by and carried along; the last two types are such as Spark does not compare."""
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
        queries = {}
        for number, (type_, value) in enumerate(KEYS.items()):
            left, right = f"l{number}", f"r{number}"
            for table in (left, right):
                connection.execute(db.statement(f"CREATE TABLE {table} (id int PRIMARY KEY, k {type_}, x {type_})"))
                made = value.format(g="g")
                rows = f"SELECT g, nullif(g, 4) IS NULL AS no, {made} AS k FROM generate_series(1, 12) AS g"
                connection.execute(
                    db.statement(f"INSERT INTO {table} SELECT g, CASE WHEN NOT no THEN k END, k FROM ({rows}) AS rows")
                )
            queries[f"s{number}"] = (
                f"SELECT l.k, r.x, count(*) AS n, sum(l.id) AS ids FROM {left} l JOIN {right} r ON l.k = r.k "
                "WHERE l.id < 100 GROUP BY l.k, r.x"
            )
        for name, query in queries.items():
            trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        for window in ("UPDATE {t} SET id = id + 20 WHERE id % 2 = 0", "DELETE FROM {t} WHERE id < 5"):
            for number in range(len(KEYS)):
                connection.execute(db.statement(window.format(t=f"l{number}")))
                connection.execute(db.statement(window.format(t=f"r{number}")))
            for name, query in queries.items():
                trickle.refresh_stream_table(name)
                assert differing(connection, name, query) == [], query
        assert len(by_spark) >= len(KEYS)
