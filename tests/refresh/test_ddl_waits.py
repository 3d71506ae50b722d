"""DDL that waits for a refresh, whose own tasks wait behind it: a circle that PostgreSQL does not see."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import connect
from pgtrickle.errors import Error
from pgtrickle.refresh.evaluate import stages

WAIT_SECONDS = 120


def test_a_task_does_not_wait_for_ever(database18: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    altering: list[threading.Thread] = []

    def alter() -> None:
        with db.open_session(database18) as conn:
            conn.execute("ALTER TABLE customers ADD COLUMN extra int")

    def waiting(conn: db.Connection) -> bool:
        locks = "SELECT count(*) FROM pg_locks WHERE relation = 'customers'::regclass AND NOT granted"
        return bool(db.scalar(conn, locks))

    real = stages.StageRunner.run

    def run_once_it_waits(self: stages.StageRunner, *given: object, **named: object) -> object:
        if not altering:
            altering.append(threading.Thread(target=alter, daemon=True))
            altering[0].start()
            with db.open_session(database18) as conn:
                while not waiting(conn):
                    time.sleep(0.02)
        return real(self, *given, **named)  # type: ignore[arg-type]

    with db.open_session(database18) as conn, connect(database18, spark=spark) as trickle:
        conn.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
        conn.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int)")
        conn.execute("INSERT INTO customers VALUES (1, 'one')")
        conn.execute("INSERT INTO orders VALUES (1, 1)")
        query = "SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer"
        trickle.create_stream_table("s", query)
        conn.execute("INSERT INTO orders VALUES (2, 1)")
        monkeypatch.setattr(stages.StageRunner, "run", run_once_it_waits)
        with pytest.raises(Error, match="lock timeout"):
            trickle.refresh_stream_table("s")
        altering[0].join(WAIT_SECONDS)
        assert not altering[0].is_alive()
        trickle.refresh_stream_table("s")
        assert conn.execute("SELECT id, name FROM s ORDER BY id").fetchall() == [(1, "one"), (2, "one")]
        history = conn.execute("SELECT consecutive_errors, status FROM pgtrickle.pgt_stream_tables").fetchall()
        assert history == [(0, "ACTIVE")]
