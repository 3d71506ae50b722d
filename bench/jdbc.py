"""A full refresh on Spark against the same by hand: Spark reads the tables by its own JDBC source, in as many parts as
tasks run, computes the query, and writes the rows into a table.

PGTRICKLE_BENCH_JDBC names the jars of PostgreSQL's JDBC driver, as a Java class path: on Debian and Ubuntu
/usr/share/java/postgresql.jar and its scram-client.jar, scram-common.jar, saslprep.jar and stringprep.jar.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

import pgtrickle
from bench.harness import Connection, Figure, create_shop, db, median, seconds
from bench.ticks import NEVER
from pgtrickle.api import Trickle
from pgtrickle.spark.parallelism import tasks_at_once

ORDERS = int(os.environ.get("PGTRICKLE_BENCH_JDBC_ORDERS", "2000000"))
CUSTOMERS = 100_000
ROUNDS = 3
FETCH = 10_000
KEYS = {"orders": ORDERS, "customers": CUSTOMERS}
"""The tables, and their greatest key."""
QUERIES = {
    "totals": "SELECT c.region, count(*) AS orders, sum(o.amount) AS amount"
    " FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region",
    "per_customer": "SELECT c.id, c.name, count(*) AS orders, sum(o.amount) AS amount"
    " FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.id, c.name",
    "large_orders": "SELECT o.id, c.name, o.amount FROM orders o JOIN customers c ON c.id = o.customer"
    " WHERE o.amount > 900",
}


def run(dsn: str) -> Iterator[Figure]:
    jars = os.environ.get("PGTRICKLE_BENCH_JDBC", "")
    if not jars:
        print("left out: PGTRICKLE_BENCH_JDBC names no jars of the JDBC driver (bench/jdbc.py says which)")
        return
    conf = {"spark.driver.extraClassPath": jars}
    with db.open_session(dsn) as connection, pgtrickle.connect(dsn, spark_conf=conf) as trickle:
        create_shop(connection, ORDERS, CUSTOMERS)
        for name, query in QUERIES.items():
            trickle.create_stream_table(name, query, schedule=NEVER, refresh_mode="FULL")
        by_hand = _ByHand(dsn, trickle._session())
        for name, query in QUERIES.items():
            ours, theirs = list[float](), list[float]()
            for _ in range(1 + ROUNDS):
                ours.append(seconds(partial(_full, trickle, name)))
                theirs.append(seconds(partial(by_hand.write, name, query)))
            _require_equal(connection, name)
            yield Figure(f"{ORDERS:,} orders, {name}: FULL on Spark", median(ours[1:]), "s")
            yield Figure(f"{ORDERS:,} orders, {name}: by Spark's JDBC source", median(theirs[1:]), "s")
            factor = median(theirs[1:]) / median(ours[1:])
            yield Figure(f"{ORDERS:,} orders, {name}: times faster", factor, "×", "at least 3")


def _full(trickle: Trickle, name: str) -> None:
    assert trickle.refresh_stream_table(name, full=True).action == "FULL"


class _ByHand:
    """What a user of Spark would write."""

    def __init__(self, dsn: str, session: SparkSession) -> None:
        known = conninfo_to_dict(dsn)
        self.session = session
        self.options = {
            "url": f"jdbc:postgresql://{known['host']}:{known.get('port', 5432)}/{known['dbname']}",
            "user": str(known["user"]),
            "password": str(known.get("password", "")),
            "driver": "org.postgresql.Driver",
        }

    def write(self, name: str, query: str) -> None:
        for table, most in KEYS.items():
            read = self.session.read.format("jdbc").options(**self.options, dbtable=table, fetchsize=FETCH)
            parts = tasks_at_once(self.session)
            read = read.options(partitionColumn="id", lowerBound=1, upperBound=most, numPartitions=parts)
            read.load().createOrReplaceTempView(table)
        rows = self.session.sql(query)
        rows.write.format("jdbc").options(**self.options, dbtable=f"by_hand_{name}", batchsize=FETCH).mode(
            "overwrite"
        ).save()


def _require_equal(connection: Connection, name: str) -> None:
    one, other = f"TABLE {name}", f"TABLE by_hand_{name}"
    differing = f"(({one}) EXCEPT ALL ({other})) UNION ALL (({other}) EXCEPT ALL ({one}))"
    assert not db.scalar(connection, f"SELECT count(*) FROM ({differing}) AS differing"), name
