"""What a refresh reads: a changed row costs the keys it touches, not the tables. Counted by PostgreSQL itself."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from tests.refresh.reads import rows_read

ROWS, KEYS = 20_000, 4_000
BOUND = 300  # for each of the queries, of the tables' 20,000 rows each and the states' 4,000

EACH = {
    "with_query": "SELECT t.id, (WITH w AS (SELECT r.v FROM r WHERE r.k = t.k) SELECT count(*) FROM w) AS n FROM t",
    "derived": "SELECT t.id, (SELECT sum(q.v) FROM (SELECT r.v FROM r WHERE r.k = t.k) q) AS s FROM t",
    "with_having": "SELECT t.id FROM t WHERE EXISTS "
    "(SELECT FROM (SELECT r.v FROM r WHERE r.k = t.k) q HAVING count(*) > 5)",
    "beside": "SELECT t.id, q.n FROM t, LATERAL (SELECT count(*) AS n FROM (SELECT r.v FROM r WHERE r.k = t.k) w) q",
    "two_levels": "SELECT t.id, (SELECT count(*) FROM r WHERE r.k = t.k AND EXISTS "
    "(SELECT FROM s WHERE s.k = r.k AND s.v > t.k)) AS n FROM t",
    "behind_a_filter": "WITH j AS (SELECT r.k, r.v, g.n FROM r "
    "JOIN (SELECT k, count(*) AS n FROM s GROUP BY k) AS g ON g.k = r.k) "
    "SELECT t.id, j.v FROM t JOIN j ON j.k = t.k WHERE j.n > 1 UNION ALL SELECT k, v FROM j",
    "unions": "SELECT t.id, q.x FROM t, LATERAL (SELECT r.v AS x FROM r WHERE r.k = t.k UNION ALL SELECT t.k) q",
}
PARTNERS = 1_000
TWICE = {
    "in_groups": "WITH j AS (SELECT t.id, r.v FROM t JOIN r ON r.k = t.k) "
    "SELECT id, c.n, d.s FROM (SELECT id, count(*) AS n FROM j GROUP BY id) AS c "
    "JOIN (SELECT id, sum(v) AS s FROM j WHERE v > 1 GROUP BY id) AS d USING (id)",
    "in_sets": "SELECT t.id, t.k, sum(r.v) AS s FROM t JOIN r ON r.k = t.k GROUP BY GROUPING SETS ((t.id), (t.k))",
    "outwards": "WITH j AS (SELECT t.id, r.v FROM t LEFT JOIN r ON r.k = t.k) "
    "SELECT id, v FROM j WHERE v > 3 UNION ALL SELECT id, -v FROM j",
    "with_groups": "WITH j AS (SELECT t.id, r.v, g.n FROM t JOIN r ON r.k = t.k "
    "JOIN (SELECT k, count(*) AS n FROM s GROUP BY k) AS g ON g.k = t.k) "
    "SELECT id, v + n AS x FROM j UNION ALL SELECT id, max(v) FROM j GROUP BY id",
}
AGAIN = {
    "listed": "SELECT k, string_agg(v::text, ',' ORDER BY v) AS s FROM r GROUP BY k",
    "percentile": "SELECT k, percentile_cont(0.5) WITHIN GROUP (ORDER BY v) AS p FROM r GROUP BY k",
    "mode": "SELECT k, mode() WITHIN GROUP (ORDER BY v) AS m FROM r GROUP BY k",
    "of_pairs": "SELECT k, corr(v, k) AS c, regr_slope(v, k) AS s, covar_pop(v, v) AS p FROM r GROUP BY k",
    "of_bits": "SELECT k, bit_or(v) AS o, bit_and(v) AS a FROM r GROUP BY k",
    "of_users": "SELECT k, product(v) AS p FROM r GROUP BY k",
    "first": "SELECT DISTINCT ON (k) k, v FROM r ORDER BY k, v DESC",
    "looks": "SELECT n, count(*) AS rows FROM x GROUP BY n",
    "looks_joined": "SELECT y.v, g.s FROM y JOIN (SELECT n, sum(v) AS s FROM x GROUP BY n) AS g ON g.n = y.n",
    "looks_asked": "SELECT y.v, r.k, (SELECT max(x.v) FROM x WHERE x.n = y.n) AS m FROM y JOIN r ON r.k = y.v",
}
WINDOWS = (
    ("UPDATE t SET k = k + 1 WHERE id = 77", "UPDATE t SET k = NULL WHERE id = 78", "INSERT INTO t VALUES (-1, -1)"),
    ("INSERT INTO r VALUES (123, 1)", "DELETE FROM r WHERE k = 124"),
)


def test_a_changed_row_reads_its_keys(database18: str, spark: SparkSession) -> None:
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        _fill(connection)
        for name, query in EACH.items():
            trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        connection.execute("ANALYZE")
        assert max(rows_read(connection, trickle, EACH, WINDOWS)) < BOUND * len(EACH)


def test_groups_are_computed_again_from_their_rows(database18: str, spark: SparkSession) -> None:
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        _fill(connection)
        connection.execute("CREATE AGGREGATE product(int) (SFUNC = int4mul, STYPE = int, INITCOND = '1')")
        for table in ("x", "y"):
            connection.execute(db.statement(f"CREATE TABLE {table} (n numeric, v int)"))
            rows = f"SELECT g % {KEYS}, g % {KEYS} FROM generate_series(1, {ROWS}) AS g"
            connection.execute(db.statement(f"INSERT INTO {table} {rows}"))
            connection.execute(db.statement(f"CREATE INDEX ON {table} (n)"))
        connection.execute("CREATE INDEX ON y (v)")
        for name, query in AGAIN.items():
            trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        connection.execute("ANALYZE")
        changed = ["INSERT INTO y VALUES (77, 1)", "INSERT INTO r VALUES (123, 1)", "DELETE FROM r WHERE k = 124"]
        windows = [[*changed, "DELETE FROM x WHERE n = 77", "INSERT INTO x VALUES (78.0, 1), (79.00, 2), (124, 9)"]]
        assert max(rows_read(connection, trickle, AGAIN, windows)) < BOUND * len(AGAIN)


def test_the_joins_of_a_with_query_are_read_once(database18: str, spark: SparkSession) -> None:
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        _fill(connection)
        partners = f"SELECT -5, g % 7 FROM generate_series(1, {PARTNERS}) AS g"
        connection.execute(db.statement(f"INSERT INTO r {partners}"))
        connection.execute("INSERT INTO s VALUES (-5, 1)")
        for name, query in TWICE.items():
            trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        connection.execute("ANALYZE")
        (read,) = rows_read(connection, trickle, TWICE, [["INSERT INTO t VALUES (-1, -5)"]])
        assert PARTNERS * len(TWICE) <= read < (PARTNERS + BOUND) * len(TWICE)


def _fill(connection: db.Connection) -> None:
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, k int)")
    connection.execute(db.statement(f"INSERT INTO t SELECT g, g % {KEYS} FROM generate_series(1, {ROWS}) AS g"))
    connection.execute("CREATE INDEX ON t (k)")
    for table in ("r", "s"):
        connection.execute(db.statement(f"CREATE TABLE {table} (k int, v int)"))
        rows = f"SELECT g % {KEYS}, g % 7 FROM generate_series(1, {ROWS}) AS g"
        connection.execute(db.statement(f"INSERT INTO {table} {rows}"))
        connection.execute(db.statement(f"CREATE INDEX ON {table} (k)"))
