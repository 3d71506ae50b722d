"""Sources are let go of without holding up others: what is locked is locked at once, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from pgtrickle import db
from pgtrickle.capture import triggers
from pgtrickle.capture.locks import LockRequest, lock_all
from pgtrickle.catalog import writer
from pgtrickle.db import Connection
from pgtrickle.errors import StateError

from .world import World, consume, table_of, world


@pytest.fixture
def made(database18: str) -> Iterator[World]:
    with world(database18) as it:
        yield it


@pytest.fixture
def other(made: World) -> Iterator[Connection]:
    with db.open_session(made.dsn, autocommit=False) as connection:
        yield connection
        connection.rollback()


def test_no_source_stays_locked_while_another_is_waited_for(made: World, other: Connection) -> None:
    """Someone reads the second one for long; the first can be read all the while."""
    conn = made.conn
    conn.execute("CREATE TABLE u (id int); CREATE TABLE over_u (id int)")
    u = table_of(conn, "u")
    second = consume(conn, "over_u", u, ["id"])
    other.execute("SELECT FROM u")
    failures: list[StateError] = []

    def release() -> None:
        with db.open_session(made.dsn) as releasing, releasing.transaction():
            writer.unregister(releasing, made.pgt_id)
            writer.unregister(releasing, second)
            try:
                triggers.detach_all(releasing, [made.oid, u.oid], give_up_after_s=3.0)
            except StateError as error:
                failures.append(error)
                raise psycopg.Rollback from None

    thread = threading.Thread(target=release)
    thread.start()
    try:
        conn.execute("SET lock_timeout = '2s'")
        while thread.is_alive():
            conn.execute("SELECT FROM t")
            thread.join(0.01)
    finally:
        thread.join()
    assert [error.code for error in failures] == ["PT326"]
    other.rollback()
    with conn.transaction():
        writer.unregister(conn, made.pgt_id)
        writer.unregister(conn, second)
        assert triggers.detach_all(conn, [u.oid, made.oid]) == (made.oid, u.oid)
    assert made.one("SELECT count(*) FROM pgtrickle.pgt_change_tracking") == 0


def test_a_buffer_in_use_is_not_waited_for_under_the_lock_of_its_source(made: World, other: Connection) -> None:
    other.execute(f"SELECT FROM pgtrickle_changes.changes_{made.oid}".encode())
    with made.conn.transaction(force_rollback=True):
        made.conn.execute("SET LOCAL statement_timeout = '5s'")
        writer.unregister(made.conn, made.pgt_id)
        with pytest.raises(StateError) as caught:
            triggers.detach(made.conn, made.oid, give_up_after_s=0.5)
    assert caught.value.code == "PT326"


def test_autovacuum_makes_way(made: World) -> None:
    """It does so only for whoever waits longer than deadlock_timeout."""
    conn = made.conn
    conn.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 100000) AS g; DELETE FROM t WHERE id % 2 = 0")
    conn.execute(
        "ALTER TABLE t SET (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0,"
        " autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1)"
    )
    working = (
        "SELECT EXISTS (SELECT FROM pg_stat_progress_vacuum AS p JOIN pg_stat_activity AS a USING (pid)"
        f" WHERE a.backend_type = 'autovacuum worker' AND p.relid = {made.oid})"
    )
    try:
        conn.execute("ALTER SYSTEM SET autovacuum_naptime = '1s'")
        conn.execute("ALTER SYSTEM SET autovacuum = on")
        conn.execute("SELECT pg_reload_conf()")
        made.await_true(working, 60)
        with conn.transaction():
            lock_all(conn, [LockRequest(sql.Identifier("public", "t"), "SHARE ROW EXCLUSIVE")], give_up_after_s=8.0)
    finally:
        conn.execute("ALTER SYSTEM RESET autovacuum_naptime")
        conn.execute("ALTER SYSTEM RESET autovacuum")
        conn.execute("SELECT pg_reload_conf()")
