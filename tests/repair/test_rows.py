"""The rows after a repair, and after promotion of a copy, are those of the queries, and are then kept by changes again.

One source is captured from the WAL when the copy is made: its slot is not in a dump, nor in a base backup.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.capture import handover, slot
from pgtrickle.db import Connection
from pgtrickle.model import Table
from pgtrickle.programs import binaries, choose_account, run
from tests.conftest import FAST, fresh_database
from tests.refresh.oracle import differing
from tests.repair.dump import dump_and_restore
from tests.wal.world import World, decoding

QUERIES = {
    "joined": "SELECT o.id, c.name, o.amount FROM orders AS o JOIN customers AS c ON c.id = o.customer",
    "sums": "SELECT customer, sum(amount) AS total, count(*) AS n FROM orders GROUP BY customer",
    "large": "SELECT customer, total FROM sums WHERE total > 10",
}
SOURCES = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text)",
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "INSERT INTO customers VALUES (1, 'ann'), (2, 'bob')",
    "INSERT INTO orders VALUES (1, 1, 5), (2, 1, 7.50), (3, 2, 1)",
)


def write(connection: Connection, *statements: str) -> None:
    for each in statements:
        connection.execute(db.statement(each))


def changes(number: int) -> tuple[str, ...]:
    return (
        f"INSERT INTO orders VALUES ({number}, 2, {number})",
        "UPDATE orders SET amount = amount + 1 WHERE id = 1",
        f"INSERT INTO customers VALUES ({number}, 'customer {number}')",
        f"DELETE FROM orders WHERE id = {number - 1}",
    )


def require_equal(connection: Connection) -> None:
    found = {name: differing(connection, name, query) for name, query in QUERIES.items()}
    assert {name: rows for name, rows in found.items() if rows} == {}


def refreshed(trickle: Trickle) -> set[str]:
    return {str(trickle.refresh_stream_table(str(stream)).action) for stream in trickle.in_order()}


@pytest.fixture
def original(database18: str, spark: SparkSession) -> Iterator[tuple[Trickle, World]]:
    """Three stream tables, with changes that wait; `orders` is captured from the WAL."""
    with Trickle(database18, spark=spark) as trickle, db.open_session(database18) as connection:
        write(connection, "SET synchronous_commit = on", *SOURCES)
        for name, query in QUERIES.items():
            trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        orders = int(str(db.scalar(connection, "SELECT 'orders'::regclass::oid")))
        handover.begin_transition(connection, orders, "asked")
        handover.complete(connection, orders, "caught up")
        write(connection, *changes(10))
        yield trickle, World(database18, connection, Table(orders, "public", "orders"), [])


def require_untouched(trickle: Trickle, world: World) -> None:
    """The original goes on from where it was: no row is lost, none is counted twice."""
    write(world.conn, *changes(30))
    assert slot.inspect(world.conn).state == "alive"
    with decoding(world):
        assert refreshed(trickle) == {"DIFFERENTIAL"}
    require_equal(world.conn)


def test_a_restored_dump(server18: embedded.Server, original: tuple[Trickle, World], spark: SparkSession) -> None:
    trickle, world = original
    publication = slot.name(world.conn)
    with fresh_database(server18) as dsn:
        dump_and_restore(server18, world.dsn, dsn)
        with Trickle(dsn, spark=spark, install_catalog=False) as there, db.open_session(dsn) as connection:
            assert db.scalar(connection, f"SELECT count(*) FROM pg_publication WHERE pubname = '{publication}'") == 1
            write(connection, *changes(20))
            found = {each.table: each for each in there.repair()}
            assert {found[f"public.{name}"].outcome for name in QUERIES} == {"repaired"}
            assert "computed again" in found["public.sums"].done[-1]
            require_equal(connection)
            assert {each.status for each in there.status()} == {"ACTIVE"}
            assert db.scalar(connection, "SELECT count(*) FROM pg_publication") == 0
            write(connection, *changes(40))
            assert refreshed(there) == {"DIFFERENTIAL"}
            require_equal(connection)
            assert {each.outcome for each in there.repair()} == {"sound"}
    require_untouched(trickle, world)


def test_a_promoted_copy(server18: embedded.Server, original: tuple[Trickle, World], spark: SparkSession) -> None:
    """Two servers of one system identifier, and one on another timeline: neither needs to be told of the other."""
    trickle, world = original
    with standby(server18) as copy:
        dsn = make_conninfo(copy.dsn, dbname=conninfo_to_dict(world.dsn)["dbname"])
        with db.open_session(dsn) as connection:
            assert db.scalar(connection, "SELECT pg_promote()") is True
            assert db.scalar(connection, "SELECT count(*) FROM pg_replication_slots") == 0
            write(connection, *changes(20))
            with Trickle(dsn, spark=spark) as there:
                assert {each.status for each in there.status()} == {"ACTIVE"}  # it is no dump: its oids are right
                alerts = [check.detail for check in there.health() if check.check_name == "capture"]
                assert "slot_missing" in alerts[0]
                assert {each.outcome for each in there.repair()} == {"repaired", "sound"}
                refreshed(there)  # what reads a stream table that was computed again was sound itself
                require_equal(connection)
                write(connection, *changes(40))
                assert refreshed(there) == {"DIFFERENTIAL"}
                require_equal(connection)
    require_untouched(trickle, world)


@contextmanager
def standby(server: embedded.Server) -> Iterator[embedded.Server]:
    """A running standby made by pg_basebackup, which copies no replication slots."""
    home = Path(tempfile.mkdtemp(prefix="pgtrickle-copy-"))
    directory = home / "data"
    account = choose_account(server.data_dir)
    try:
        home.chmod(0o755)
        if account is not None:
            shutil.chown(home, account.uid, account.gid)
        program = binaries(server.version, account) / "pg_basebackup"
        done = run([program, "-D", directory, "-d", server.dsn, "-R", "--checkpoint=fast", "--no-sync"], account)
        assert done.returncode == 0, done.stderr
        (directory / "postmaster.pid").unlink(missing_ok=True)
        yield embedded.start(directory, version=server.version, settings=FAST)
    finally:
        embedded.stop(directory)
        shutil.rmtree(home, ignore_errors=True)
