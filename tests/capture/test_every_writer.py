"""Capture fires for every writer: sessions that replicate, subscriptions made later, triggers disabled for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg import sql
from tests.capture.conftest import Follow, Ledger, run
from tests.conftest import fresh_database

from pgtrickle import db, embedded
from pgtrickle.capture import change_window, triggers
from pgtrickle.capture.idle_windows import quiet
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    with db.open_session(database18) as connection:
        install(connection)
        yield connection


@contextmanager
def subscribed(server: embedded.Server, conn: Connection, table: str, *rows: str) -> Iterator[Connection]:
    """A session in another database whose table of the same name is replicated to ours; `rows` that it has before are
    copied first."""
    with fresh_database(server) as dsn, db.open_session(dsn) as publisher:
        slot = f"s_{publisher.info.dbname}"
        run(publisher, f"CREATE TABLE {table} (id int PRIMARY KEY, v text)", f"CREATE PUBLICATION p FOR TABLE {table}")
        for each in rows:
            run(publisher, f"INSERT INTO {table} VALUES {each}")
        publisher.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        conn.execute(
            sql.SQL(
                "CREATE SUBSCRIPTION sub CONNECTION {} PUBLICATION p WITH (create_slot = false, slot_name = {},"
                " copy_data = {})"
            ).format(sql.Literal(dsn), sql.Identifier(slot), sql.Literal(bool(rows)))
        )
        try:
            yield publisher
        finally:
            for each in ("DISABLE", "SET (slot_name = NONE)"):
                conn.execute(db.statement(f"ALTER SUBSCRIPTION sub {each}"))
            conn.execute("DROP SUBSCRIPTION sub")


def arrive(conn: Connection, query: str) -> None:
    until = time.monotonic() + 60
    while not db.scalar(conn, query):
        assert time.monotonic() < until, query
        time.sleep(0.05)


def captured(conn: Connection, ledger: Ledger) -> bool:
    oid = ledger.source.oid
    now = str(db.scalar(conn, "SELECT pg_current_snapshot()::text"))
    found = change_window.pending(conn, [oid], now)[oid].captured
    assert triggers.stand(conn, oid) is found
    assert bool(quiet(conn, {(oid, now)}, now, {})) is found  # nothing is in the window, so it is quiet if captured
    return found


def test_a_subscription_made_after_capture_began(
    server18: embedded.Server, conn: Connection, follow: Follow, database18: str
) -> None:
    run(conn, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (0, 'mine')")
    ledger = follow("t", "id", "v")
    assert captured(conn, ledger)
    with subscribed(server18, conn, "t") as publisher:
        assert not captured(conn, ledger)  # before any row came
        run(publisher, "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        arrive(conn, "SELECT count(*) = 3 FROM t")
        with conn.transaction():
            triggers.attach(conn, ledger.source, ["id", "v"])
        assert captured(conn, ledger)
        assert ledger.check().truncated  # what was missed is computed anew, by every consumer
        run(
            publisher,
            "INSERT INTO t VALUES (3, 'c')",
            "UPDATE t SET v = 'x' WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        )
        arrive(conn, "SELECT count(*) = 3 AND max(id) = 3 FROM t")
        run(conn, "UPDATE t SET v = 'mine too' WHERE id = 0")
        assert not ledger.check().truncated
    assert captured(conn, ledger)


def test_a_subscription_that_came_and_went_between_two_looks(
    server18: embedded.Server, conn: Connection, follow: Follow, database18: str
) -> None:
    run(conn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    ledger = follow("t", "id", "v")
    with subscribed(server18, conn, "t") as publisher:
        run(publisher, "INSERT INTO t VALUES (1, 'a')")
        arrive(conn, "SELECT count(*) = 1 FROM t")
    assert captured(conn, ledger)
    assert ledger.check().truncated


@pytest.mark.parametrize("level", ["statement", "row"])
def test_the_first_copy_of_a_subscription(
    server18: embedded.Server, conn: Connection, follow: Follow, level: str
) -> None:
    """By row triggers, which have been there before, it is captured; by others it is computed anew."""
    run(conn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    ledger = follow("t", "id", "v")
    with conn.transaction():
        triggers.attach(conn, ledger.source, ["id", "v"], trigger_mode=level)
    ledger.check()
    with subscribed(server18, conn, "t", "(1, 'a'), (2, 'b')") as publisher:
        arrive(conn, "SELECT count(*) = 2 FROM t")
        with conn.transaction():
            triggers.attach(conn, ledger.source, ["id", "v"], trigger_mode=level)
        pending = ledger.check()
        assert (pending.truncated, pending.captured) == (level == "statement", True)
        run(publisher, "DELETE FROM t WHERE id = 2")
        arrive(conn, "SELECT count(*) = 1 FROM t")
        assert not ledger.check().truncated


def test_sessions_that_replicate_and_triggers_that_were_disabled(conn: Connection, follow: Follow) -> None:
    run(conn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    ledger = follow("t", "id", "v")
    run(conn, "SET LOCAL session_replication_role = replica", "INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'")
    assert not ledger.check().truncated
    run(conn, "ALTER TABLE t DISABLE TRIGGER ALL")
    assert not captured(conn, ledger)
    run(conn, "INSERT INTO t VALUES (2, 'unseen')", "ALTER TABLE t ENABLE TRIGGER ALL")
    assert not captured(conn, ledger)
    with conn.transaction():
        triggers.attach(conn, ledger.source, ["id", "v"])
    assert captured(conn, ledger)
    assert ledger.check().truncated
