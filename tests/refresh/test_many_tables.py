"""Joins of more tables than PostgreSQL puts in order by itself: a changed row of any of them reads its keys, and no
table whole."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.physical.lookup_order import AT_ONCE
from tests.refresh.reads import rows_read

TABLES = AT_ONCE + 2
ROWS = 20_000

VALUES = " + ".join(f"coalesce(m{n}.v, 1)" for n in range(TABLES))
LAST = f"m{TABLES - 1}"


def joined(kind: str, first: int = 0, last: int = TABLES) -> str:
    """A chain: each table has the key of the next."""
    return f"m{first} " + " ".join(f"{kind} m{n} ON m{n}.k = m{n - 1}.n" for n in range(first + 1, last))


def star(kind: str) -> str:
    """The first table has a key of all others."""
    return "m0 " + " ".join(f"{kind} m{n} ON m{n}.k = m0.n{n}" for n in range(1, TABLES))


HALF = TABLES // 2
QUERIES = {
    "chain": f"SELECT m0.k, {VALUES} AS s FROM {joined('JOIN')}",
    "left_chain": f"SELECT m0.k, {VALUES} AS s FROM {joined('LEFT JOIN')}",
    "star": f"SELECT m0.k, {VALUES} AS s FROM {star('JOIN')}",
    "left_star": f"SELECT m0.k, {VALUES} AS s FROM {star('LEFT JOIN')}",
    "derived": f"SELECT a.k, a.x + b.y AS s FROM (SELECT m0.k, m{HALF - 1}.n, m{HALF - 1}.v + 1 AS x "
    f"FROM {joined('JOIN', 0, HALF)}) AS a JOIN (SELECT m{HALF}.k, {LAST}.v * 2 AS y FROM "
    f"{joined('JOIN', HALF, TABLES)} WHERE {LAST}.v <> 3) AS b ON b.k = a.n",
    "with_match": f"SELECT m0.k, m{TABLES - 3}.v FROM {joined('JOIN', 0, TABLES - 2)} "
    f"LEFT JOIN m{TABLES - 2} ON m{TABLES - 2}.k = m{TABLES - 3}.n "
    f"WHERE NOT EXISTS (SELECT FROM {LAST} WHERE {LAST}.k = m{TABLES - 3}.n AND {LAST}.v = 5)",
}
WINDOWS = (
    [f"UPDATE {LAST} SET v = v + 1 WHERE k = 17"],
    [f"UPDATE m{n} SET v = v + 1, n = n + 1 WHERE k = {100 + 50 * n}" for n in range(TABLES)],
)


def test_a_changed_row_reads_its_keys(database18: str, spark: SparkSession) -> None:
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        _fill(connection)
        for name, query in QUERIES.items():
            trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        connection.execute("ANALYZE")
        assert max(rows_read(connection, trickle, QUERIES, WINDOWS)) < ROWS


def _fill(connection: db.Connection) -> None:
    for n in range(TABLES):
        others = ", ".join(f"n{other} int" for other in range(1, TABLES)) if n == 0 else "x int"
        connection.execute(db.statement(f"CREATE TABLE m{n} (k int PRIMARY KEY, n int, v int, {others})"))
        values = ", ".join(["g", "g + 1", "g % 7"] + ["g + 1"] * (TABLES - 1 if n == 0 else 1))
        connection.execute(db.statement(f"INSERT INTO m{n} SELECT {values} FROM generate_series(1, {ROWS}) AS g"))
        connection.execute(db.statement(f"CREATE INDEX ON m{n} (n)"))
    for n in range(1, TABLES):
        connection.execute(db.statement(f"CREATE INDEX ON m0 (n{n})"))
