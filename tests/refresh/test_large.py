"""Windows and tables beyond the short path: tasks read ranges of buffers and tables, Spark joins, tasks land."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.physical.table_facts import SMALL_CHANGES
from tests.refresh.oracle import differing

TOTALS = (
    "SELECT c.region, count(*) AS n, sum(o.amount) AS amount, min(o.amount) AS low, max(c.name) AS last "
    "FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region"
)
DETAIL = (
    "SELECT o.id, c.name, o.amount * 2 AS twice FROM orders o JOIN customers c ON c.id = o.customer WHERE o.amount > 10"
)
BUSY = (
    "SELECT t.region, count(*) AS customers FROM (SELECT c.region, o.customer, count(*) AS n FROM orders o "
    "JOIN customers c ON c.id = o.customer GROUP BY c.region, o.customer) t WHERE t.n > 20 GROUP BY t.region"
)


def test_large_windows(database18: str, spark: SparkSession) -> None:
    changed = SMALL_CHANGES + 5_000
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY, name text, region int)")
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric)")
        connection.execute(
            "INSERT INTO customers SELECT g, 'c' || g, nullif(g % 7, 3) FROM generate_series(1, 2000) AS g"
        )
        connection.execute(
            "INSERT INTO orders SELECT g, nullif(g % 2100, 5), (g % 1000) / 8.0 FROM generate_series(1, 60000) AS g"
        )
        connection.execute("CREATE INDEX ON orders (customer)")
        connection.execute("ANALYZE")
        tables = {"totals": TOTALS, "detail": DETAIL, "busy": BUSY}
        for name, query in tables.items():
            result = trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
            assert result is not None
            assert differing(connection, name, query) == []
        windows = [
            [f"UPDATE orders SET amount = amount + 0.25 WHERE id <= {changed}"],
            [f"DELETE FROM orders WHERE id <= {changed}", "UPDATE customers SET region = region + 1 WHERE id % 3 = 0"],
            [f"INSERT INTO orders SELECT -g, g % 2000, g FROM generate_series(1, {changed}) AS g"],
            ["UPDATE customers SET name = name || '!', region = 1"],
        ]
        for window in windows:
            for statement in window:
                connection.execute(statement)
            for name, query in tables.items():
                assert trickle.refresh_stream_table(name).action == "DIFFERENTIAL"
                assert differing(connection, name, query) == []
        left = connection.execute(
            "SELECT relname FROM pg_class"
            " WHERE relnamespace = 'pgtrickle_state'::regnamespace AND relname LIKE 'stage%'"
        ).fetchall()
        assert left == []
